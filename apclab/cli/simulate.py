"""`apclab simulate`: requests or a trace through the step engine, prefix caching off and on."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from apclab import specs
from apclab.arguments import not_negative
from apclab.cli.report import check_outputs, write_figure
from apclab.cli.sweep import milliseconds, run_sweep, seconds
from apclab.cli.terminal import CommandError, stderr, stdout, watch
from apclab.cli.together import check_together
from apclab.clock import memory_available
from apclab.decompose import ARMS, Simulation
from apclab.decompose import simulate as run_arms
from apclab.engine import EngineConfig, Request, Stuck, TooFewBlocks
from apclab.engine.config import BATCHED_TOKENS
from apclab.engine.intake import trace_requests
from apclab.memory_model import StepRates, calibrated_rates, pool_blocks, pool_gb
from apclab.results import load
from apclab.traces import Trace, read_trace
from apclab.workload import Workload

_ISSUE = Workload(primed=False)
_TERMS = ("decode", "prefill", "mixed", "preemption")
# GB of KV cache where a trace is asked for and nothing else is said
_TRACE_GB = 40.0
# options that a point of a sweep names otherwise
_POINT_NAMES = {"rate": "rate_per_s", "fixed_ms": "fixed_s"}


def _asked(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="What is asked")


def _sweep(text: str) -> Any:
    return typer.Option(help=text, show_default=False, rich_help_panel="Many points")


def _engine(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="The engine")


def simulate(
    context: typer.Context,
    batch: Annotated[int, _asked("Requests.")] = _ISSUE.batch,
    input_len: Annotated[int, _asked("Prompt tokens of a request.")] = _ISSUE.input_len,
    output_len: Annotated[int, _asked("Generated tokens of a request.")] = _ISSUE.output_len,
    cache_hit: Annotated[float, _asked("Shared part of each prompt, 0 to 1.")] = _ISSUE.cache_hit,
    prefix_groups: Annotated[int, _asked("Different prefixes.")] = _ISSUE.prefix_groups,
    primed: Annotated[
        bool, _asked("Whether the prefixes are in the cache at the start.", "--primed/--not-primed")
    ] = False,
    rate: Annotated[float, _asked("Arrivals a second (Poisson); inf: all at the start.")] = inf,
    samples: Annotated[int, _asked("Answers to each prompt.")] = 1,
    trace: Annotated[
        Path | None, _asked("A request trace instead; see `apclab replay --help`.")
    ] = None,
    limit: Annotated[int | None, _asked("Requests of the trace to read at most.")] = None,
    skip_bad: Annotated[bool, _asked("Leave bad lines of the trace out.")] = False,
    as_lengths: Annotated[
        bool, _asked("Take the trace's lengths alone: nothing is shared.", "--as-lengths")
    ] = False,
    drop_last_block: Annotated[
        bool,
        typer.Option(
            "--drop-last-block",
            help="As with EAGLE and MTP, the last block of a hit is computed anew (v1).",
            rich_help_panel="The engine",
        ),
    ] = False,
    policy: Annotated[
        str, _engine("v1: mixed steps (vLLM 0.33); v0: prefill first (May 2024).")
    ] = "v1",
    queue: Annotated[str, _engine("fcfs, priority, or lpm: longest cached prefix first.")] = "fcfs",
    max_num_batched_tokens: Annotated[
        int | None, _engine("Tokens of a step; default 8192, of v0 2048.")
    ] = None,
    max_num_seqs: Annotated[int, _engine("Requests that run at a time.")] = 256,
    scheduler_reserve_full_isl: Annotated[
        bool,
        typer.Option(
            help="Admit only whom the free blocks hold whole (v1).",
            show_default="on",
            rich_help_panel="Admission",
        ),
    ] = True,
    block_size: Annotated[
        int | None, _engine("Tokens per block; default 16, of a trace what its ids name.")
    ] = None,
    num_blocks: Annotated[int | None, _engine("Blocks of the pool; default enough.")] = None,
    kv_gb: Annotated[
        float | None, _engine(f"Or GB of KV cache; default of a trace {_TRACE_GB:g}.")
    ] = None,
    model: Annotated[str, _engine("Whose weights and heads.")] = "llama-13b",
    device: Annotated[str, _engine("Whose rates, of data/devices.csv.")] = "A100-SXM4-80GB",
    calibration: Annotated[
        Path | None, _engine("Instead: rates of a file that `apclab calibrate --save` wrote.")
    ] = None,
    dtype: Annotated[str, _engine("Of weights and KV cache.")] = "float16",
    fixed_ms: Annotated[float, _engine("Milliseconds of a step besides its work.")] = 0.0,
    sweep: Annotated[
        list[str] | None,
        _sweep("NAME=V,V,... such as batch=50,100 or policy=v0,v1; repeatable, all combinations."),
    ] = None,
    out: Annotated[
        Path | None, _sweep("Where points go as they are done; what it holds is not done again.")
    ] = None,
    scheduler: Annotated[
        str | None, _sweep("A Dask cluster's scheduler, tcp://host:8786 (apclab\\[cluster]).")
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON Lines.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the figure to this file.", show_default=False)
    ] = None,
) -> int:
    """Simulate serving with prefix caching off and on: TTFT, TPOT, and where the time went.

    Time is modelled, from a device's rates: `apclab decode` measures. Three runs: caching off; on,
    but with a kernel that reads every request's own copy; on.

    A request is admitted when the free blocks hold its whole prompt; with
    --no-scheduler-reserve-full-isl, as vLLM calls it, when they hold its first chunk.
    """
    check_outputs(save=None, html=html, out=out)
    given = check_together(context)
    not_negative("--fixed-ms", fixed_ms)
    tokens = max_num_batched_tokens
    if tokens is None:
        tokens = BATCHED_TOKENS.get(policy, 8192)
    config = EngineConfig(
        policy=policy, queue=queue, max_num_seqs=max_num_seqs, max_num_batched_tokens=tokens,
        scheduler_reserve_full_isl=scheduler_reserve_full_isl, drop_last_block=drop_last_block,
    )  # fmt: skip
    shape = specs.model(model)
    size = 16 if block_size is None else block_size
    if sweep and out:
        point = {
            "batch": batch, "input_len": input_len, "output_len": output_len,
            "cache_hit": cache_hit, "prefix_groups": prefix_groups, "primed": primed,
            "policy": policy, "queue": queue, "max_num_seqs": max_num_seqs, "model": model,
            "device": device, "dtype": dtype, "block_size": size, "fixed_s": fixed_ms / 1e3,
        }  # fmt: skip
        # only where they are given, as JSON knows no infinity and a file no later option
        more = {
            "max_num_batched_tokens": max_num_batched_tokens, "num_blocks": num_blocks,
            "rate_per_s": rate, "samples": samples,
            "scheduler_reserve_full_isl": scheduler_reserve_full_isl,
            "drop_last_block": drop_last_block,
        }  # fmt: skip
        named = {_POINT_NAMES.get(name, name) for name in given}
        point |= {name: value for name, value in more.items() if name in named and value != inf}
        return run_sweep(point, sweep, out, scheduler, given=named, json_lines=json_lines)
    requests: Workload | Callable[[], Iterable[Request]] = replace(
        _ISSUE, batch=batch, input_len=input_len, output_len=output_len, cache_hit=cache_hit,
        prefix_groups=prefix_groups, primed=primed,
    )  # fmt: skip
    opened: Trace | None = None
    if trace is not None:
        opened, size, requests = _of_trace(trace, block_size, limit, skip_bad, as_lengths)
        kv_gb = _TRACE_GB if kv_gb is None and num_blocks is None else kv_gb
    if kv_gb is not None:
        num_blocks = pool_blocks(kv_gb, shape, dtype, size)
    rates: str | StepRates = device
    fixed_s = fixed_ms / 1e3
    if calibration is not None:
        records, problems = load(calibration, kind="calibration")
        if not records:
            raise CommandError(2, problems[0] if problems else f"{calibration}: no calibration")
        rates, fixed_s = calibrated_rates(records, dtype, fixed_s=fixed_s), 0.0
    with watch("simulating; Ctrl-C stops and shows what is done") as watching:
        if opened is not None:
            opened.cancelled = watching.cancelled
        try:
            found = run_arms(
                requests, shape, rates, config=config, dtype=dtype, block_size=size,
                num_blocks=num_blocks, rate_per_s=rate, samples=samples, fixed_s=fixed_s,
                cancelled=watching.cancelled, progress=watching.progress,
            )  # fmt: skip
        except TooFewBlocks as error:
            longest = input_len + output_len
            if opened is not None:  # the first that does not fit is seldom the longest
                longest = max(one.input_len + one.output_len for one in opened)
            blocks = -(-longest // size)
            enough = f"--num-blocks {blocks + 1}"
            if kv_gb is not None:
                enough = f"--kv-gb {ceil(10 * pool_gb(blocks, shape, dtype, size)) / 10:g}"
            raise CommandError(
                2, f"{error}; {enough} holds every one in {model} {dtype}, or take another --model"
            ) from None
        except Stuck as error:
            raise CommandError(2, f"{error}; a larger pool: --kv-gb or --num-blocks") from None
        stopped = watching.cancelled()
    if json_lines:
        for row in found.rows():
            print(json.dumps(row, allow_nan=True).replace("NaN", "null"), flush=True)
    else:
        _print(found)
    if opened is not None and opened.skipped:
        first = opened.problems[0]
        stderr().print(f"{opened.skipped} bad lines skipped; the first: {first}", markup=False)
    if html is not None and found.runs:
        from apclab import figures

        write_figure(figures.tpot_terms(found.rows(), title=found.finding(), theme="light"), html)
    for line in opened.remarks() if opened else ():
        stderr().print(line, markup=False)
    if stopped:
        stderr().print("stopped by Ctrl-C")
    return 130 if stopped else 0


def _of_trace(
    path: Path, block_size: int | None, limit: int | None, skip_bad: bool, as_lengths: bool
) -> tuple[Trace, int, Callable[[], Iterable[Request]]]:
    opened = read_trace(
        path, limit=limit, skip_bad=skip_bad, as_lengths=as_lengths,
        most_bytes=memory_available() // 2,
    )  # fmt: skip
    size = (opened.block_size or 16) if block_size is None else block_size
    if block_size is not None and opened.cut_here:
        opened.block_size = block_size
    room = memory_available() // len(ARMS)  # requests of all runs are held
    return (
        opened,
        size,
        lambda: trace_requests(opened.located(), size, opened.block_size, most_bytes=room),
    )


def _print(found: Simulation) -> None:
    console = stdout()
    names = dict(zip(ARMS, ("off", "on, kernel\nwithout reuse", "on"), strict=True))
    # runs side by side, so that the table fits 80 columns
    table = Table("prefix caching", box=None, pad_edge=False)
    rows = found.rows()
    for row in rows:
        table.add_column(names[row["arm"]], justify="right", vertical="bottom")
    for name, field, said in _SHOWN:
        table.add_row(name, *(said(row[field]) for row in rows))
    console.print(table)
    console.print(
        "decode, prefill, mixed, preemption: what a request waited for between its tokens, ms a "
        "token, their sum is TPOT. Times are modelled, not measured.",
    )
    console.print(found.rates.basis, markup=False)
    if sentence := found.finding():
        console.print(sentence, markup=False)


_SHOWN = (
    ("steps", "steps", "{:,.0f}".format),
    ("hit", "hit_rate", "{:.1%}".format),
    ("TTFT s", "ttft_s_mean", seconds),
    ("  p99", "ttft_s_p99", seconds),
    ("TPOT ms", "tpot_s_mean", milliseconds),
    ("  p99", "tpot_s_p99", milliseconds),
    *((f"  {term}", f"tpot_{term}_s", milliseconds) for term in _TERMS),
    ("ITL ms", "itl_s_mean", milliseconds),
    ("requests/s", "requests_per_s", "{:.2f}".format),
)
