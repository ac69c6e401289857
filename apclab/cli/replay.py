"""`apclab replay`: a request trace through prefix caches of every size."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from apclab.cli.report import check_outputs, write_figure
from apclab.cli.terminal import stderr, stdout, watch
from apclab.specs import model as model_named


def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            help="A file of Mooncake, Bailian, Azure or kv-cache-tester, plain or gzipped; or a "
            "folder of kv-cache-tester sessions.",
        ),
    ],
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
    last: Annotated[
        float, typer.Option(help="Part of the requests that count; all of them warm the cache.")
    ] = 1.0,
    model: Annotated[
        str | None,
        typer.Option(help="Say capacities in GB of this model's KV cache, too."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of the KV cache, for --model.")] = "bfloat16",
    format_: Annotated[
        str,
        typer.Option("--format", help="mooncake, bailian, azure, kv-cache-tester, lengths, auto."),
    ] = "auto",
    block_size: Annotated[
        int | None, typer.Option(help="Tokens of a block; default what the trace says.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Requests to read at most.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Leave bad lines out and count them.")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON Lines.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the figure to this file.", show_default=False)
    ] = None,
) -> int:
    """Show a trace's prefix-cache hit rate against capacity, for LRU, FIFO and the best possible.

    All capacities of LRU come from one pass. A hit is a leading run of blocks that the cache holds.
    """
    check_outputs(save=None, html=html)
    shape = model_named(model) if model else None
    # pandas and numba take their time to import, and bad arguments should fail before that
    from apclab.replay import POLICIES, finding, lru_curve, stream_of
    from apclab.replay import replay as run
    from apclab.traces import read_trace

    opened = read_trace(
        trace, format=format_, block_size=block_size, skip_bad=skip_bad, limit=limit
    )
    with watch("replaying; Ctrl-C stops and keeps what is done") as watching:
        watching.progress(0.0, "reading the trace")
        stream = stream_of(opened, rule=rule)
        table = run(
            stream, capacities=capacity or None, policies=policy or POLICIES, order=order,
            last=last, cancelled=watching.cancelled, progress=watching.progress,
        )  # fmt: skip
        stopped = watching.cancelled()
    gigabytes = shape.token_bytes(dtype) * shape.num_layers / 1e9 if shape else None
    if json_lines:
        for row in table.to_dict("records"):
            print(json.dumps({name: _plain(value) for name, value in row.items()}), flush=True)
    else:
        _print(table, gigabytes)
        console = stdout()
        console.print(
            f"{opened.path.name}: {len(stream.input_lens):,} requests, "
            f"{int(stream.input_lens.sum()):,} prompt tokens, {stream.distinct_blocks:,} different "
            f"blocks of {stream.block_size} tokens ({opened.format})",
            markup=False,
        )
        console.print(finding(table), markup=False)
    if opened.skipped:
        first = opened.problems[0]
        stderr().print(f"{opened.skipped} bad lines skipped; the first: {first}", markup=False)
    if html is not None:
        from apclab import figures

        drawn = lru_curve(stream, order=order, last=last) if "lru" in set(table["policy"]) else None
        write_figure(figures.hit_rate(table, drawn, title=finding(table), theme="light"), html)
    return 130 if stopped else 0


def _plain(value: Any) -> Any:
    """JSON knows no infinity: a cache without limit has the capacity null."""
    return None if isinstance(value, float) and math.isinf(value) else value


def _print(table: Any, gigabytes: float | None) -> None:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("capacity (tokens)", justify="right")
    shown.add_column("blocks", justify="right")
    if gigabytes is not None:
        shown.add_column("KV GB", justify="right")
    rates = table.pivot(index="capacity_tokens", columns="policy", values="hit_rate")
    for policy in (policies := list(dict.fromkeys(table["policy"]))):
        shown.add_column(f"{policy} (%)", justify="right")
    blocks = table.groupby("capacity_tokens")["capacity_blocks"].first()
    for tokens, row in rates.iterrows():
        without = math.isinf(tokens)
        cells = ["no limit", ""] if without else [f"{tokens:,.0f}", f"{blocks[tokens]:,.0f}"]
        if gigabytes is not None:
            cells.append("" if without else f"{tokens * gigabytes:,.2f}")
        cells += ["-" if row[policy] != row[policy] else f"{100 * row[policy]:.2f}"
                  for policy in policies]  # fmt: skip
        shown.add_row(*cells)
    stdout().print(shown)
