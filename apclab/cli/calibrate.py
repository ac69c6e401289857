"""`apclab calibrate`: what this machine lets the kernel do, probe by probe."""

from functools import partial
from typing import Annotated

import typer
from rich.table import Table

from apclab.cli.report import check_outputs, print_json, save_and_show
from apclab.cli.terminal import CommandError, Watch, stdout, watch
from apclab.results import Record
from apclab.specs import DTYPE_BYTES

MEANING = {
    "distinct": "every table entry its own block: DRAM",
    "shared": "all requests have the same blocks: the caches",
    "one_block": "every entry is one block: execution; near cache on a GPU",
    "launch": "one request of one token: fixed cost",
    "product": "of two square matrices",
}


def calibrate(
    model: Annotated[str, typer.Option(help="Whose attention shape.")] = "llama-13b",
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            help="Of the KV cache: float32, float16, bfloat16; repeatable; default bfloat16.",
            show_default=False,
        ),
    ] = None,
    layout: Annotated[str, typer.Option(help="Of the KV cache: NHD, HND, auto.")] = "auto",
    backend: Annotated[str, typer.Option(help="cpu, triton, reference, auto.")] = "auto",
    order: Annotated[str, typer.Option(help="Loop order: request, head, auto.")] = "auto",
    budget: Annotated[float, typer.Option(help="Seconds of measuring, for each dtype.")] = 1.0,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; default all.", show_default=False)
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(
            help="Append the records to PATH, without PATH to the folder of measurements.",
            metavar="[PATH]",
            show_default=False,
        ),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print the records as JSON Lines, nothing else.")
    ] = False,
) -> int:
    """Measure the rates of this machine and of the kernel: DRAM, cache, execution, fixed cost."""
    dtypes = list(dict.fromkeys(dtype or ["bfloat16"]))
    if unknown := [name for name in dtypes if name not in DTYPE_BYTES]:
        raise ValueError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {unknown[0]!r}")
    check_outputs(save=save, html=None)
    # numba takes its time to import, and bad arguments should fail before that
    from apclab import bench
    from apclab.attention import Unavailable
    from apclab.clock import Busy, Cancelled

    records: list[Record] = []
    stopped = False
    with watch() as terminal:
        try:
            for at, name in enumerate(dtypes):
                records += bench.calibrate(
                    model, backend=backend, dtype=name, layout=layout, order=order,
                    budget_s=budget, threads=threads, cancelled=terminal.cancelled,
                    progress=partial(_tell, terminal, at, len(dtypes)),
                )  # fmt: skip
        except Cancelled as stop:
            records += stop.records
            stopped = True
        except (Busy, Unavailable) as error:
            raise CommandError(3, str(error)) from error
    save_and_show(records, save=save, show=print_json if json_lines else _print)
    return 130 if stopped else 0


def _tell(terminal: Watch, at: int, of: int, part: float, what: str) -> None:
    terminal.progress((at + part) / of, what)


def _print(records: list[Record]) -> None:
    console = stdout()
    table = Table("dtype", "probe", box=None, pad_edge=False)
    for heading in ("rate", "us p50", "p20 - p80", "l2"):
        table.add_column(heading, justify="right")
    table.add_column("what limits it")
    for record in records:
        table.add_row(
            record["model"]["dtype"],
            record["probe"],
            rate_words(record),
            f"{record['p50_us']:.1f}",
            f"{record['p20_us']:.1f} - {record['p80_us']:.1f}",
            record["l2"],
            MEANING[record["probe"]],
        )
    console.print(table)
    last = records[-1]
    rungs = ", ".join(f"{r['level']} {r['gb_per_s']:.1f}" for r in last["device"]["ladder"])
    threads = f", {last['threads']} threads" if last["threads"] else ""
    shape = last["model"]
    for line in (
        f"plain reads, GB/s: {rungs}",
        f"{shape['name']} ({shape['num_heads']}/{shape['num_kv_heads']}/{shape['head_size']}), "
        f"blocks of {shape['block_size']}, {shape['layout']}; {last['backend']}, "
        f"order {last['order']}{threads}",
    ):
        console.print(line, markup=False, soft_wrap=True)


def rate_words(record: Record) -> str:
    """The value of a calibration record with its unit."""
    match record["unit"]:
        case "bytes/s":
            return f"{record['value'] / 1e9:.1f} GB/s"
        case "flop/s":
            return f"{record['value'] / 1e9:.0f} Gflop/s"
    return f"{record['value'] * 1e6:.1f} us"
