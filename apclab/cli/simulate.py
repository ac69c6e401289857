"""`apclab simulate`: requests or a trace through the step engine, prefix caching off and on."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from apclab import specs
from apclab.cli.report import check_outputs, write_figure
from apclab.cli.sweep import run_sweep
from apclab.cli.terminal import CommandError, stderr, stdout, watch
from apclab.clock import memory_available
from apclab.decompose import ARMS, Simulation
from apclab.decompose import simulate as run_arms
from apclab.engine import EngineConfig, Request, Stuck
from apclab.engine.config import BATCHED_TOKENS
from apclab.engine.intake import trace_requests, workload_requests
from apclab.memory_model import StepRates, calibrated_rates
from apclab.results import load
from apclab.traces import Trace, read_trace
from apclab.workload import Workload

_ISSUE = Workload(primed=False)
_TERMS = ("decode", "prefill", "mixed", "preemption")


def _asked(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="What is asked")


def _sweep(text: str) -> Any:
    return typer.Option(help=text, show_default=False, rich_help_panel="Many points")


def _engine(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="The engine")


def simulate(
    batch: Annotated[int, _asked("Requests.")] = _ISSUE.batch,
    input_len: Annotated[int, _asked("Prompt tokens of a request.")] = _ISSUE.input_len,
    output_len: Annotated[int, _asked("Generated tokens of a request.")] = _ISSUE.output_len,
    cache_hit: Annotated[float, _asked("Shared part of each prompt, 0 to 1.")] = _ISSUE.cache_hit,
    prefix_groups: Annotated[int, _asked("Different prefixes.")] = _ISSUE.prefix_groups,
    primed: Annotated[
        bool, _asked("Whether the prefixes are in the cache at the start.", "--primed/--not-primed")
    ] = False,
    rate: Annotated[float, _asked("Arrivals a second (Poisson); inf: all at the start.")] = float(
        "inf"
    ),
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
    block_size: Annotated[
        int | None, _engine("Tokens per block; default 16, of a trace what its ids name.")
    ] = None,
    num_blocks: Annotated[int | None, _engine("Blocks of the pool; default enough.")] = None,
    kv_gb: Annotated[float | None, _engine("Or GB of KV cache; default of a trace 40.")] = None,
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
        str | None, _sweep("A Dask cluster's scheduler, tcp://host:8786 (apclab[cluster]).")
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON Lines.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the figure to this file.", show_default=False)
    ] = None,
) -> int:
    """Simulate serving with prefix caching off and on: TTFT, TPOT, and where the time went.

    Time is modelled, from a device's rates: `apclab decode` measures. Three runs: caching off; on,
    but with a kernel that reads every request's own copy; on.
    """
    check_outputs(save=None, html=html)
    config = EngineConfig(
        policy=policy, queue=queue, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens or BATCHED_TOKENS.get(policy, 8192),
        drop_last_block=drop_last_block,
    )  # fmt: skip
    shape = specs.model(model)
    size = block_size or 16
    if sweep or out or scheduler:
        point = {
            "batch": batch, "input_len": input_len, "output_len": output_len,
            "cache_hit": cache_hit, "prefix_groups": prefix_groups, "primed": primed,
            "policy": policy, "queue": queue, "max_num_seqs": max_num_seqs, "model": model,
            "device": device, "dtype": dtype, "block_size": size, "fixed_s": fixed_ms / 1e3,
            "max_num_batched_tokens": max_num_batched_tokens, "num_blocks": num_blocks,
            "drop_last_block": drop_last_block or None,
        }  # fmt: skip
        others = {
            "--trace": trace, "--kv-gb": kv_gb, "--html": html, "--calibration": calibration,
        }  # fmt: skip
        if given := [name for name, value in others.items() if value is not None]:
            raise CommandError(2, f"a sweep does without {', '.join(given)}")
        given_point = {name: value for name, value in point.items() if value is not None}
        return run_sweep(given_point, sweep or [], out, scheduler, json_lines=json_lines)
    opened: Trace | None = None
    if trace is None:
        workload = replace(
            _ISSUE, batch=batch, input_len=input_len, output_len=output_len, cache_hit=cache_hit,
            prefix_groups=prefix_groups, primed=primed,
        )  # fmt: skip
        requests: Workload | Callable[[], Iterable[Request]] = workload
        if rate != float("inf") or samples > 1:
            requests = _arriving(workload, rate, samples)
            num_blocks = num_blocks or 1 + 2 * samples * batch * -(
                -(input_len + output_len) // size
            )
    else:
        opened, size, requests = _of_trace(trace, block_size, limit, skip_bad, as_lengths)
        kv_gb = kv_gb if kv_gb is not None or num_blocks else 40.0
    if kv_gb is not None:
        num_blocks = 1 + int(kv_gb * 1e9 // (shape.token_bytes(dtype) * shape.num_layers * size))
    rates: str | StepRates = device
    if calibration is not None:
        records, problems = load(calibration, kind="calibration")
        if not records:
            raise CommandError(2, problems[0] if problems else f"{calibration}: no calibration")
        rates = calibrated_rates(records, dtype, fixed_s=fixed_ms / 1e3)
    with watch("simulating; Ctrl-C stops and shows what is done") as watching:
        if opened is not None:
            opened.cancelled = watching.cancelled
        try:
            found = run_arms(
                requests, shape, rates, config=config, dtype=dtype, block_size=size,
                num_blocks=num_blocks, fixed_s=fixed_ms / 1e3,
                cancelled=watching.cancelled, progress=watching.progress,
            )  # fmt: skip
        except Stuck as error:
            raise CommandError(2, str(error)) from None
        stopped = watching.cancelled()
    if json_lines:
        for row in found.rows():
            print(json.dumps(row, allow_nan=True).replace("NaN", "null"), flush=True)
    else:
        _print(found)
    if html is not None and found.runs:
        from apclab import figures

        write_figure(figures.tpot_terms(found.rows(), title=found.finding(), theme="light"), html)
    for line in opened.remarks() if opened else ():
        stderr().print(line, markup=False, soft_wrap=True)
    if stopped:
        stderr().print("stopped by Ctrl-C")
    return 130 if stopped else 0


def _arriving(workload: Workload, rate: float, samples: int) -> Callable[[], Iterable[Request]]:
    return lambda: workload_requests(workload, rate_per_s=rate, samples=samples)


def _of_trace(
    path: Path, block_size: int | None, limit: int | None, skip_bad: bool, as_lengths: bool
) -> tuple[Trace, int, Callable[[], Iterable[Request]]]:
    opened = read_trace(
        path, limit=limit, skip_bad=skip_bad, as_lengths=as_lengths,
        most_bytes=memory_available() // 2,
    )  # fmt: skip
    size = block_size or opened.block_size or 16
    if block_size and opened.cut_here:
        opened.block_size = block_size
    room = memory_available() // len(ARMS)  # requests of all runs are held
    return (
        opened,
        size,
        lambda: trace_requests(opened.located(), size, opened.block_size, most_bytes=room),
    )


def _print(found: Simulation) -> None:
    console = stdout()
    table = Table("prefix caching", box=None, pad_edge=False)
    for heading in ("steps", "hit %", "TTFT s", "p99", "TPOT ms", "p99", "ITL ms", "req/s"):
        table.add_column(heading, justify="right")
    for term in _TERMS:
        table.add_column(term, justify="right")
    names = dict(zip(ARMS, ("off", "on, kernel without reuse", "on"), strict=True))
    for row in found.rows():
        table.add_row(
            names[row["arm"]], f"{row['steps']:,.0f}", f"{100 * row['hit_rate']:.1f}",
            *(f"{row[name]:,.3f}" for name in ("ttft_s_mean", "ttft_s_p99")),
            *(f"{1e3 * row[name]:,.1f}" for name in ("tpot_s_mean", "tpot_s_p99", "itl_s_mean")),
            f"{row['requests_per_s']:.2f}",
            *(f"{1e3 * row[f'tpot_{term}_s']:.2f}" for term in _TERMS),
        )  # fmt: skip
    console.print(table)
    console.print(
        "decode, prefill, mixed, preemption: what a request waited for between its tokens, ms a "
        "token, their sum is TPOT. Times are modelled, not measured.",
    )
    console.print(found.rates.basis, markup=False)
    if sentence := found.finding():
        console.print(sentence, markup=False)
