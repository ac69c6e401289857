"""Caches simulated on a stream of accesses: depths of LRU, hits of FIFO and of Belady's optimum.

A stream is a list of ids and where each request of it starts. A request looks all its ids up
first, then touches and inserts them all, as a pool does that admits a whole prompt. What an id is,
a prefix or a line of memory, the caller knows. No pool and no clock.

numba compiles the loops when they are first used, and keeps the machine code on disk. They run
beside the caller, who looks now and then whether to stop them.
"""

import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apclab.arguments import one_of

Int64 = NDArray[np.int64]
Flag = NDArray[np.bool_]  # [1]

NEVER = 2**62  # depth of an id that no cache can hold yet, next use of one that has none
ORDERS = ("leaf", "head")
_LOOK_S = 0.05  # between two looks at the cancel flag

Cancelled = Callable[[], bool]


class Stopped(Exception):  # noqa: N818 - not an error: the caller asked for it
    """A simulation was cancelled before its end."""


@cache
def _compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    import numba
    from apclab_kernels.cpu_cache import CACHED  # where there is a folder to keep it in

    compiled: Callable[..., Any] = numba.njit(cache=CACHED, nogil=True)(loop)
    return compiled


def _finished(loop: Callable[..., Any], cancelled: Cancelled | None, *arguments: Any) -> Int64:
    """What a loop returns, run in a thread so that a signal reaches the caller at once.

    Raises:
        Stopped: `cancelled` said so.
    """
    stop = np.zeros(1, np.bool_)
    result: Int64
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_compiled(loop), *arguments, stop)
        try:
            while True:
                try:
                    result = running.result(_LOOK_S)
                except TimeoutError:
                    if cancelled and cancelled():
                        raise Stopped from None
                else:
                    return result
        finally:
            stop[0] = True  # also where a signal ends the wait


def dense(ids: Int64) -> tuple[Int64, int]:
    """The ids fit to index arrays, and how long those must be; renamed only where they are not."""
    if len(ids) and ids.min() >= 0 and ids.max() < len(ids):
        return ids, int(ids.max()) + 1
    distinct, renamed = np.unique(ids, return_inverse=True)
    return renamed.astype(np.int64), len(distinct)


def lru_depths(
    ids: Int64, starts: Int64, *, order: str = "leaf", cancelled: Cancelled | None = None
) -> Int64:
    """Place of each id in the LRU stack when its request looks it up: 1 is the last one touched.

    A cache of C blocks holds exactly the ids up to depth C, so one pass answers for every C
    (Mattson et al., 1970).

    Args:
        ids: int64 [accesses], each at most once in a request.
        starts: int64 [requests + 1], where requests start in `ids`; the last is the end.
        order: "leaf" touches a request's last id first, as vLLM frees blocks, so that its first
            ones stay longest; "head" touches the first id first.
        cancelled: asked now and then; true stops.

    Returns:
        int64 [accesses], NEVER at an id's first use.

    Raises:
        Stopped: it was cancelled.
        ValueError: another order.
    """
    _check_order(order)
    renamed, distinct = dense(ids)
    return _finished(_lru, cancelled, renamed, starts, distinct, order == "leaf")


def _lru(ids: Int64, starts: Int64, distinct: int, leaf: bool, stop: Flag) -> Int64:
    """A Fenwick tree over time counts the ids that were touched since an id's last touch."""
    n = len(ids)
    last = np.full(distinct, -1, np.int64)
    tree = np.zeros(n + 1, np.int64)
    depths = np.full(n, NEVER, np.int64)
    time = 0
    held = 0
    for r in range(len(starts) - 1):
        if stop[0]:
            break
        first, end = starts[r], starts[r + 1]
        for i in range(first, end):
            if last[ids[i]] >= 0:
                older, j = 0, last[ids[i]] + 1
                while j > 0:
                    older += tree[j]
                    j -= j & -j
                depths[i] = held - older + 1
        for k in range(end - first):
            x = ids[end - 1 - k] if leaf else ids[first + k]
            if last[x] >= 0:
                j = last[x] + 1
                while j <= n:
                    tree[j] -= 1
                    j += j & -j
            else:
                held += 1
            last[x] = time
            j = time + 1
            while j <= n:
                tree[j] += 1
                j += j & -j
            time += 1
    return depths


def needed_capacity(depths: Int64, starts: Int64) -> Int64:
    """Blocks an LRU cache needs to find each id *and* all before it in its request.

    Args:
        depths: int64 [accesses], from `lru_depths`.
        starts: as there.
    """
    return _finished(_running_most, None, depths, starts)


