"""`apclab decode`: one decode step measured here: private blocks, shared ones, cascade."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from apclab.blocks import BlockTable
from apclab.cli.report import check_outputs, present
from apclab.cli.tables import read_tables
from apclab.cli.terminal import CommandError, watch
from apclab.results import Record
from apclab.specs import ModelShape
from apclab.workload import PRESETS, Workload

_DEFAULT = Workload()


def _asked(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, show_default=False, rich_help_panel="What is asked")


def _how(text: str, *, show_default: bool = True) -> Any:
    return typer.Option(help=text, show_default=show_default, rich_help_panel="How it is measured")


def _output(text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(
        *names, help=text, metavar=metavar, show_default=False, rich_help_panel="Output"
    )


def decode(
    batch: Annotated[
        int | None, _asked(f"Requests that decode together; default {_DEFAULT.batch}.")
    ] = None,
    input_len: Annotated[
        int | None, _asked(f"Prompt tokens of a request; default {_DEFAULT.input_len}.")
    ] = None,
    output_len: Annotated[
        int | None, _asked(f"Generated tokens of a request; default {_DEFAULT.output_len}.")
    ] = None,
    cache_hit: Annotated[
        float | None, _asked(f"Known part of each prompt, 0 to 1; default {_DEFAULT.cache_hit}.")
    ] = None,
    prefix_groups: Annotated[
        int | None, _asked(f"Different prefixes in the batch; default {_DEFAULT.prefix_groups}.")
    ] = None,
    primed: Annotated[
        bool | None,
        _asked(
            "Whether earlier requests left the prefixes in the cache; default yes.",
            "--primed/--not-primed",
        ),
    ] = None,
    seed: Annotated[int | None, _asked(f"Seed of the token ids; default {_DEFAULT.seed}.")] = None,
    preset: Annotated[str | None, _asked('A named workload, such as "own history".')] = None,
    tables: Annotated[
        Path | None,
        _asked("Real block tables, .npz with block_tables and seq_lens, instead of a workload."),
    ] = None,
    model: Annotated[str, _how("Whose attention shape.")] = "llama-13b",
    dtype: Annotated[str, _how("Of the KV cache: float32, float16, bfloat16.")] = "bfloat16",
    block_size: Annotated[int, _how("Tokens per block; a --tables file may say it.")] = 16,
    layout: Annotated[str, _how("Of the KV cache: NHD, HND, auto.")] = "auto",
    backend: Annotated[str, _how("cpu, triton, reference, auto.")] = "auto",
    order: Annotated[str, _how("Loop or program order: request, head, auto.")] = "auto",
    l2: Annotated[str, _how("What the caches hold before a call: cold, warm.")] = "cold",
    step: Annotated[str, _how("Which decode step: first, mid, last.")] = "mid",
    case: Annotated[
        list[str] | None,
        _how("private, shared or cascade; repeatable; default all three.", show_default=False),
    ] = None,
    budget: Annotated[float, _how("Seconds of measuring.")] = 1.0,
    threads: Annotated[
        int | None, _how("CPU threads; default all that this process may use.", show_default=False)
    ] = None,
    save: Annotated[
        str | None,
        _output(
            "Append the records to PATH, without PATH to the folder of measurements.",
            metavar="[PATH]",
        ),
    ] = None,
    json_lines: Annotated[
        bool, _output("Print the records as JSON Lines, nothing else.", "--json")
    ] = False,
    html: Annotated[Path | None, _output("Write the figure to this file.")] = None,
) -> int:
    """Measure one decode step on this machine: private blocks, shared ones, cascade."""
    asked = {
        "batch": batch,
        "input_len": input_len,
        "output_len": output_len,
        "cache_hit": cache_hit,
        "prefix_groups": prefix_groups,
        "primed": primed,
        "seed": seed,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    how = {
        "cases": tuple(case or ("private", "shared", "cascade")),
        "backend": backend,
        "dtype": dtype,
        "layout": layout,
        "order": order,
        "l2": l2,
        "threads": threads,
        "budget_s": budget,
    }
    check_outputs(save=save, html=html)
    workload = None
    if tables is None:
        workload = build_workload(preset, asked)
        records, stopped = measure(workload, model, how | {"block_size": block_size, "step": step})
    else:
        if given := [*(["preset"] if preset else []), *asked, *(["step"] if step != "mid" else [])]:
            raise CommandError(2, f"--tables brings its own requests; leave out {', '.join(given)}")
        table, shape = read_tables(tables, block_size=block_size)
        records, stopped = measure(table, shape or model, how)
    drawn = shared_table(workload, block_size, step) if html and workload else None
    present(records, json_lines=json_lines, save=save, html=html, table=drawn)
    return 130 if stopped else 0


def build_workload(preset: str | None, asked: dict[str, Any]) -> Workload:
    """The preset, or the default workload, with what was asked for put in its place.

    Raises:
        ValueError: no such preset, or a value out of range.
    """
    if preset is None:
        return replace(Workload(), **asked)
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}; got {preset!r}")
    return replace(PRESETS[preset], **asked)


def measure(
    subject: Workload | BlockTable, model: str | ModelShape, how: dict[str, Any]
) -> tuple[list[Record], bool]:
    """Measure with a progress bar; the records, and whether Ctrl-C cut it short.

    Raises:
        CommandError: with status 3, the machine or this version lacks something.
    """
    # numba takes its time to import, and bad arguments should fail before that
    from apclab.attention import Unavailable
    from apclab.bench import compare_decode, compare_tables
    from apclab.clock import Busy, Cancelled

    compare: Any = compare_decode if isinstance(subject, Workload) else compare_tables
    with watch() as terminal:
        try:
            records: list[Record] = compare(
                subject, model, cancelled=terminal.cancelled, progress=terminal.progress, **how
            )
        except Cancelled as error:
            return list(getattr(error, "records", [])), True
        except (Busy, Unavailable) as error:
            raise CommandError(3, str(error)) from error
        return records, terminal.cancelled()


def shared_table(workload: Workload, block_size: int, step: str) -> BlockTable:
    """The block table that `shared` was measured with, before ids were permuted."""
    from apclab.bench import decode_step

    return decode_step(workload, block_size=block_size, step=step).shared
