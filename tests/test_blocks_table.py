"""Block tables: validation, CSR, sharing, and the de-shared and renamed twins."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apclab.blocks import BlockTable


def make(tables: Any, lens: Any, block_size: int = 2) -> BlockTable:
    return BlockTable(np.array(tables, dtype=np.int32), np.array(lens, dtype=np.int32), block_size)


@st.composite
def block_tables(draw: st.DrawFn) -> BlockTable:
    """Ragged rows of few ids, so that they share; sometimes garbage in the padding."""
    block_size = draw(st.integers(1, 5))
    max_blocks = draw(st.integers(1, 5))
    ids = st.integers(0, draw(st.sampled_from([3, 40, 2**31 - 1])))
    rows = draw(st.lists(st.lists(ids, min_size=max_blocks, max_size=max_blocks), min_size=1))
    lens = [draw(st.integers(1, max_blocks * block_size)) for _ in rows]
    return make(rows, lens, block_size)


def entries(table: BlockTable) -> list[tuple[int, int, int]]:
    """(request, block id, tokens read of it) of every table entry, one by one."""
    out = []
    for i, seq_len in enumerate(table.seq_lens.tolist()):
        for j, start in enumerate(range(0, seq_len, table.block_size)):
            block = int(table.block_tables[i, j])
            out.append((i, block, min(table.block_size, seq_len - start)))
    return out


@settings(max_examples=60, deadline=None)
@given(block_tables())
def test_csr_round_trip(table: BlockTable) -> None:
    csr = table.csr()
    assert {array.dtype for array in csr} == {np.dtype(np.int32)}
    rows = [
        csr.kv_indices[start:end].tolist()
        for start, end in zip(csr.kv_indptr[:-1], csr.kv_indptr[1:], strict=True)
    ]
    counts = np.diff(csr.kv_indptr)
    lens = (counts - 1) * table.block_size + csr.kv_last_page_len
    assert csr.kv_last_page_len.min() >= 1
    assert csr.kv_last_page_len.max() <= table.block_size
    again = BlockTable.from_rows(rows, lens.tolist(), table.block_size)
    width = again.block_tables.shape[1]
    assert np.array_equal(again.seq_lens, table.seq_lens)
    assert np.array_equal(again.block_tables, table.block_tables[:, :width])
    assert not table.block_tables[:, width:].any()


@settings(max_examples=60, deadline=None)
@given(block_tables())
def test_sharing_counts_as_a_plain_walk_does(table: BlockTable) -> None:
    sharing = table.sharing()
    walk = entries(table)
    fetched: dict[int, int] = {}
    for _, block, tokens in walk:
        fetched[block] = max(fetched.get(block, 0), tokens)
    assert sharing.table_entries == len(walk)
    assert sharing.distinct_blocks == len(fetched) <= sharing.table_entries
    assert sharing.readers_mean == len(walk) / len(fetched) >= 1
    assert sharing.logical_tokens == table.seq_lens.sum()
    assert sharing.distinct_tokens == sum(fetched.values()) <= sharing.logical_tokens
    blocks = [block for _, block, _ in walk]
    assert sharing.readers[sharing.readers > 0].tolist() == [blocks.count(b) for b in blocks]
    assert sharing.readers.shape == table.block_tables.shape
    assert (sharing.logical_bytes(3), sharing.distinct_bytes(3)) == (
        3 * sharing.logical_tokens,
        3 * sharing.distinct_tokens,
    )


@settings(max_examples=60, deadline=None)
@given(block_tables())
def test_private_has_one_reader_everywhere(table: BlockTable) -> None:
    private, before = table.private(), table.sharing()
    sharing = private.sharing()
    assert np.array_equal(private.seq_lens, table.seq_lens)
    assert np.array_equal(sharing.readers, np.minimum(before.readers, 1))
    assert sharing.readers_mean == 1.0
    assert sharing.table_entries == sharing.distinct_blocks == before.table_entries
    assert sharing.distinct_tokens == sharing.logical_tokens == before.logical_tokens
    assert private.csr().kv_indices.tolist() == list(range(1, sharing.table_entries + 1))


@settings(max_examples=60, deadline=None)
@given(block_tables(), st.integers(0, 99), st.sampled_from([0, 1, 1000]))
def test_permuted_is_isomorphic(table: BlockTable, seed: int, spare: int) -> None:
    num_blocks = table.sharing().distinct_blocks + 1 + spare
    other = table.permuted(seed, num_blocks if spare else None)
    assert np.array_equal(other.seq_lens, table.seq_lens)
    pairs = {(a, b) for (_, a, _), (_, b, _) in zip(entries(table), entries(other), strict=True)}
    # one to one: each old id has one new id, and the other way round
    assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
    assert all(1 <= b < num_blocks for _, b in pairs)
    assert np.array_equal(other.sharing().readers, table.sharing().readers)
    assert np.array_equal(
        other.block_tables,
        table.permuted(seed, num_blocks if spare else None).block_tables,
    )


def test_permuted_moves_ids() -> None:
    table = make([list(range(1, 65))], [128])
    one, two = table.permuted(1).block_tables, table.permuted(2).block_tables
    assert sorted(one[0].tolist()) == sorted(two[0].tolist()) == list(range(1, 65))
    assert not np.array_equal(one, two)
    assert not np.array_equal(one, table.block_tables)
    with pytest.raises(ValueError, match="num_blocks must be at least 65, got 64"):
        table.permuted(1, 64)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        table.permuted(-1)


def test_shared_prefix_counts_once() -> None:
    # vLLM issue 4860: 100 requests of 300 tokens; 18 full blocks shared, the last private
    rows = [[*range(1, 19), 19 + i] for i in range(100)]
    sharing = BlockTable.from_rows(rows, [300] * 100, 16).sharing()
    assert (sharing.table_entries, sharing.distinct_blocks) == (1900, 118)
    # llama-13b in bfloat16: 20,480 bytes a token and layer
    assert sharing.logical_bytes(20_480) == 614_400_000
    assert sharing.distinct_bytes(20_480) == (18 * 16 + 100 * 12) * 20_480


def test_padding_is_cleared_in_a_copy() -> None:
    tables = np.array([[7, -1, 5], [7, 8, 9]], dtype=np.int32)
    table = BlockTable(tables, np.array([1, 6], dtype=np.int32), 2)
    assert table.block_tables.tolist() == [[7, 0, 0], [7, 8, 9]]
    assert tables.tolist() == [[7, -1, 5], [7, 8, 9]]
    assert table.block_tables.dtype == np.int32


OK = np.array([[1, 2], [3, 4]], dtype=np.int32)
LENS = np.array([3, 4], dtype=np.int32)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1]], LENS, 2), TypeError, "block_tables must be a NumPy array of int32, got list"),
        ((OK.astype(np.int64), LENS, 2), TypeError, "block_tables must be int32, got int64"),
        ((OK, LENS.astype(np.float32), 2), TypeError, "seq_lens must be int32, got float32"),
        ((OK[0], LENS, 2), ValueError, r"block_tables must have 2 dimension\(s\), got shape \[2\]"),
        ((OK, OK, 2), ValueError, r"seq_lens must have 1 dimension\(s\), got shape \[2, 2\]"),
        ((OK[:0], LENS[:0], 2), ValueError, r"block_tables must not be empty, got shape \[0, 2\]"),
        ((OK[:, :0], LENS, 2), ValueError, r"block_tables must not be empty, got shape \[2, 0\]"),
        ((OK, LENS[:1], 2), ValueError, r"seq_lens must be \[2\], got \[1\]"),
        ((OK, LENS - 3, 2), ValueError, "seq_lens must be at least 1, got 0 in row 0"),
        (
            (OK, LENS + 1, 2),
            ValueError,
            "seq_lens must fit 2 blocks of 2 tokens, got 5 in row 1",
        ),
        ((OK - 3, LENS, 2), ValueError, "ids from 0 up, got -2 in row 0, column 0"),
        ((OK, LENS, 0), ValueError, "block_size must be at least 1, got 0"),
        ((OK, LENS, 2.0), TypeError, "block_size must be an int, got 2.0"),
        ((OK, LENS, True), TypeError, "block_size must be an int, got True"),
    ],
)
def test_bad_tables(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BlockTable(*arguments)


def test_rows_must_be_long_enough() -> None:
    # padding would hide that the second row is short
    with pytest.raises(ValueError, match="rows must hold 3 tokens, got 1 blocks of 2 in row 1"):
        BlockTable.from_rows([[1, 2], [3]], [3, 3], 2)
    with pytest.raises(ValueError, match="must not be empty"):
        BlockTable.from_rows([], [], 2)
    with pytest.raises(ValueError, match="zip"):
        BlockTable.from_rows([[1]], [1, 1], 2)
