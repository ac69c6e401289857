"""The comparison of a launch with float64 in NumPy, element by element."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from apclab_kernels.layout import by_token, cache_shape

from apclab.attention.launch import Int32, Launch
from apclab.attention.tensors import Array, dtype_name, interpreting, to_host


class Comparison(NamedTuple):
    """How far a launch is from the reference, at the pair that comes closest to its bound."""

    max_error: float
    error_bound: float
    checked: str

    @property
    def ok(self) -> bool:
        """Whether every compared element lies within its bound; false for NaN."""
        return self.max_error <= self.error_bound


def compare(
    launch: Launch,
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any = None,
    *,
    scale: float | None = None,
    pairs: int | None = None,
    seed: int = 0,
    layout: str | None = None,
    rounds_weights: bool | None = None,
    look: Callable[[], None] | None = None,
) -> Comparison:
    """Compare what a launch has left in `out` with float64, element by element.

    Args:
        launch: already called.
        query: as in `plan`.
        key_cache: as in `plan`.
        value_cache: as in `plan`.
        block_tables: as in `plan`.
        seq_lens: as in `plan`.
        query_start_loc: of a prefill, as in `plan_prefill`; None for a decode step.
        scale: as in `plan`.
        pairs: how many (request or new token, head) pairs to draw; None compares everything.
        seed: of the draw.
        layout: of the caches given here; the launch's if None.
        rounds_weights: whether the kernel rounds softmax weights to the dtype before it multiplies
            them with the values; None knows it of our own kernels.
        look: called before each pair; what it raises ends the comparison.

    Returns:
        The element whose error is the largest part of its bound. The bound is that of the kernel's
        float32 arithmetic, plus one rounding to the output's dtype, plus one of the weights where
        the kernel rounds them.
    """
    from apclab_kernels.reference import as_decode, output_bound
    from apclab_kernels.reference import paged_attention_decode as attend

    num_heads = query.shape[1]
    chosen, said = draw_pairs(query, pairs, seed)
    layout = layout or launch.layout
    group = num_heads // cache_shape(key_cache, layout).num_kv_heads
    tables, lens = to_host(block_tables), to_host(seq_lens)
    if query_start_loc is not None:
        tables, lens = as_decode(tables, lens, to_host(query_start_loc))
    dtype = dtype_name(query)
    rounded = rounded_weights(launch, dtype, rounds_weights)
    worst = Comparison(0.0, 1.0, "")
    for request, head in zip(*np.divmod(chosen, num_heads), strict=True):
        if look is not None:
            look()
        one = slice(request, request + 1)
        keys, values, table = _of_pair(
            key_cache, value_cache, tables[request], int(lens[request]), layout, head // group
        )
        truth = attend(
            to_host(query[one, head : head + 1]), keys, values, table, lens[one],
            scale=scale,
        )  # fmt: skip
        got = to_host(launch.out[request, head]).astype(np.float64)
        bound = output_bound(truth, dtype, rounded_weights=rounded)[0, 0]
        error = np.abs(got - truth.out[0, 0])
        at = int(np.argmax(np.where(np.isnan(error), np.inf, error / bound)))
        # a NaN stays the worst, whatever comes after it
        if np.isnan(worst.max_error):
            break
        if not error[at] / bound[at] <= worst.max_error / worst.error_bound:
            worst = Comparison(float(error[at]), float(bound[at]), "")
    return worst._replace(checked=said)


def draw_pairs(query: Any, pairs: int | None, seed: int) -> tuple[Any, str]:
    """Which (request, head) pairs are compared, as indices in [batch * num_heads], and how to say.

    Args:
        query: [batch, num_heads, head_size].
        pairs: how many to draw; None takes all.
        seed: of the draw.
    """
    total = query.shape[0] * query.shape[1]
    if pairs is None or pairs >= total:
        return np.arange(total), "all pairs"
    chosen = np.sort(np.random.default_rng(seed).choice(total, pairs, replace=False))
    return chosen, f"sample of {pairs} of {total} pairs"


def rounded_weights(launch: Launch, dtype: str, rounds: bool | None = None) -> float:
    """How far weights are rounded before they are multiplied with the values, in roundoffs.

    The Triton kernel rounds them to a dtype of 16 bits; its interpreter truncates to bfloat16
    where a GPU rounds.

    Args:
        launch: whose backend tells whether weights are rounded.
        dtype: of the query.
        rounds: whether they are, of a kernel that is none of ours.
    """
    rounds = launch.backend == "triton" if rounds is None else rounds
    if not rounds or dtype == "float32":
        return 0.0
    return 2.0 if interpreting() else 1.0


def _of_pair(
    key_cache: Any, value_cache: Any, table: Int32, seq_len: int, layout: str, kv_head: int
) -> tuple[Array, Array, Int32]:
    """Blocks of one request and KV head in host memory, NHD, and the table that names them."""
    used = table[: -(-seq_len // cache_shape(key_cache, layout).block_size)].tolist()
    # the head first: a view, of which the blocks are then copied, not all heads of them
    keys, values = (
        to_host(by_token(cache, layout)[:, :, kv_head : kv_head + 1][used])
        for cache in (key_cache, value_cache)
    )
    return keys, values, np.arange(max(1, len(used)), dtype=np.int32)[None]
