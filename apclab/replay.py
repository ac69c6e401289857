"""A trace through prefix caches of every size: hit rate against capacity. No engine, no clock."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from apclab.arguments import (
    each,
    function_or_none,
    instance,
    one_of,
    positive,
    real,
    some_of,
    whole_number,
)
from apclab.cache_sim import NEVER, belady_hits, fifo_hits, lru_depths, needed_capacity
from apclab.traces import Trace, TraceError, TraceRequest, read_trace

Int64 = NDArray[np.int64]

POLICIES = ("lru", "fifo", "belady")
RULES = ("tokens", "vllm")
COLUMNS = (
    *("policy", "capacity_tokens", "capacity_blocks"),
    *("hit_rate", "block_hit_rate", "request_hit_rate"),
)


@dataclass(frozen=True, eq=False)
class Stream:
    """The prompts of a trace as one stream of block ids.

    Attributes:
        ids: int64 [accesses].
        starts: int64 [requests + 1].
        input_lens: int64 [requests], tokens.
        block_size: tokens of a block.
    """

    ids: Int64
    starts: Int64
    input_lens: Int64
    block_size: int

    @property
    def distinct_blocks(self) -> int:
        """Different ids: what a cache without limit holds in the end."""
        return len(np.unique(self.ids))


def stream_of(
    requests: Iterable[TraceRequest], block_size: int | None = None, *, rule: str = "tokens"
) -> Stream:
    """Collect the block ids of a trace's prompts.

    Args:
        requests: a trace, or requests.
        block_size: tokens of a block; a trace knows its own.
        rule: "tokens" counts a partial last block as the tokens it has, as trace tools do; "vllm"
            leaves it out, and the block that holds the last token, too: vLLM computes that one.

    Raises:
        TraceError: the trace is bad, or names no blocks.
        TypeError: an argument is of another type.
        ValueError: another rule, or no block size.
    """
    one_of("rule", rule, RULES)
    instance("requests", requests, Iterable, "a trace or requests")
    if isinstance(requests, Trace):
        if requests.block_size is None:
            raise TraceError(
                f"{requests.path}: a trace of lengths names no blocks, so it has no hits to replay"
            )
        block_size = requests.block_size
    block_size = whole_number("block_size", block_size, 1)
    ids: list[NDArray[np.int64]] = []
    lens = []
    for request in requests:
        instance("requests", request, TraceRequest, "TraceRequests")
        used = len(request.hash_ids)
        if rule == "vllm":
            used = min(used, (request.input_len - 1) // block_size)
        ids.append(np.array(request.hash_ids[:used], np.int64))
        lens.append(request.input_len)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64)
    flat = np.concatenate([*ids, np.empty(0, np.int64)])
    return Stream(flat, starts, np.array(lens, np.int64), block_size)


def replay(
    trace: Trace | Stream | Path | str,
    *,
    capacities: Sequence[int] | None = None,
    policies: Sequence[str] = POLICIES,
    order: str = "leaf",
    rule: str = "tokens",
    last: float = 1.0,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> pd.DataFrame:
    """Prefix-cache hit rates of a trace for capacities and policies.

    A request hits as many blocks as its longest leading run of cached ids. LRU is exact for every
    capacity from one pass; FIFO and Belady's optimum are simulated for each.

    Args:
        trace: what `read_trace` returns, a stream, or a path.
        capacities: tokens; None takes the powers of two up to all that the trace ever names.
        policies: some of POLICIES.
        order: which end of a request LRU touches first; see `lru_depths`. FIFO inserts head first.
        rule: what of a prompt can be hit; see `stream_of`. Ignored for a stream.
        last: part of the requests that count, from the end, 0 to 1; all of them warm the cache.
        cancelled: asked before each row; once true, the rest is left out.
        progress: told the part done, 0 to 1, and what is being replayed.

    Returns:
        A row a policy and capacity, the last capacity of each policy without limit: policy,
        capacity_tokens, capacity_blocks (both inf without limit), hit_rate (hit tokens / prompt
        tokens), block_hit_rate, request_hit_rate (mean over requests).

    Raises:
        TraceError: the trace is bad.
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """
    instance("trace", trace, Trace | Stream | Path | str, "a trace, a stream or a path")
    policies = some_of("policies", policies, POLICIES)
    one_of("rule", rule, RULES)
    _check_last(last)
    for name, value in (("cancelled", cancelled), ("progress", progress)):
        function_or_none(name, value)
    if isinstance(trace, Path | str):
        trace = read_trace(trace)
    stream = trace if isinstance(trace, Stream) else stream_of(trace, rule=rule)
    if capacities is None:
        most = stream.distinct_blocks * stream.block_size
        capacities = [2**k for k in range(stream.block_size.bit_length(), most.bit_length() + 1)]
    capacities = each("capacities", capacities, "numbers of tokens")
    blocks = [int(positive("capacities", tokens)) // stream.block_size for tokens in capacities]
    if blocks and min(blocks) < 1:
        raise ValueError(
            f"capacities must hold a block of {stream.block_size} tokens, got {min(capacities)}"
        )
    needed = needed_capacity(lru_depths(stream.ids, stream.starts, order=order), stream.starts)
    sizes = [*zip(capacities, blocks, strict=True), (np.inf, NEVER - 1)]
    asked = [(policy, *size) for policy in policies for size in sizes]
    rows: list[dict[str, Any]] = []
    for policy, tokens, count in asked:
        if cancelled and cancelled():
            break
        if progress:
            progress(len(rows) / len(asked), f"{policy}, {tokens:,.0f} tokens")
        found = rates(stream, _hits(stream, policy, count, needed), last)
        without = tokens == np.inf
        rows.append(
            {"policy": policy, "capacity_tokens": float(tokens),
             "capacity_blocks": np.inf if without else float(count), **found}
        )  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _check_last(last: float) -> None:
    if not 0 < real("last", last) <= 1:
        raise ValueError(f"last must be above 0 and at most 1, got {last}")


def _hits(stream: Stream, policy: str, capacity: int, needed: Int64) -> Int64:
    """Leading blocks that each request finds, int64 [requests]."""
    match policy:
        case "fifo":
            return fifo_hits(stream.ids, stream.starts, capacity)
        case "belady":
            return belady_hits(stream.ids, stream.starts, capacity)
    found = np.concatenate([[0], np.cumsum(needed <= capacity)])
    hits: Int64 = found[stream.starts[1:]] - found[stream.starts[:-1]]
    return hits


def rates(stream: Stream, hits: Int64, last: float = 1.0) -> dict[str, float]:
    """Hit rates of the last part of a stream from the leading blocks that each request found."""
    first = _first_counted(len(hits), last)
    lens = stream.input_lens[first:]
    tokens = np.minimum(hits[first:] * stream.block_size, lens)
    blocks = np.diff(stream.starts)[first:].sum()
    return {
        "hit_rate": float(tokens.sum() / lens.sum()),
        "block_hit_rate": float(hits[first:].sum() / blocks) if blocks else 0.0,
        "request_hit_rate": float((tokens / lens).mean()),
    }


def _first_counted(requests: int, last: float) -> int:
    return min(int(requests * (1 - last)), requests - 1)


def lru_curve(stream: Stream, *, order: str = "leaf", last: float = 1.0) -> pd.DataFrame:
    """The whole LRU curve: each capacity at which the hit rate rises, and the rate from there on.

    Returns:
        capacity_tokens and hit_rate, both rising.
    """
    instance("stream", stream, Stream, "a Stream")
    _check_last(last)
    needed = needed_capacity(lru_depths(stream.ids, stream.starts, order=order), stream.starts)
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


def finding(table: pd.DataFrame) -> str:
    """One sentence on what `replay` found, "" where there is nothing to say."""
    limits = table[np.isinf(table["capacity_tokens"])]
    if limits.empty:
        return ""
    most = float(limits["hit_rate"].max())
    text = f"a cache without limit hits {most:.1%} of the prompt tokens"
    sized = table[(table["policy"] == "lru") & np.isfinite(table["capacity_tokens"])]
    enough = sized[sized["hit_rate"] >= most / 2]
    if most == 0 or enough.empty:
        return f"{text}."
    tokens = float(enough["capacity_tokens"].min())
    text += f"; half of that takes LRU {tokens:,.0f} tokens"
    there = table[table["capacity_tokens"] == tokens].set_index("policy")["hit_rate"]
    if "belady" in there:
        text += f", where the best that knows the future has {there['belady']:.1%}"
    return f"{text}."
