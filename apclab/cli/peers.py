"""`make peers`: our kernels beside those of others, as tables and records. No arithmetic, no clock.

Not a command of `apclab`: it runs in an environment of its own, `python -m apclab.cli.peers`.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from apclab.bench import OutOfMemory
from apclab.bench.peers import (
    SHAPES,
    SHARES,
    Mark,
    Row,
    candidates,
    marks,
    measure_peers,
    rows,
    settings,
)
from apclab.cli.terminal import CommandError, stderr, stdout, watch
from apclab.clock import Busy, Cancelled
from apclab.results import append, load

Names = list[str] | None


def peers(
    shape: Annotated[Names, typer.Option(help=f"Some of {', '.join(SHAPES)}.")] = None,
    dtype: Annotated[Names, typer.Option(help="Some of float32, float16, bfloat16.")] = None,
    share: Annotated[
        list[int] | None, typer.Option(help="Shared of 19 table entries, for instance 9.")
    ] = None,
    only: Annotated[Names, typer.Option(help="Kernels whose name holds one of these.")] = None,
    skip: Annotated[Names, typer.Option(help="Leave out kernels whose name holds this.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of every CPU kernel; all if left out.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds of timing a setting.")] = 5.0,
    memory: Annotated[
        float | None,
        typer.Option(help="GB that all of it may take; 80 % of what is at hand if left out."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Records, appended.")] = Path(
        "apclab-results/peers.jsonl"
    ),
    report: Annotated[Path | None, typer.Option(help="Only show the records of this file.")] = None,
) -> None:
    """Time our kernels and others on the same tables and bytes, each checked before."""
    if report is not None:
        records, problems = load(report, kind="peer")
        for problem in problems:
            stderr().print(problem)
    else:
        kind = "cuda" if _has_gpu() else "cpu"
        who = [c for c in candidates(kind) if _wanted(c.name, only, skip)]
        asked = settings(
            tuple(shape or SHAPES), tuple(dtype or ("float32", "bfloat16")), tuple(share or SHARES)
        )
        records = []
        with watch() as seen:
            for number, setting in enumerate(asked):
                said = f"{setting.shape.name} {setting.dtype} {setting.shared}/{setting.entries}"

                def tell(part: float, what: str, at: int = number, said: str = said) -> None:
                    seen.progress((at + part) / len(asked), f"{said}: {what}")

                try:
                    found = measure_peers(
                        setting, kind=kind, who=who, threads=threads, budget_s=budget,
                        memory_limit=None if memory is None else int(memory * 1e9),
                        cancelled=seen.cancelled, progress=tell,
                    )  # fmt: skip
                except Cancelled as stop:
                    found = stop.records
                except OutOfMemory as error:
                    stderr().print(f"{said}: {error}")
                    continue
                append(out, found)
                records += found
                if seen.cancelled():
                    break
        stderr().print(f"{len(records)} records appended to {out}")
    stdout().print(kernel_table(rows(records)))
    stdout().print(mark_table(marks(records)))


def kernel_table(found: list[Row]) -> Table:
    """One line a kernel and setting; what was not timed tells its reason."""
    table = Table(title="time of a kernel / time of our best paged kernel: above 1, ours is faster")
    for name in ("shape", "dtype", "shared", "kernel", "ms", "p20-p80", "GB/s", "/ ours", "error"):
        table.add_column(name, justify="left" if name in ("shape", "dtype", "kernel") else "right")
    before = None
    for key, record, ratio in found:
        shape, dtype, shared, entries = key
        head = (shape, dtype, f"{shared}/{entries}") if key != before else ("", "", "")
        before, name = key, record["kernel"]["name"]
        if record["status"] != "timed":
            table.add_row(*head, f"{name}: {record['status']}: {record['reason']}")
            continue
        low, middle, high = (record[p] / 1e3 for p in ("p20_us", "p50_us", "p80_us"))
        times = (_short(middle), f"{_short(low)}-{_short(high)}", f"{record['gb_per_s']:.3g}")
        against = f"{ratio:.2f}" if ratio else "-"
        table.add_row(*head, name, *times, against, f"{record['max_error']:.1e}")
    return table


def mark_table(found: list[Mark]) -> Table:
    """One line a mark: met, missed, or not measured."""
    table = Table(title="marks: our best paged kernel against the fastest peer")
    for name in ("shape", "dtype", "shared", "ours", "fastest peer", "ratio", "bar", ""):
        table.add_column(name)
    for mark in found:
        shape, dtype, shared, entries = mark.key
        said = {True: "met", False: "MISSED", None: "not measured"}[mark.met]
        ratio = "-" if mark.ratio is None else f"{mark.ratio:.2f}"
        table.add_row(
            shape, dtype, f"{shared}/{entries}", mark.ours, mark.peer, ratio, f">= {mark.bar:g}",
            said,
        )  # fmt: skip
    return table


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _wanted(name: str, only: Names, skip: Names) -> bool:
    kept = only is None or any(part.lower() in name.lower() for part in only)
    return kept and not any(part.lower() in name.lower() for part in skip or ())


def _has_gpu() -> bool:
    from apclab.attention import resolve

    return resolve("auto") == "triton"


def main() -> None:
    """Run it; a bad argument costs one line."""
    # several OpenMP runtimes in one process: idle threads of one would spin on the others' cores
    if os.environ.get("OMP_WAIT_POLICY") is None:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.execv(sys.executable, [sys.executable, "-m", "apclab.cli.peers", *sys.argv[1:]])
    try:
        typer.run(peers)
    except (Busy, CommandError, ValueError, OSError) as error:
        stderr().print(f"apclab peers: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
