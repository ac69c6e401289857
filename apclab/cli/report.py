"""What `apclab decode` leaves behind: a table and a sentence, JSON Lines, a file, a figure."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from apclab import process, results
from apclab.blocks import BlockTable
from apclab.cli.terminal import CommandError, stdout
from apclab.results import Record


def check_outputs(*, save: str | None, html: Path | None, out: Path | None = None) -> None:
    """Find out before anything is measured whether the outputs can be written.

    Raises:
        CommandError: with status 2, one cannot, or both are one file.
    """
    outputs = {"--save": Path(save) if save else None, "--html": html, "--out": out}
    named: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if (other := named.setdefault(os.path.realpath(path), option)) != option:
            raise CommandError(2, f"{other} and {option} name one file, {path}: one would replace "
                               f"the other; give two names")  # fmt: skip
    for option, path in outputs.items():
        if path is None or (option == "--save" and path.is_dir()):
            continue
        existed = path.exists()
        try:
            # a device or a pipe is not opened to try it: a pipe would wait for its reader
            if path.is_dir() or path.is_file() or not existed:
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
    """Save the records first, then show them and draw them, so that nothing that fails loses them.

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
    try:
        save_and_show(records, save=save, show=print_json if json_lines else print_table)
    finally:
        if records and html is not None:
            _draw(records, html, table)


def save_and_show(
    records: list[Record], *, save: str | None, show: Callable[[list[Record]], None]
) -> None:
    """Append records to a path, then show them; what cannot be saved is printed as JSON Lines.

    Args:
        records: in their order; may be empty.
        save: path to append to, "" for the default one, None for not at all.
        show: prints them.

    Raises:
        CommandError: the file cannot be written.
        OSError: stdout cannot be written.
    """
    if not records:
        process.say("nothing was measured yet")
        return
    if save is not None:
        try:
            _save(records, save)
        except CommandError:
            # a long measurement is worth more than a tidy screen
            print_json(records)
            raise
    show(records)


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


def _save(records: list[Record], save: str) -> None:
    path = Path(save) if save else results.destination(records[0])
    if path.is_dir():
        path = path / results.destination(records[0]).name
    try:
        results.append(path, records)
    except OSError as error:
        raise _cannot_write("--save", path, error, "the records are on stdout") from error
    process.say(f"{len(records)} records appended to {path}")


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
    """Write a figure as one HTML file; one that was there stays until this one is whole.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        # plotly.js goes into the file, so that it opens without a network
        page = figure.to_html(include_plotlyjs=True)
        with process.replacing(path) as file:
            file.write(page)
    except OSError as error:
        raise _cannot_write("--html", path, error) from error
    process.say(f"figure written to {path}")


def _cannot_write(option: str, path: Path, error: OSError, remark: str = "") -> CommandError:
    status = 3 if error.errno == errno.ENOSPC else 2
    reason = error.strerror or str(error)
    return CommandError(
        status, f"{option}: cannot write {path}: {reason}" + (f"; {remark}" if remark else "")
    )
