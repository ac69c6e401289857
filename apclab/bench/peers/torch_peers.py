"""torch as a peer, on CPU and GPU: FlexAttention over the pool, and gather followed by SDPA."""

from typing import Any

from apclab.bench.bound import Bound
from apclab.bench.peers.kernel import Kernel, scale_of, torch_arrays, torch_kernel


def bind_gather(bound: Bound) -> list[Kernel]:
    """Copy each request's blocks into one tensor, then torch's fused attention."""
    import torch

    _set_threads(bound)
    (query, ids, lens), scale = torch_arrays(bound), scale_of(bound)
    out = torch.empty_like(query)
    tokens = ids.shape[1] * bound.step.block_size
    ids = ids.long()
    # [batch, 1, 1, tokens]: which of the gathered tokens a request attends to
    mask = (torch.arange(tokens, device=ids.device) < lens[:, None])[:, None, None]
    full = bool(mask.all())
    shape = bound.model

    def act(keys: Any, values: Any) -> None:
        # [batch, tokens, kv_heads, size] -> [batch, kv_heads, tokens, size]
        k, v = (
            cache[ids].reshape(len(ids), tokens, shape.num_kv_heads, -1).transpose(1, 2)
            for cache in (keys, values)
        )
        out[:, :, None] = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, None], k, v, attn_mask=None if full else mask, scale=scale,
            enable_gqa=shape.num_heads != shape.num_kv_heads,
        )  # fmt: skip

    return [torch_kernel("torch gather + SDPA", bound, act, out)]


def bind_flex(bound: Bound) -> list[Kernel]:
    """FlexAttention, compiled, with a block mask that is the block table.

    The requests are the rows of one query: all see one pool, so that nothing is expanded to the
    batch (with a request a batch entry, float32 asks for 25 GB at the marks' sizes).
    """
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    _set_threads(bound)
    (query, _, _), shape, scale = torch_arrays(bound), bound.model, scale_of(bound)
    out = torch.empty_like(query)
    rows = query.transpose(0, 1)[None].contiguous()  # [1, heads, batch, size]
    mask = _block_mask(bound)
    # static shapes: for dynamic ones torch 2.13 writes C++ that does not compile
    compiled = torch.compile(flex_attention, dynamic=False)

    def act(keys: Any, values: Any) -> None:
        # [1, kv_heads, num_blocks * block_size, size]
        k, v = (
            cache.reshape(1, -1, shape.num_kv_heads, shape.head_size).transpose(1, 2)
            for cache in (keys, values)
        )
        with torch.no_grad():
            made = compiled(
                rows, k, v, block_mask=mask, scale=scale,
                enable_gqa=shape.num_heads != shape.num_kv_heads,
            )  # fmt: skip
        out.copy_(made[0].transpose(0, 1))

    return [torch_kernel("torch FlexAttention", bound, act, out)]


def _block_mask(bound: Bound) -> Any:
    """Which blocks of the pool a row reads, and within them which tokens."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    _, ids, lens = torch_arrays(bound)
    size, num_blocks = bound.step.block_size, bound.memory.num_blocks
    (batch, columns), device = ids.shape, ids.device
    named = torch.arange(columns, device=device) * size < lens[:, None]
    row, column = named.nonzero(as_tuple=True)
    # [batch, num_blocks]: column of a physical block in a request's table, -1 where it has none
    logical = torch.full((batch, num_blocks), -1, dtype=torch.int64, device=device)
    logical[row, ids[row, column].long()] = column

    def allowed(_batch: Any, _head: Any, query: Any, token: Any) -> Any:
        at = logical[query, token // size]
        return (at >= 0) & (at * size + token % size < lens[query])

    indices = torch.zeros((1, 1, batch, num_blocks), dtype=torch.int32, device=device)
    indices[0, 0, :, :columns] = ids
    counts = named.sum(1, dtype=torch.int32)[None, None]
    return BlockMask.from_kv_blocks(
        counts, indices, None, None, BLOCK_SIZE=(1, size), mask_mod=allowed,
        seq_lengths=(batch, num_blocks * size),
    )  # fmt: skip


def _set_threads(bound: Bound) -> None:
    import torch

    if bound.threads is not None:
        torch.set_num_threads(bound.threads)
