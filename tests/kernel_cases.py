"""Inputs that every attention kernel must get right: odd lengths and sizes, shared ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from apclab_kernels.reference import (
    Attended,
    output_bound,
    paged_attention_decode,
    paged_attention_prefill,
)
from numpy.typing import NDArray

DTYPES: dict[str, Any] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Case:
    """A decode step over a pool of random numbers."""

    dtype: str = "float32"
    num_heads: int = 4
    num_kv_heads: int = 4
    head_size: int = 64
    block_size: int = 16
    layout: str = "NHD"
    seq_lens: tuple[int, ...] = (1, 63, 300, 0, 48)
    shared_blocks: int = 0  # first blocks that all sequences share, as far as they are that long
    seed: int = 0

    def arrays(self) -> dict[str, Any]:
        """The arguments of a kernel: query, caches, tables, lengths."""
        rng = np.random.default_rng(self.seed)
        batch, longest = len(self.seq_lens), max(self.seq_lens)
        columns = max(1, -(-longest // self.block_size))
        num_blocks = batch * columns + 3
        ids = rng.permutation(num_blocks)[: batch * columns].reshape(batch, columns)
        ids[:, : self.shared_blocks] = ids[0, : self.shared_blocks]
        token = (self.num_kv_heads, self.head_size)
        shape = (num_blocks, self.block_size, *token)
        if self.layout == "HND":
            shape = (num_blocks, token[0], self.block_size, token[1])

        def random(shape: tuple[int, ...]) -> NDArray[Any]:
            return rng.standard_normal(shape, np.float32).astype(DTYPES[self.dtype])

        return {
            "query": random((batch, self.num_heads, self.head_size)),
            "key_cache": random(shape),
            "value_cache": random(shape),
            "block_tables": ids.astype(np.int32),
            "seq_lens": np.array(self.seq_lens, np.int32),
        }


def assert_exact(
    out: NDArray[Any],
    lse: NDArray[np.float32],
    truth: Attended,
    dtype: str,
    *,
    rounded_weights: float = 0.0,
) -> None:
    """Hold a kernel's result against float64, element by element, within bounds that follow.

    Args:
        out: the kernel's output.
        lse: its log-sum-exp.
        truth: the reference's answer.
        dtype: of the output.
        rounded_weights: error of a weight in units of the dtype's roundoff: 1 for a kernel that
            rounds weights to the dtype before the second product, 2 if it truncates.
    """
    got = out.astype(np.float64)
    assert not np.isnan(got).any(), "an output element was never written"
    bound = output_bound(truth, dtype, rounded_weights=rounded_weights)
    worst = np.abs(got - truth.out) - bound
    assert worst.max() <= 0, f"out is {worst.max():.3g} outside its bound"
    empty = np.isneginf(truth.lse)
    assert np.array_equal(np.isneginf(lse), empty)
    error = np.abs(lse[~empty].astype(np.float64) - truth.lse[~empty])
    assert (error <= truth.lse_bound[~empty]).all(), f"lse errs by {error.max():.3g}"


def truth_of(case: Case, arrays: dict[str, Any]) -> Attended:
    """The reference's answer to a case, a prefill if it says where new tokens start."""
    if "query_start_loc" in arrays:
        return paged_attention_prefill(**arrays, layout=case.layout)
    return paged_attention_decode(**arrays, layout=case.layout)


def prefill_arrays(case: Case, new: Sequence[int]) -> dict[str, Any]:
    """The arguments of a prefill kernel: of each sequence of a case the last tokens are new."""
    arrays = case.arrays()
    starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    shape = (int(starts[-1]), case.num_heads, case.head_size)
    rng = np.random.default_rng(case.seed + 1)
    arrays["query"] = rng.standard_normal(shape, np.float32).astype(DTYPES[case.dtype])
    return {**arrays, "query_start_loc": starts}
