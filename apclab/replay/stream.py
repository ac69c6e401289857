"""The prompts of a trace as one stream of block ids. No cache."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apclab.arguments import function_or_none, instance, one_of, whole_number
from apclab.cache_sim import Cancelled, Stopped
from apclab.traces import Trace, TraceError, TraceRequest

Int64 = NDArray[np.int64]

RULES = ("tokens", "vllm")
# the stream itself, renamed, sorted, depths, trees and heaps of the caches: the most at a time
ID_BYTES = 120
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
        TypeError: an argument is of another type.
        ValueError: another rule, or no block size.
    """
    one_of("rule", rule, RULES)
    instance("requests", requests, Iterable, "a trace or requests")
    whole_number("most_bytes", most_bytes, 1)
    function_or_none("cancelled", cancelled)
    if isinstance(requests, Trace):
        if requests.block_size is None and not requests.as_lengths:
            raise TraceError(
                f"{requests.path}: {requests.format} tells lengths only and names no blocks: no "
                f"prefix is in it, so it has no hits to replay (--as-lengths, as_lengths=True, "
                f"reads it with nothing shared)"
            )
        block_size = requests.block_size or _LENGTHS_BLOCK
    block_size = whole_number("block_size", block_size, 1)
    ids, lens, counts = array("q"), array("q"), array("q")
    for request in requests:
        if cancelled and cancelled():
            raise Stopped
        instance("requests", request, TraceRequest, "TraceRequests")
        used = len(request.hash_ids)
        if rule == "vllm":
            used = min(used, (request.input_len - 1) // block_size)
        ids.extend(request.hash_ids[:used])
        lens.append(request.input_len)
        counts.append(used)
        if len(ids) * ID_BYTES > most_bytes:
            raise TraceError(
                f"the first {len(lens):,} requests name {len(ids):,} blocks; a replay of them "
                f"takes {len(ids) * ID_BYTES / 1e9:.3g} GB ({ID_BYTES} bytes each), "
                f"{most_bytes / 1e9:.3g} may be taken: read fewer requests (limit, --limit)"
            )
    starts = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))]).astype(np.int64)
    return Stream(np.array(ids, np.int64), starts, np.array(lens, np.int64), block_size)