def _running_most(depths: Int64, starts: Int64, stop: Flag) -> Int64:
    needed = depths.copy()
    for r in range(len(starts) - 1):
        if stop[0]:
            break
        for i in range(starts[r] + 1, starts[r + 1]):
            needed[i] = max(needed[i], needed[i - 1])
    return needed


def fifo_hits(
    ids: Int64, starts: Int64, capacity: int, *, order: str = "head",
    cancelled: Cancelled | None = None,
) -> Int64:  # fmt: skip
    """How many leading ids of each request a first-in-first-out cache holds.

    Args:
        ids: as in `lru_depths`.
        starts: as in `lru_depths`.
        capacity: blocks, at least 1.
        order: in which a request's missing ids are inserted.
        cancelled: as in `lru_depths`.

    Returns:
        int64 [requests].

    Raises:
        Stopped: it was cancelled.
        ValueError: no capacity, or another order.
    """
    _check_order(order)
    renamed, distinct = dense(ids)
    size = min(_check_capacity(capacity), max(1, distinct))
    return _finished(_fifo, cancelled, renamed, starts, distinct, size, order == "leaf")


def _fifo(ids: Int64, starts: Int64, distinct: int, capacity: int, leaf: bool, stop: Flag) -> Int64:
    held = np.zeros(distinct, np.bool_)
    ring = np.full(capacity, -1, np.int64)
    at = 0
    hits = np.zeros(len(starts) - 1, np.int64)
    for r in range(len(starts) - 1):
        if stop[0]:
            break
        first, end = starts[r], starts[r + 1]
        while first + hits[r] < end and held[ids[first + hits[r]]]:
            hits[r] += 1
        for k in range(end - first):
            x = ids[end - 1 - k] if leaf else ids[first + k]
            if held[x]:
                continue
            if ring[at] >= 0:
                held[ring[at]] = False
            ring[at] = x
            held[x] = True
            at = (at + 1) % capacity
    return hits


def belady_hits(
    ids: Int64, starts: Int64, capacity: int, *, cancelled: Cancelled | None = None
) -> Int64:
    """How many leading ids of each request a cache holds that knows the future.

    It keeps no id that is never asked for again, and drops the one whose next use is farthest, of
    equals the one deepest in its request (Belady, 1966). Only leading runs count as hits, for which
    this is a good bound, not a proven one.

    Args:
        ids: as in `lru_depths`.
        starts: as in `lru_depths`.
        capacity: blocks, at least 1.
        cancelled: as in `lru_depths`.

    Returns:
        int64 [requests].

    Raises:
        Stopped: it was cancelled.
        ValueError: no capacity.
    """
    renamed, distinct = dense(ids)
    size = min(_check_capacity(capacity), max(1, distinct))
    return _finished(_belady, cancelled, renamed, starts, distinct, size)


def _belady(ids: Int64, starts: Int64, distinct: int, capacity: int, stop: Flag) -> Int64:
    requests = len(starts) - 1
    following = np.full(len(ids), NEVER, np.int64)  # the request that uses an id next
    seen = np.full(distinct, NEVER, np.int64)
    for r in range(requests - 1, -1, -1):
        for i in range(starts[r], starts[r + 1]):
            following[i] = seen[ids[i]]
            seen[ids[i]] = r
    # an id's next use, -1 while it is not held; older entries of the heap are out of date
    held = np.full(distinct, -1, np.int64)
    count = 0
    heap = [(np.int64(0), np.int64(0), np.int64(0)) for _ in range(0)]
    hits = np.zeros(requests, np.int64)
    for r in range(requests):
        if stop[0]:
            break
        first, end = starts[r], starts[r + 1]
        while first + hits[r] < end and held[ids[first + hits[r]]] >= 0:
            hits[r] += 1
        for i in range(first, end):
            x = ids[i]
            if held[x] >= 0:
                count -= 1
                held[x] = -1
            if following[i] < NEVER:
                held[x] = following[i]
                count += 1
                heapq.heappush(heap, (-following[i], -(i - first), x))
        while count > capacity:
            use, _, x = heapq.heappop(heap)
            if held[x] == -use:
                held[x] = -1
                count -= 1
    return hits


def _check_order(order: str) -> None:
    one_of("order", order, ORDERS)


def _check_capacity(capacity: int) -> int:
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1 block, got {capacity}")
    return capacity
