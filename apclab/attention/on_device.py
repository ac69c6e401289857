"""The comparison of a launch with float64 where its tensors are: nothing is copied to the host.

The arithmetic and the bounds are those of `apclab_kernels.reference`, in torch; a test holds the
two together.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from apclab_kernels.layout import by_token, cache_shape

from apclab.attention.comparison import Comparison, draw_pairs, rounded_weights
from apclab.attention.launch import Launch
from apclab.attention.tensors import dtype_name


class Truth(NamedTuple):
    """Some query heads of one request in float64; tensors [heads, head_size]."""

    out: Any
    out_bound: Any  # of float32 arithmetic, before rounding to the output's dtype
    spread: Any  # sum of |weight * value|


def attend(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_table: Any,
    seq_len: int,
    heads: Any,
    *,
    scale: float,
    layout: str,
) -> Truth:
    """Attend some query heads of one request, as `reference.paged_attention_decode` does.

    Args:
        query: [num_heads, head_size], and the caches as in `plan`: torch tensors.
        key_cache: as in `plan`.
        value_cache: as in `plan`.
        block_table: int32 [max_blocks].
        seq_len: tokens.
        heads: int64 [heads], query heads.
        scale: factor of the scores.
        layout: "NHD" or "HND".
    """
    import torch
    from apclab_kernels.reference import relative_bound

    q = query[heads].double() * scale  # [heads, head_size]
    if seq_len == 0:
        return Truth(*(torch.zeros_like(q) for _ in Truth._fields))
    _, block_size, num_kv_heads, _ = cache_shape(key_cache, layout)
    kv_heads = heads // (query.shape[0] // num_kv_heads)
    blocks = block_table[: -(-seq_len // block_size)].long()
    k, v = (
        by_token(cache[blocks], layout)[:, :, kv_heads]
        .flatten(0, 1)[:seq_len]
        .double()
        .movedim(1, 0)
        for cache in (key_cache, value_cache)
    )  # [heads, seq_len, head_size]
    scores = torch.einsum("hd,htd->ht", q, k)
    sizes = torch.einsum("hd,htd->ht", q.abs(), k.abs()).amax(-1, keepdim=True)
    weights = torch.softmax(scores, -1)
    relative = relative_bound(sizes, seq_len, q.shape[-1])
    spread = torch.einsum("ht,htd->hd", weights, v.abs())
    return Truth(torch.einsum("ht,htd->hd", weights, v), spread * relative, spread)


def compare_on_device(
    launch: Launch,
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    *,
    scale: float | None = None,
    pairs: int | None = None,
    seed: int = 0,
    look: Callable[[], None] | None = None,
) -> Comparison:
    """Compare what a launch has left in `out` with float64; arguments and result as in `compare`.

    Args:
        launch: already called.
        query: torch tensors, these and the next two.
        key_cache: as in `plan`.
        value_cache: as in `plan`.
        block_tables: as in `plan`; these two also as NumPy arrays.
        seq_lens: as in `plan`.
        scale: as in `plan`.
        pairs: how many (request, head) pairs to draw; None compares everything.
        seed: of the draw.
        look: called before each request; what it raises ends the comparison.
    """
    import torch
    from apclab_kernels.reference import output_bound

    _, num_heads, head_size = query.shape
    chosen, said = draw_pairs(query, pairs, seed)
    tables = torch.as_tensor(block_tables, device=query.device)
    lens = torch.as_tensor(seq_lens).tolist()
    dtype = dtype_name(query)
    rounded = rounded_weights(launch, dtype)
    most, worst = -1.0, Comparison(0.0, 1.0, "")
    for request in np.unique(chosen // num_heads).tolist():
        if look is not None:
            look()
        own = chosen[chosen // num_heads == request] % num_heads
        heads = torch.as_tensor(own, device=query.device)
        truth = attend(
            query[request], key_cache, value_cache, tables[request], lens[request], heads,
            scale=head_size**-0.5 if scale is None else scale, layout=launch.layout,
        )  # fmt: skip
        got = launch.out[request][heads].double()
        bound = output_bound(truth, dtype, rounded_weights=rounded)
        error = (got - truth.out).abs()
        part = torch.where(error.isnan(), float("inf"), error / bound).flatten()
        at = int(part.argmax())
        if (most_here := float(part[at])) > most:
            most = most_here
            worst = Comparison(float(error.flatten()[at]), float(bound.flatten()[at]), "")
    where = f"float64 on {query.device.type}"
    return worst._replace(checked=f"{said}, {where}")
