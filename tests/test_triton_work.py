"""How runs are cut into pieces of work for the Triton cascade, and what is left to the tails."""

from typing import Any

import numpy as np
import pytest
from apclab_kernels.runs import Runs, SharedRun, find_runs, tails_of
from apclab_kernels.triton.variant import MOST_SPLITS
from apclab_kernels.triton.work import choose_piece, cut
from hypothesis import given, settings
from hypothesis import strategies as st

FIVE = Runs(
    [SharedRun(np.arange(5, dtype=np.int32), 0, np.arange(6, dtype=np.int32))], np.full(5, 96)
)


def test_a_run_is_cut_by_hand() -> None:
    # 96 tokens are 3 tiles of 32, shared by 2: one, and two; 5 requests go 2, 2, 1
    work = cut(FIVE, block_size=16, at_once=2, tile=32, piece_tokens=64)
    assert work.pieces.tolist() == [
        [0, 2, 0, 0, 32, 0], [2, 2, 0, 0, 32, 0], [4, 1, 0, 0, 32, 0],
        [0, 2, 0, 32, 96, 1], [2, 2, 0, 32, 96, 1], [4, 1, 0, 32, 96, 1],
    ]  # fmt: skip
    assert work.parts == 2
    assert work.room == MOST_SPLITS - 2


def test_no_runs_are_no_work() -> None:
    work = cut(Runs([], np.zeros(3, np.int32)), block_size=16, at_once=4, tile=32, piece_tokens=64)
    assert work.pieces.shape == (0, 6)
    assert (work.parts, len(work.requests), len(work.blocks)) == (0, 0, 0)


@st.composite
def batches(draw: Any) -> tuple[Any, Any, int]:
    """Tables of a batch in which prefixes are shared, two levels deep and more."""
    block_size = draw(st.sampled_from([1, 7, 16]))
    rows = draw(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1))
    known: dict[tuple[int, ...], int] = {}
    # a block is what it holds and all before it
    ids = [[known.setdefault(tuple(row[: i + 1]), len(known)) for i in range(6)] for row in rows]
    lens = [draw(st.integers(0, 6 * block_size)) for _ in rows]
    return np.array(ids, np.int32), np.array(lens, np.int32), block_size


@settings(max_examples=50)
@given(batches(), st.integers(1, 4), st.sampled_from([16, 48, 64]))
def test_pieces_and_tails_have_every_token_once(
    batch: tuple[Any, Any, int], at_once: int, piece_tokens: int
) -> None:
    tables, lens, block_size = batch
    runs = find_runs(tables, lens, block_size)
    work = cut(runs, block_size=block_size, at_once=at_once, tile=32, piece_tokens=piece_tokens)
    tail_tables, tail_lens = tails_of(tables, lens, runs, block_size)
    read: list[list[tuple[int, int]]] = [[] for _ in lens]  # of each request: block, slot
    states: list[list[int]] = [[] for _ in lens]
    for request_first, count, block_first, first, last, part in work.pieces.tolist():
        assert 1 <= count <= at_once
        for request in work.requests[request_first : request_first + count]:
            states[request].append(part)
            for token in range(first, last):
                block = int(work.blocks[block_first + token // block_size])
                read[request].append((block, token % block_size))
    for request, n in enumerate(tail_lens):
        for token in range(n):
            block = int(tail_tables[request, token // block_size])
            read[request].append((block, token % block_size))
    for request, n in enumerate(lens):
        table = tables[request]
        wanted = [(int(table[t // block_size]), t % block_size) for t in range(n)]
        assert sorted(read[request]) == sorted(wanted)
        # no state is written twice
        assert len(set(states[request])) == len(states[request])
        assert all(part < work.parts for part in states[request])


def _runs(requests: int, tokens: int) -> Runs:
    blocks = np.zeros(tokens // 16, np.int32)
    return Runs(
        [SharedRun(np.arange(requests, dtype=np.int32), 0, blocks)], np.full(requests, tokens)
    )


@pytest.mark.parametrize(
    ("requests", "tokens", "at_once", "num_kv_heads", "piece"),
    [
        (64, 1024, 64, 40, 256),  # 40 x 1024 / 216 programs are 190 tokens, four tiles are more
        (64, 32768, 16, 8, 4864),  # 4 tiles of queries: 32 x 32768 / 216 = 4854, in whole tiles
        (2, 100_000, 64, 1, 6272),  # a sixteenth: more states would not fit the merge
        (2, 0, 64, 1, 256),
    ],
)
def test_a_piece_by_hand(
    requests: int, tokens: int, at_once: int, num_kv_heads: int, piece: int
) -> None:
    found = choose_piece(
        _runs(requests, tokens), block_size=16, at_once=at_once, num_kv_heads=num_kv_heads,
        tile=64, sm_count=108,
    )  # fmt: skip
    assert found == piece
