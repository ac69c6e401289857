"""Simulated caches against naive ones that hold lists."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apclab import cache_sim
from apclab.cache_sim import (
    NEVER,
    Stopped,
    belady_hits,
    fifo_hits,
    lru_depths,
    needed_capacity,
)

Requests = list[list[int]]
# few ids, so that they come again; each at most once in a request
STREAMS = st.lists(st.lists(st.integers(0, 8), unique=True, max_size=6), min_size=1, max_size=14)


def stream(requests: Requests) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array([x for request in requests for x in request], np.int64)
    starts = np.cumsum([0, *map(len, requests)]).astype(np.int64)
    return ids * 7 - 3, starts  # ids need not be dense


def leading(request: list[int], held: list[int]) -> int:
    return next((i for i, x in enumerate(request) if x not in held), len(request))


def naive_lru(requests: Requests, capacity: int, leaf: bool) -> list[int]:
    held: list[int] = []  # least recent first
    hits = []
    for request in requests:
        hits.append(leading(request, held))
        for x in request[::-1] if leaf else request:
            if x in held:
                held.remove(x)
            held.append(x)
            held = held[-capacity:]
    return hits


def naive_fifo(requests: Requests, capacity: int, leaf: bool) -> list[int]:
    held: list[int] = []
    hits = []
    for request in requests:
        hits.append(leading(request, held))
        for x in request[::-1] if leaf else request:
            if x not in held:
                held = [*held, x][-capacity:]
    return hits


def naive_belady(requests: Requests, capacity: int) -> list[int]:
    held: dict[int, tuple[int, int]] = {}  # id -> next use, depth
    hits = []
    for r, request in enumerate(requests):
        hits.append(leading(request, list(held)))
        for depth, x in enumerate(request):
            held.pop(x, None)
            following = [later for later in range(r + 1, len(requests)) if x in requests[later]]
            if following:
                held[x] = (following[0], depth)
        while len(held) > capacity:
            del held[max(held, key=lambda x: (held[x], -x))]
    return hits


@settings(max_examples=150, deadline=None)
@given(STREAMS, st.integers(1, 10), st.sampled_from(["leaf", "head"]))
def test_lru_of_every_capacity_from_one_pass(requests: Requests, capacity: int, order: str) -> None:
    ids, starts = stream(requests)
    needed = needed_capacity(lru_depths(ids, starts, order=order), starts)
    hits = [int((needed[a:b] <= capacity).sum()) for a, b in pairwise(starts)]
    assert hits == naive_lru(requests, capacity, order == "leaf")


@settings(max_examples=150, deadline=None)
@given(STREAMS, st.integers(1, 10), st.sampled_from(["leaf", "head"]))
def test_fifo(requests: Requests, capacity: int, order: str) -> None:
    ids, starts = stream(requests)
    found = fifo_hits(ids, starts, capacity, order=order).tolist()
    assert found == naive_fifo(requests, capacity, order == "leaf")


@settings(max_examples=150, deadline=None)
@given(STREAMS, st.integers(1, 10))
def test_belady(requests: Requests, capacity: int) -> None:
    ids, starts = stream(requests)
    assert belady_hits(ids, starts, capacity).tolist() == naive_belady(requests, capacity)


def test_an_id_is_never_found_at_its_first_use() -> None:
    ids, starts = stream([[1, 2, 3], [1, 2, 4], [4]])
    depths = lru_depths(ids, starts)
    # leaf first: after the first request 1 is the most recent, after the second 1, 2, 4, 3
    assert depths.tolist() == [NEVER, NEVER, NEVER, 1, 2, NEVER, 3]
    assert needed_capacity(depths, starts).tolist() == [NEVER] * 3 + [1, 2, NEVER, 3]


def test_a_hit_behind_a_miss_is_no_hit() -> None:
    # FIFO of 2 holds 2 and 3, so the second request's first block is gone
    ids, starts = stream([[1, 2, 3], [1, 2, 3]])
    assert fifo_hits(ids, starts, 2).tolist() == [0, 0]
    assert fifo_hits(ids, starts, 3).tolist() == [0, 3]


def test_bad_arguments_are_named() -> None:
    ids, starts = stream([[1]])
    with pytest.raises(ValueError, match="order must be one of leaf, head, got 'tail'"):
        lru_depths(ids, starts, order="tail")
    with pytest.raises(ValueError, match="capacity must be at least 1 block, got 0"):
        fifo_hits(ids, starts, 0)
    with pytest.raises(ValueError, match="capacity must be at least 1 block, got -1"):
        belady_hits(ids, starts, -1)


def test_no_accesses_at_all() -> None:
    ids, starts = stream([[], []])
    assert lru_depths(ids, starts).tolist() == []
    assert fifo_hits(ids, starts, 3).tolist() == [0, 0]
    assert belady_hits(ids, starts, 3).tolist() == [0, 0]


def test_a_loop_is_stopped_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller looks at once, and a loop that was told to stop looks no further."""
    monkeypatch.setattr(cache_sim, "_LOOK_S", 0.0)
    ids, starts = stream([list(range(9))] * 200_000)
    with pytest.raises(Stopped):
        lru_depths(ids, starts, cancelled=lambda: True)
    for hits in (fifo_hits, belady_hits):
        with pytest.raises(Stopped):
            hits(ids, starts, 7, cancelled=lambda: True)
    ids, starts = stream([[1, 2]] * 5)
    renamed, distinct = cache_sim.dense(ids)
    told = np.ones(1, np.bool_)
    assert (cache_sim._lru(renamed, starts, distinct, True, told) == NEVER).all()
    assert not cache_sim._fifo(renamed, starts, distinct, 7, True, told).any()
    assert not cache_sim._belady(renamed, starts, distinct, 7, told).any()
