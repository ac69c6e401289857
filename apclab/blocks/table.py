"""What a decode kernel sees of a pool, and how often a block is read. No allocation, no models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apclab.arguments import INT32_MOST, whole_number

Int32 = NDArray[np.int32]


class CSR(NamedTuple):
    """A block table without padding, in the form that FlashInfer takes."""

    kv_indptr: Int32  # [batch + 1], row i is kv_indices[kv_indptr[i]:kv_indptr[i + 1]]
    kv_indices: Int32  # [entries], block ids
    kv_last_page_len: Int32  # [batch], tokens in the last block of a row, 1 to block_size


@dataclass(frozen=True, eq=False)
class Sharing:
    """How often the blocks of one decode step are read.

    Args:
        table_entries: every (request, block) pair counted.
        distinct_blocks: each block counted once.
        readers_mean: table_entries / distinct_blocks, 1.0 when nothing is shared.
        readers: int32 [batch, max_blocks], entries that name the same block as this one; 0 =
            padding.
        logical_tokens: tokens of all requests together.
        distinct_tokens: as logical_tokens, but each block once, as far as its longest reader goes.
    """

    table_entries: int
    distinct_blocks: int
    readers_mean: float
    readers: Int32
    logical_tokens: int
    distinct_tokens: int

    def logical_bytes(self, token_bytes: int) -> int:
        """KV bytes of one layer that the requests ask for; token_bytes: K and V of one token."""
        return self.logical_tokens * token_bytes

    def distinct_bytes(self, token_bytes: int) -> int:
        """KV bytes of one layer that memory holds for them; token_bytes: K and V of one token."""
        return self.distinct_tokens * token_bytes


@dataclass(frozen=True, eq=False)
class BlockTable:
    """Block tables and lengths of one decode step.

    Args:
        block_tables: int32 [batch, max_blocks], physical block ids, padded with 0. Entries past a
            row's last block are ignored; if they are not 0, a copy with zeros is kept.
        seq_lens: int32 [batch], tokens of each request, at least 1.
        block_size: tokens per block.

    Raises:
        TypeError: an array is no NumPy array of int32, or block_size no int.
        ValueError: shapes disagree, a row has too few blocks for its seq_len, an id is negative.
    """

    block_tables: Int32
    seq_lens: Int32
    block_size: int

    def __post_init__(self) -> None:
        """Check shapes and values; clear the padding."""
        object.__setattr__(
            self, "block_size", whole_number("block_size", self.block_size, 1, INT32_MOST)
        )
        _check_int32("block_tables", self.block_tables, 2)
        _check_int32("seq_lens", self.seq_lens, 1)
        batch, max_blocks = self.block_tables.shape
        if batch == 0 or max_blocks == 0:
            raise ValueError(f"block_tables must not be empty, got shape [{batch}, {max_blocks}]")
        if self.seq_lens.shape != (batch,):
            raise ValueError(f"seq_lens must be [{batch}], got {list(self.seq_lens.shape)}")
        if (shortest := int(self.seq_lens.min())) < 1:
            row = int(self.seq_lens.argmin())
            raise ValueError(f"seq_lens must be at least 1, got {shortest} in row {row}")
        if (longest := int(self.seq_lens.max())) > max_blocks * self.block_size:
            raise ValueError(
                f"seq_lens must fit {max_blocks} blocks of {self.block_size} tokens, "
                f"got {longest} in row {int(self.seq_lens.argmax())}"
            )
        named = self._named()
        if (self.block_tables[named] < 0).any():
            row, column = np.argwhere(named & (self.block_tables < 0))[0].tolist()
            raise ValueError(
                f"block_tables must hold ids from 0 up, got {self.block_tables[row, column]} "
                f"in row {row}, column {column}"
            )
        if self.block_tables[~named].any():
            cleared = np.where(named, self.block_tables, np.int32(0))
            object.__setattr__(self, "block_tables", cleared)

    @classmethod
    def from_rows(
        cls, rows: Sequence[Sequence[int]], seq_lens: Sequence[int], block_size: int
    ) -> "BlockTable":
        """Pad rows of block ids, one a request, to int32 [batch, max_blocks].

        Raises:
            ValueError: rows and seq_lens differ in number, a row has too few blocks, or what the
                class refuses.
        """
        for i, (row, seq_len) in enumerate(zip(rows, seq_lens, strict=True)):
            if len(row) * block_size < seq_len:
                raise ValueError(
                    f"rows must hold {seq_len} tokens, got {len(row)} blocks of {block_size} "
                    f"in row {i}"
                )
        tables = np.zeros((len(rows), max(map(len, rows), default=0)), dtype=np.int32)
        for table, row in zip(tables, rows, strict=True):
            table[: len(row)] = row
        return cls(tables, np.array(seq_lens, dtype=np.int32), block_size)

    def csr(self) -> CSR:
        """The same table without padding: kv_indptr, kv_indices, kv_last_page_len, all int32."""
        named = self._named()
        kv_indptr = np.zeros(len(self.seq_lens) + 1, dtype=np.int32)
        np.cumsum(named.sum(axis=1), out=kv_indptr[1:])
        last = (self.seq_lens - 1) % self.block_size + 1
        return CSR(kv_indptr, self.block_tables[named], last.astype(np.int32))

    def sharing(self) -> Sharing:
        """Count table entries, distinct blocks and their readers."""
        named = self._named()
        # [entries] index into the distinct blocks, and [distinct] entries that name each
        distinct, index, counts = np.unique(
            self.block_tables[named], return_inverse=True, return_counts=True
        )
        readers = np.zeros_like(self.block_tables)
        readers[named] = counts[index]
        # [entries]: tokens that a request reads of a block; the longest reader fetches it
        starts = np.arange(self.block_tables.shape[1]) * self.block_size
        tokens = np.minimum(self.seq_lens[:, None] - starts, self.block_size)[named]
        fetched = np.zeros(len(distinct), dtype=np.int64)
        np.maximum.at(fetched, index, tokens)
        return Sharing(
            table_entries=len(index),
            distinct_blocks=len(distinct),
            readers_mean=len(index) / len(distinct),
            readers=readers,
            logical_tokens=int(self.seq_lens.sum(dtype=np.int64)),
            distinct_tokens=int(fetched.sum()),
        )

    def private(self) -> "BlockTable":
        """The same step with nothing shared: each entry a block of its own, ids 1 to entries."""
        named = self._named()
        tables = np.zeros_like(self.block_tables)
        tables[named] = np.arange(1, int(named.sum()) + 1)
        return BlockTable(tables, self.seq_lens.copy(), self.block_size)

    def permuted(self, seed: int, num_blocks: int | None = None) -> "BlockTable":
        """The same sharing with other block ids, drawn at random without repeats.

        Args:
            seed: of the drawing; equal seeds give equal ids.
            num_blocks: ids are drawn from 1 to num_blocks - 1; by default just enough of them.

        Raises:
            TypeError: seed or num_blocks is no int.
            ValueError: seed is negative, or num_blocks too small for the distinct blocks.
        """
        seed = whole_number("seed", seed, 0)
        named = self._named()
        distinct, index = np.unique(self.block_tables[named], return_inverse=True)
        if num_blocks is None:
            num_blocks = len(distinct) + 1
        num_blocks = whole_number("num_blocks", num_blocks, len(distinct) + 1)
        ids = np.random.default_rng(seed).choice(num_blocks - 1, size=len(distinct), replace=False)
        tables = np.zeros_like(self.block_tables)
        tables[named] = ids[index] + 1
        return BlockTable(tables, self.seq_lens.copy(), self.block_size)

    def _named(self) -> NDArray[np.bool_]:
        """Which entries a request reads, bool [batch, max_blocks]; the others are padding."""
        starts = np.arange(self.block_tables.shape[1]) * self.block_size
        named: NDArray[np.bool_] = starts < self.seq_lens[:, None]
        return named


def _check_int32(name: str, array: object, ndim: int) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array of int32, got {type(array).__name__}")
    if array.dtype != np.int32:
        raise TypeError(f"{name} must be int32, got {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got shape {list(array.shape)}")
