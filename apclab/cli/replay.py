"""`apclab replay`: a request trace, or prompts, through prefix caches of every size."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from apclab import process
from apclab.cache_sim import Stopped
from apclab.cli.report import check_outputs, write_figure
from apclab.cli.terminal import CommandError, stderr, stdout, watch
from apclab.clock import memory_available
from apclab.specs import model as model_named

# what a rate is a part of -> the table's column
_RATES = {
    "tokens": "hit_rate",
    "eligible": "eligible_hit_rate",
    "blocks": "block_hit_rate",
    "requests": "request_hit_rate",
}


def replay(
    trace: Annotated[
        Path | None,
        typer.Argument(
            help="A file or a pipe, plain or gzipped, of Mooncake (and Dynamo's relatives of it), "
            "Bailian, SGLang's token_trace, LLMServingSim, Dynamo's request trace, TraceLab, trie, "
            "kv-cache-tester; or a folder of kv-cache-tester sessions. Of lengths only: Azure, "
            "BurstGPT, tables of two columns.",
            metavar="TRACE",
            show_default=False,
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Instead of a trace, is my data cache-friendly: JSON Lines of token ids, or of "
            "text, whose bytes then stand in for tokens.",
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        list[int] | None,
        typer.Option(help="Tokens; repeatable; default powers of two.", show_default=False),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="lru, fifo, belady; repeatable; default all.", show_default=False),
    ] = None,
    order: Annotated[
        str, typer.Option(help="Which end of a prompt LRU touches first: leaf (as vLLM), head.")
    ] = "leaf",
    rule: Annotated[
        str,
        typer.Option(help="tokens: a partial last block counts; vllm: full blocks, last token not"),
    ] = "tokens",
    of: Annotated[
        str,
        typer.Option(
            help="What the hits are a part of: tokens (of all prompts); eligible (tokens that an "
            "earlier request could have left); blocks; requests (mean over them)."
        ),
    ] = "tokens",
    drop_last_block: Annotated[
        bool,
        typer.Option(
            "--drop-last-block",
            help="The last block of a hit is computed anew, as with EAGLE and MTP.",
        ),
    ] = False,
    last: Annotated[
        float, typer.Option(help="Part of the requests that count; all of them warm the cache.")
    ] = 1.0,
    model: Annotated[
        str | None,
        typer.Option(help="Say capacities in GB of this model's KV cache, too."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of the KV cache, for --model; default bfloat16.", show_default=False),
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="auto, mooncake, bailian, azure, kv-cache-tester, lengths, sglang, llmservingsim, "
            "dynamo, tracelab, trie, burstgpt, vllm-custom, prompts.",
        ),
    ] = "auto",
    block_size: Annotated[
        int | None, typer.Option(help="Tokens of a block; default what the trace says.")
    ] = None,
    as_lengths: Annotated[
        bool, typer.Option("--as-lengths", help="Take the lengths alone: nothing is shared.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Requests to read at most.")] = None,
    skip_bad: Annotated[
        bool, typer.Option(help="Leave bad lines and files out and count them.")
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON Lines.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the figure to this file.", show_default=False)
    ] = None,
) -> int:
    """Show a trace's prefix-cache hit rate against capacity, for LRU, FIFO and the best possible.

    All capacities of LRU come from one pass. A hit is a leading run of blocks that the cache holds.
    """
    path, format_ = _asked(trace, prompts, format_)
    column = _column(of)
    token_gb = _token_gb(model, dtype)
    check_outputs(save=None, html=html)
    # pandas and numba take their time to import, and bad arguments should fail before that
    from apclab.replay import POLICIES, check_asked, finding, lru_curve, stream_of
    from apclab.replay import replay as run
    from apclab.traces import read_trace

    policies = policy or POLICIES
    check_asked(policies, order, last)
    room = memory_available() // 2
    opened = read_trace(
        path, format=format_, block_size=block_size, skip_bad=skip_bad, limit=limit,
        as_lengths=as_lengths, most_bytes=room,
    )  # fmt: skip
    check_asked(policies, order, last, capacity or (), opened.block_size or 1)
    with watch("replaying; Ctrl-C stops and keeps what is done") as watching:
        watching.progress(0.0, "reading the trace")
        try:
            stream = stream_of(opened, rule=rule, most_bytes=room, cancelled=watching.cancelled)
        except Stopped:  # half a trace is no result
            raise CommandError(
                process.exit_status(), "stopped before the trace was read to its end"
            ) from None
        table = run(
            stream, capacities=capacity or None, policies=policies, order=order,
            last=last, drop_last_block=drop_last_block, cancelled=watching.cancelled,
            progress=watching.progress,
        )  # fmt: skip
        stopped = watching.cancelled()
    curve = None
    if "lru" in set(table["policy"]) and not stopped:
        curve = lru_curve(stream, order=order, last=last, drop_last_block=drop_last_block)
    sentence = finding(table, curve, opened.unit)
    if json_lines:
        for row in table.to_dict("records"):
            print(json.dumps({name: _plain(value) for name, value in row.items()}), flush=True)
    elif len(table):
        _print(table, column, token_gb, opened.unit)
        console = stdout()
        console.print(
            f"{opened.path}: {len(stream.input_lens):,} requests, "
            f"{int(stream.input_lens.sum()):,} prompt {opened.unit}, {stream.distinct_blocks:,} "
            f"different blocks of {stream.block_size} {opened.unit} ({opened.format})",
            markup=False, soft_wrap=True,
        )  # fmt: skip
        console.print(sentence, markup=False, soft_wrap=True)
    for line in opened.remarks():
        stderr().print(line, markup=False)
    if html is not None and len(table):
        from apclab import figures

        title = f"{sentence} ({opened.path.name})"
        write_figure(figures.hit_rate(table, curve, title=title, theme="light"), html)
    if stopped:
        stderr().print("stopped by Ctrl-C")
    return 130 if stopped else 0


def _asked(trace: Path | None, prompts: Path | None, format_: str) -> tuple[Path, str]:
    """The file that was named, and its format."""
    if trace is not None and prompts is not None:
        raise CommandError(2, f"a TRACE or --prompts, not both: got {trace} and {prompts}")
    if prompts is not None:
        if format_ not in ("auto", "prompts"):
            raise CommandError(2, f"--prompts has a format of its own, got --format {format_}")
        return prompts, "prompts"
    if trace is None:
        raise CommandError(2, "name a TRACE, or --prompts FILE (see: apclab replay --help)")
    return trace, format_


def _column(of: str) -> str:
    if of not in _RATES:
        raise CommandError(2, f"--of must be one of {', '.join(_RATES)}, got {of!r}")
    return _RATES[of]


def _token_gb(model: str | None, dtype: str | None) -> float | None:
    """GB of a token in the KV cache of the model, None without one."""
    if model is None:
        if dtype is not None:
            raise CommandError(2, "--dtype is of --model's KV cache; name the model, too")
        return None
    shape = model_named(model)
    return shape.token_bytes(dtype or "bfloat16") * shape.num_layers / 1e9


def _plain(value: Any) -> Any:
    """JSON knows no infinity: a cache without limit has the capacity null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(table: Any, column: str, token_gb: float | None, unit: str) -> None:
    shown = Table(box=None, pad_edge=False)
    shown.add_column(f"capacity ({unit})", justify="right")
    shown.add_column("blocks", justify="right")
    if token_gb is not None:
        shown.add_column("KV GB", justify="right")
    rates = table.pivot(index="capacity_tokens", columns="policy", values=column)
    for policy in (policies := list(dict.fromkeys(table["policy"]))):
        shown.add_column(f"{policy} (%)", justify="right")
    blocks = table.groupby("capacity_tokens")["capacity_blocks"].first()
    for tokens, row in rates.iterrows():
        without = math.isinf(tokens)
        cells = ["no limit", ""] if without else [f"{tokens:,.0f}", f"{blocks[tokens]:,.0f}"]
        if token_gb is not None:
            cells.append("" if without else f"{tokens * token_gb:,.2f}")
        cells += ["-" if row[policy] != row[policy] else f"{100 * row[policy]:.2f}"
                  for policy in policies]  # fmt: skip
        shown.add_row(*cells)
    stdout().print(shown)
