"""A stream of prompts through prefix caches of every size: hit rate against capacity."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from apclab.arguments import (
    each,
    function_or_none,
    instance,
    one_of,
    positive,
    real,
    some_of,
    truth,
)
from apclab.cache_sim import (
    NEVER,
    ORDERS,
    Cancelled,
    Stopped,
    belady_hits,
    fifo_hits,
    lru_depths,
    needed_capacity,
)
from apclab.replay.stream import RULES, Int64, Stream, stream_of
from apclab.traces import Trace, read_trace

POLICIES = ("lru", "fifo", "belady")
COLUMNS = (
    *("policy", "capacity_tokens", "capacity_blocks"),
    *("hit_rate", "eligible_hit_rate", "block_hit_rate", "request_hit_rate"),
)


def replay(
    trace: Trace | Stream | Path | str,
    *,
    capacities: Sequence[int] | None = None,
    policies: Sequence[str] = POLICIES,
    order: str = "leaf",
    rule: str = "tokens",
    last: float = 1.0,
    drop_last_block: bool = False,
    cancelled: Cancelled | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> pd.DataFrame:
    """Prefix-cache hit rates of a trace for capacities and policies.

    A request hits as many blocks as its longest leading run of cached ids. LRU is exact for every
    capacity from one pass; FIFO and Belady's optimum are simulated for each.

    Args:
        trace: what `read_trace` returns, a stream, or a path.
        capacities: tokens, one named twice counts once; None takes the powers of two up to all that
            the trace ever names, and the least with which LRU hits half of what can be hit.
        policies: some of POLICIES.
        order: which end of a request LRU touches first; see `lru_depths`. FIFO inserts head first.
        rule: what of a prompt can be hit; see `stream_of`. Ignored for a stream.
        last: part of the requests that count, from the end, 0 to 1; all of them warm the cache.
        drop_last_block: the last block of each hit is computed anew, as vLLM does with EAGLE and
            MTP.
        cancelled: asked now and then; once true, the rest is left out.
        progress: told the part done, 0 to 1, and what is being replayed.

    Returns:
        A row a policy and capacity, the last capacity of each policy without limit: policy,
        capacity_tokens, capacity_blocks (both inf without limit), hit_rate (hit tokens / prompt
        tokens), eligible_hit_rate (hit tokens / tokens that an earlier request could have left,
        NaN where there are none), block_hit_rate, request_hit_rate (mean over requests).

    Raises:
        TraceError: the trace is bad.
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """
    instance("trace", trace, Trace | Stream | Path | str, "a trace, a stream or a path")
    for name, value in (("cancelled", cancelled), ("progress", progress)):
        function_or_none(name, value)
    one_of("rule", rule, RULES)
    truth("drop_last_block", drop_last_block)
    check_asked(policies, order, last, () if capacities is None else capacities)
    if isinstance(trace, Path | str):
        trace = read_trace(trace)
    rows: list[dict[str, Any]] = []
    try:
        if not isinstance(trace, Stream):
            trace = stream_of(trace, rule=rule, cancelled=cancelled)
        depths = lru_depths(trace.ids, trace.starts, order=order, cancelled=cancelled)
        needed = needed_capacity(depths, trace.starts)
        if capacities is None:
            capacities = _usual(trace, _curve(trace, needed, last, drop_last_block))
        check_asked(policies, order, last, capacities, trace.block_size)
        sizes = _sizes(trace, capacities)
        # what a cache without limit would hold: blocks that an earlier request has named
        eligible = _hits(trace, "lru", NEVER - 1, needed)
        asked = [(policy, *size) for policy in dict.fromkeys(policies) for size in sizes]
        for policy, tokens, count in asked:
            if cancelled and cancelled():
                break
            if progress:
                progress(len(rows) / len(asked), f"{policy}, {tokens:,.0f} tokens")
            hits = _hits(trace, policy, count, needed, cancelled)
            rows.append(
                {"policy": policy, "capacity_tokens": float(tokens),
                 "capacity_blocks": np.inf if tokens == np.inf else float(count),
                 **_rates(trace, hits, eligible, last, drop_last_block)}
            )  # fmt: skip
    except Stopped:
        pass
    kinds = dict.fromkeys(COLUMNS[1:], np.float64) if not rows else {}
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(kinds)


def check_asked(
    policies: Sequence[str], order: str, last: float, capacities: Sequence[int] = (),
    block_size: int = 1,
) -> None:  # fmt: skip
    """Raise TypeError or ValueError for what `replay` would refuse, before a trace is read."""
    some_of("policies", policies, POLICIES)
    one_of("order", order, ORDERS)
    _check_last(last)
    sizes = [positive("capacities", size) for size in each("capacities", capacities, "tokens")]
    if sizes and min(sizes) < block_size:
        raise ValueError(f"capacities must hold a block of {block_size} tokens, got {min(sizes)}")


def _check_last(last: float) -> None:
    if not 0 < real("last", last) <= 1:
        raise ValueError(f"last must be above 0 and at most 1, got {last}")


def _usual(stream: Stream, curve: pd.DataFrame) -> list[int]:
    most = stream.distinct_blocks * stream.block_size
    powers = [2**k for k in range(stream.block_size.bit_length(), most.bit_length() + 1)]
    return sorted({*powers, *_half_way(curve)})


def _half_way(curve: pd.DataFrame) -> list[int]:
    """The least tokens with which LRU hits half of what a cache without limit does, if any."""
    reached = curve[curve["hit_rate"] >= curve["hit_rate"].max() / 2]
    return [int(tokens) for tokens in reached["capacity_tokens"][:1]]


def _sizes(stream: Stream, capacities: Sequence[int]) -> list[tuple[float, int]]:
    """Tokens and blocks of each capacity, the last one without limit."""
    capacities = list(dict.fromkeys(capacities))
    blocks = [min(int(tokens) // stream.block_size, NEVER - 1) for tokens in capacities]
    return [*zip(capacities, blocks, strict=True), (np.inf, NEVER - 1)]


def _hits(
    stream: Stream, policy: str, capacity: int, needed: Int64, cancelled: Cancelled | None = None
) -> Int64:
    """Leading blocks that each request finds, int64 [requests]."""
    match policy:
        case "fifo":
            return fifo_hits(stream.ids, stream.starts, capacity, cancelled=cancelled)
        case "belady":
            return belady_hits(stream.ids, stream.starts, capacity, cancelled=cancelled)
    found = np.concatenate([[0], np.cumsum(needed <= capacity)])
    hits: Int64 = found[stream.starts[1:]] - found[stream.starts[:-1]]
    return hits


def _rates(
    stream: Stream, hits: Int64, eligible: Int64, last: float, drop_last_block: bool
) -> dict[str, float]:
    """Hit rates of the last part of a stream from the leading blocks that each request found."""
    if drop_last_block:
        hits = np.maximum(hits - 1, 0)
    first = _first_counted(len(hits), last)
    lens = stream.input_lens[first:]
    tokens = np.minimum(hits[first:] * stream.block_size, lens)
    could = np.minimum(eligible[first:] * stream.block_size, lens).sum()
    blocks = np.diff(stream.starts)[first:].sum()
    return {
        "hit_rate": float(tokens.sum() / lens.sum()),
        "eligible_hit_rate": float(tokens.sum() / could) if could else float("nan"),
        "block_hit_rate": float(hits[first:].sum() / blocks) if blocks else 0.0,
        "request_hit_rate": float((tokens / lens).mean()),
    }


def _first_counted(requests: int, last: float) -> int:
    return min(int(requests * (1 - last)), requests - 1)


def lru_curve(
    stream: Stream, *, order: str = "leaf", last: float = 1.0, drop_last_block: bool = False
) -> pd.DataFrame:
    """The whole LRU curve: each capacity at which the hit rate rises, and the rate from there on.

    Returns:
        capacity_tokens and hit_rate, both rising.
    """
    instance("stream", stream, Stream, "a Stream")
    one_of("order", order, ORDERS)
    truth("drop_last_block", drop_last_block)
    _check_last(last)
    depths = lru_depths(stream.ids, stream.starts, order=order)
    return _curve(stream, needed_capacity(depths, stream.starts), last, drop_last_block)


def _curve(stream: Stream, needed: Int64, last: float, drop_last_block: bool) -> pd.DataFrame:
    if drop_last_block:
        # a block is used where the one behind it is found, too
        needed = np.append(needed[1:], NEVER)
        needed[stream.starts[1:][np.diff(stream.starts) > 0] - 1] = NEVER
    first = _first_counted(len(stream.input_lens), last)
    lens = np.diff(stream.starts)
    request = np.repeat(np.arange(len(lens)), lens)
    place = np.arange(len(stream.ids)) - np.repeat(stream.starts[:-1], lens)
    tokens = np.minimum(stream.block_size, stream.input_lens[request] - place * stream.block_size)
    found = (needed < NEVER) & (request >= first)
    capacities, index = np.unique(needed[found], return_inverse=True)
    gained = np.bincount(index, weights=tokens[found], minlength=len(capacities))
    total = stream.input_lens[first:].sum()
    return pd.DataFrame(
        {"capacity_tokens": capacities * stream.block_size, "hit_rate": np.cumsum(gained) / total}
    )


def finding(table: pd.DataFrame, curve: pd.DataFrame | None = None, unit: str = "tokens") -> str:
    """One sentence on what `replay` found, "" where there is nothing to say.

    Args:
        table: what `replay` returned.
        curve: what `lru_curve` returned, for an exact capacity; None: of those in the table.
        unit: what the trace counts in, see `Trace.unit`.
    """
    limits = table[np.isinf(table["capacity_tokens"])]
    if limits.empty:
        return ""
    most = float(limits["hit_rate"].max())
    text = f"a cache without limit hits {most:.1%} of the prompt {unit}"
    if curve is not None:
        enough = _half_way(curve)
    else:
        sized = table[(table["policy"] == "lru") & np.isfinite(table["capacity_tokens"])]
        enough = sized[sized["hit_rate"] >= most / 2]["capacity_tokens"].nsmallest(1).tolist()
    if most == 0 or not enough:
        return f"{text}."
    tokens = enough[0]
    about = "at most " if curve is None else ""
    text += f"; half of that takes LRU {about}{tokens:,.0f} {unit}"
    there = table[table["capacity_tokens"] == tokens].set_index("policy")["hit_rate"]
    if "belady" in there:
        text += f", where the best that knows the future has {there['belady']:.1%}"
    return f"{text}."
