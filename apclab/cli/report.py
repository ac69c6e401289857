"""What `apclab decode` leaves behind: a table and a sentence, JSON Lines, a file, a figure."""

import errno
import json
from pathlib import Path
from typing import Any

from rich.table import Table

from apclab import results
from apclab.blocks import BlockTable
from apclab.cli.terminal import CommandError, stderr, stdout
from apclab.results import Record


def check_outputs(*, save: str | None, html: Path | None, out: Path | None = None) -> None:
    """Find out before anything is measured whether the outputs can be written.

    Raises:
        CommandError: with status 2, one cannot.
    """
    outputs = {"--save": Path(save) if save else None, "--html": html, "--out": out}
    for option, path in outputs.items():
        if path is None or (option == "--save" and path.is_dir()):
            continue
        existed = path.exists()
        try:
            path.open("a").close()
        except OSError as error:
            raise _cannot_write(option, path, error) from error
        if not existed:
            path.unlink()


def present(
    records: list[Record],
    *,
    json_lines: bool,
    save: str | None,
    html: Path | None,
    table: BlockTable | None,
) -> None:
    """Show the records first, then save them and draw them, so that a full disk loses nothing.

    Args:
        records: in the order of their cases; may be empty.
        json_lines: print JSON Lines instead of the table.
        save: path to append to, "" for the default one, None for not at all.
        html: path of the figure, None for no figure.
        table: block table of the measured workload's shared step, for the figure; None when the
            step came from a file and so has no place on the axis of cache hits.

    Raises:
        CommandError: an output cannot be written.
    """
    if not records:
        stderr().print("nothing was measured yet")
        return
    if json_lines:
        print_json(records)
    else:
        print_table(records)
    if save is not None:
        save_records(records, save, printed=json_lines)
    if html is not None:
        _draw(records, html, table)


def print_json(records: list[Record]) -> None:
    """Print one JSON object a line."""
    for record in records:
        print(json.dumps(record, allow_nan=False), flush=True)


def print_table(records: list[Record]) -> None:
    """Print a row a case, what the workload came to, and the sentence that the records allow."""
    console = stdout()
    table = Table("case", box=None, pad_edge=False)
    for heading in (
        "us a layer p50",
        "p20 - p80",
        "GB/s logical",
        "readers",
        "MB logical",
        "MB distinct",
        "max error",
        "bound",
    ):
        table.add_column(heading, justify="right")
    for record in records:
        private = record["case"] == "private"
        table.add_row(
            record["case"],
            f"{record['p50_us']:.1f}",
            f"{record['p20_us']:.1f} - {record['p80_us']:.1f}",
            f"{record['gb_per_s']:.1f}",
            # each entry of a private table is a block of its own
            "1.0" if private else f"{record['workload']['readers_mean']:.1f}",
            f"{record['logical_bytes'] / 1e6:.1f}",
            f"{record['distinct_bytes'] / 1e6:.1f}",
            f"{record['max_error']:.1e}",
            f"{record['error_bound']:.1e}",
        )
    console.print(table)
    said = records[0]["notes"]
    notes = [
        f"note: {r['case']}: {note}" for r in records for note in r["notes"] if note not in said
    ]
    for line in (*context(records[0]), *notes, results.finding(records)):
        console.print(line, markup=False, soft_wrap=True)


def context(record: Record) -> list[str]:
    """What was asked, what the pool made of it, and how it was measured, in two lines or more."""
    workload, model = record["workload"], record["model"]
    readers = f"{workload['readers_mean']:.1f} readers a shared block, in the mean"
    # a step that came as block tables has no hit: nobody knows what was asked
    if workload["cache_hit"] is not None:
        hit = f"hit asked {workload['cache_hit']:.2f}, realised {workload['realised_hit']:.2f}"
        readers = f"{hit}; {readers}"
    shape = f"{model['num_heads']}/{model['num_kv_heads']}/{model['head_size']}"
    threads = f", {record['threads']} threads" if record["threads"] else ""
    lines = [
        readers,
        f"{model['name']} ({shape}) {model['dtype']}, blocks of {model['block_size']}, "
        f"{model['layout']}; {record['seq_len']:g} tokens a request; {record['backend']}, "
        f"order {record['order']}, l2 {record['l2']}, {record['layers']} layers{threads}",
    ]
    return lines + [f"note: {note}" for note in record["notes"]]


def save_records(records: list[Record], save: str, *, printed: bool) -> None:
    """Append records to a path, "" for the default one; if that fails, print them.

    Raises:
        CommandError: the file cannot be written.
    """
    path = Path(save) if save else results.destination(records[0])
    if path.is_dir():
        path = path / results.destination(records[0]).name
    try:
        results.append(path, records)
    except OSError as error:
        # a long measurement is worth more than a tidy screen
        if not printed:
            print_json(records)
        raise _cannot_write("--save", path, error, "the records are on stdout") from error
    stderr().print(f"{len(records)} records appended to {path}", markup=False)


def _draw(records: list[Record], path: Path, table: BlockTable | None) -> None:
    """Write the page of the lab; without a table there is no picture of blocks, only rates."""
    # plotly and pandas take their time to import
    from apclab import figures

    frame, published = results.frame(records), results.published()
    ladder = results.ladder(records)
    if table is None:
        figure = figures.reuse_roofline(frame, published, ladder=ladder)
    else:
        asked = records[0]["workload"]
        settings = {**asked, "block_size": table.block_size}
        panels = figures.sweep_panels(
            frame,
            "cache_hit",
            "layer",
            overlay=frame.iloc[:0],
            published=published,
            ladder=ladder,
            xs=[asked["cache_hit"]],
            num_layers=1,
            settings=settings,
        )
        figure = figures.lab_page({"blocks": figures.block_panel(table), **panels}, theme="light")
    write_figure(figure, path)


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure as one HTML file.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        # plotly.js goes into the file, so that it opens without a network
        figure.write_html(path, include_plotlyjs=True)
    except OSError as error:
        raise _cannot_write("--html", path, error) from error
    stderr().print(f"figure written to {path}", markup=False)


def _cannot_write(option: str, path: Path, error: OSError, remark: str = "") -> CommandError:
    status = 3 if error.errno == errno.ENOSPC else 2
    reason = error.strerror or str(error)
    return CommandError(
        status, f"{option}: cannot write {path}: {reason}" + (f"; {remark}" if remark else "")
    )
