"""The comparison of a launch with float64 where its tensors are: nothing is copied to the host.

The arithmetic and the bounds are those of `apclab_kernels.reference`, in torch; a test holds the
two together.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from apclab.attention.launch import ROUNDOFF, Launch
from apclab.attention.probes import Comparison
from apclab.attention.tensors import dtype_name, interpreting


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
    tokens_at, heads_at = (1, 2) if layout == "NHD" else (2, 1)
    kv_heads = heads // (query.shape[0] // key_cache.shape[heads_at])
    blocks = block_table[: -(-seq_len // key_cache.shape[tokens_at])].long()
    k, v = (
        cache[blocks].movedim(heads_at, 0)[kv_heads].flatten(1, 2)[:, :seq_len].double()
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

    batch, num_heads, head_size = query.shape
    total = batch * num_heads
    chosen = np.arange(total)
    if pairs is not None and pairs < total:
        chosen = np.sort(np.random.default_rng(seed).choice(total, pairs, replace=False))
    tables = torch.as_tensor(block_tables, device=query.device)
    lens = torch.as_tensor(seq_lens).tolist()
    u = ROUNDOFF[dtype_name(query)]
    # as in `compare`: the Triton kernel rounds the weights, too
    rounded = u if launch.backend == "triton" and u > ROUNDOFF["float32"] else 0.0
    rounded *= 2 if interpreting() else 1
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
        arithmetic = truth.out_bound + rounded * truth.spread
        bound = arithmetic * (1 + u) + max(u, rounded) * truth.out.abs() + 2.0**-25
        error = (got - truth.out).abs()
        part = torch.where(error.isnan(), float("inf"), error / bound).flatten()
        at = int(part.argmax())
        if (most_here := float(part[at])) > most:
            most = most_here
            worst = Comparison(float(error.flatten()[at]), float(bound.flatten()[at]), "")
    where = f"float64 on {query.device.type}"
    said = "all pairs" if len(chosen) == total else f"sample of {len(chosen)} of {total} pairs"
    return worst._replace(checked=f"{said}, {where}")
