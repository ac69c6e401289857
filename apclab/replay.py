"""A trace through prefix caches of every size: hit rate against capacity. No engine, no clock."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from apclab.cache_sim import (
    NEVER,
    Cancelled,
    Stopped,
    belady_hits,
    fifo_hits,
    lru_depths,
    needed_capacity,
)
from apclab.traces import Trace, TraceError, TraceRequest, read_trace

Int64 = NDArray[np.int64]

POLICIES = ("lru", "fifo", "belady")
RULES = ("tokens", "vllm")
COLUMNS = (
    *("policy", "capacity_tokens", "capacity_blocks"),
    *("hit_rate", "eligible_hit_rate", "block_hit_rate", "request_hit_rate"),
)
# the stream itself, renamed, sorted, depths, trees and heaps of the caches: the most at a time
ID_BYTES = 100
MOST_BYTES = 2**33
_LENGTHS_BLOCK = 16  # of a trace that names no blocks, where that is what is asked for


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
    requests: Iterable[TraceRequest],
    block_size: int | None = None,
    *,
    rule: str = "tokens",
    most_bytes: int = MOST_BYTES,
    cancelled: Cancelled | None = None,
) -> Stream:
    """Collect the block ids of a trace's prompts.

    Args:
        requests: a trace, or requests.
        block_size: tokens of a block; a trace knows its own.
        rule: "tokens" counts a partial last block as the tokens it has, as trace tools do; "vllm"
            leaves it out, and the block that holds the last token, too: vLLM computes that one.
        most_bytes: memory that a replay of the stream may take.
        cancelled: asked before each request; true stops.

    Raises:
        Stopped: it was cancelled.
        TraceError: the trace is bad, names no blocks, or too many.
        ValueError: another rule, or no block size.
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    if isinstance(requests, Trace):
        if requests.block_size is None and not requests.as_lengths:
            raise TraceError(
                f"{requests.path}: {requests.format} tells lengths only and names no blocks: no "
                f"prefix is in it, so it has no hits to replay (--as-lengths, as_lengths=True, "
                f"reads it with nothing shared)"
            )
        block_size = requests.block_size or _LENGTHS_BLOCK
    if block_size is None or block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    ids, lens, counts = array("q"), array("q"), array("q")
    for request in requests:
        if cancelled and cancelled():
            raise Stopped
        used = len(request.hash_ids)
        if rule == "vllm":
            used = min(used, (request.input_len - 1) // block_size)
        ids.extend(request.hash_ids[:used])
        lens.append(request.input_len)
        counts.append(used)
        if len(ids) * ID_BYTES > most_bytes:
            raise TraceError(
                f"the first {len(lens):,} requests name {len(ids):,} blocks; a replay of them "
                f"takes {len(ids) * ID_BYTES / 1e9:.2f} GB ({ID_BYTES} bytes each), "
                f"{most_bytes / 1e9:.2f} may be taken: read fewer requests (limit, --limit)"
            )
    starts = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))]).astype(np.int64)
    return Stream(np.array(ids, np.int64), starts, np.array(lens, np.int64), block_size)


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
            the trace ever names.
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
        ValueError: an argument is out of range.
    """
    if unknown := set(policies) - set(POLICIES):
        raise ValueError(f"policies must be some of {', '.join(POLICIES)}, got {min(unknown)!r}")
    if not 0 < last <= 1:
        raise ValueError(f"last must be above 0 and at most 1, got {last}")
    if isinstance(trace, Path | str):
        trace = read_trace(trace)
    rows: list[dict[str, Any]] = []
    try:
        if not isinstance(trace, Stream):
            trace = stream_of(trace, rule=rule, cancelled=cancelled)
        sizes = _sizes(trace, capacities)
        depths = lru_depths(trace.ids, trace.starts, order=order, cancelled=cancelled)
        needed = needed_capacity(depths, trace.starts)
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


def _sizes(stream: Stream, capacities: Sequence[int] | None) -> list[tuple[float, int]]:
    """Tokens and blocks of each capacity, the last one without limit."""
    if capacities is None:
        most = stream.distinct_blocks * stream.block_size
        capacities = [2**k for k in range(stream.block_size.bit_length(), most.bit_length() + 1)]
    capacities = list(dict.fromkeys(capacities))
    blocks = [min(int(tokens) // stream.block_size, NEVER - 1) for tokens in capacities]
    if blocks and min(blocks) < 1:
        raise ValueError(
            f"capacities must hold a block of {stream.block_size} tokens, got {min(capacities)}"
        )
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
    needed = needed_capacity(lru_depths(stream.ids, stream.starts, order=order), stream.starts)
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


def finding(table: pd.DataFrame, unit: str = "tokens") -> str:
    """One sentence on what `replay` found, "" where there is nothing to say.

    Args:
        table: what `replay` returned.
        unit: what the trace counts in, see `Trace.unit`.
    """
    limits = table[np.isinf(table["capacity_tokens"])]
    if limits.empty:
        return ""
    most = float(limits["hit_rate"].max())
    text = f"a cache without limit hits {most:.1%} of the prompt {unit}"
    sized = table[(table["policy"] == "lru") & np.isfinite(table["capacity_tokens"])]
    enough = sized[sized["hit_rate"] >= most / 2]
    if most == 0 or enough.empty:
        return f"{text}."
    tokens = float(enough["capacity_tokens"].min())
    text += f"; half of that takes LRU {tokens:,.0f} {unit}"
    there = table[table["capacity_tokens"] == tokens].set_index("policy")["hit_rate"]
    if "belady" in there:
        text += f", where the best that knows the future has {there['belady']:.1%}"
    return f"{text}."
