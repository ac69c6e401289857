"""torch as a peer, on CPU and GPU: FlexAttention over the pool, and gather followed by SDPA."""

from functools import partial
from typing import Any

from apclab.attention import Launch
from apclab.bench.peers.kernel import Kernel, torch_layer, torch_query
from apclab.bench.peers.problem import Problem


def bind_gather(problem: Problem) -> list[Kernel]:
    """Copy each request's blocks into one tensor, then torch's fused attention."""
    import torch

    _set_threads(problem)
    query, (ids, lens) = torch_query(problem), problem.device_tables
    tokens = ids.shape[1] * problem.table.block_size
    ids = ids.long()
    # [batch, 1, 1, tokens]: which of the gathered tokens a request attends to
    mask = (torch.arange(tokens, device=ids.device) < lens[:, None])[:, None, None]
    full = bool(mask.all())
    shape = problem.setting.shape

    def act(keys: Any, values: Any, out: Any) -> None:
        # [batch, tokens, kv_heads, size] -> [batch, kv_heads, tokens, size]
        k, v = (
            cache[ids].reshape(len(ids), tokens, shape.num_kv_heads, -1).transpose(1, 2)
            for cache in (keys, values)
        )
        out[:, :, None] = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, None], k, v, attn_mask=None if full else mask, scale=problem.scale,
            enable_gqa=shape.num_heads != shape.num_kv_heads,
        )  # fmt: skip

    return [_kernel("torch gather + SDPA", problem, act, torch.empty_like(query))]


def bind_flex(problem: Problem) -> list[Kernel]:
    """FlexAttention, compiled, with a block mask that is the block table.

    The requests are the rows of one query: all see one pool, so that nothing is expanded to the
    batch (with a request a batch entry, float32 asks for 25 GB at the marks' sizes).
    """
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    _set_threads(problem)
    query, shape = torch_query(problem), problem.setting.shape
    rows = query.transpose(0, 1)[None].contiguous()  # [1, heads, batch, size]
    mask = _block_mask(problem)
    # static shapes: for dynamic ones torch 2.13 writes C++ that does not compile
    compiled = torch.compile(flex_attention, dynamic=False)

    def act(keys: Any, values: Any, out: Any) -> None:
        # [1, kv_heads, num_blocks * block_size, size]
        k, v = (
            cache.reshape(1, -1, shape.num_kv_heads, shape.head_size).transpose(1, 2)
            for cache in (keys, values)
        )
        with torch.no_grad():
            made = compiled(
                rows, k, v, block_mask=mask, scale=problem.scale,
                enable_gqa=shape.num_heads != shape.num_kv_heads,
            )  # fmt: skip
        out.copy_(made[0].transpose(0, 1))

    return [_kernel("torch FlexAttention", problem, act, torch.empty_like(query))]


def _block_mask(problem: Problem) -> Any:
    """Which blocks of the pool a row reads, and within them which tokens."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    ids, lens = problem.device_tables
    size, num_blocks = problem.table.block_size, problem.num_blocks
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


def _kernel(name: str, problem: Problem, act: Any, out: Any) -> Kernel:
    layers = [torch_layer(problem, index) for index in range(problem.layers)]
    launches = [
        Launch(partial(act, keys, values, out), name, "NHD", "request", out)
        for keys, values in layers
    ]
    return Kernel(name, "NHD", launches)


def _set_threads(problem: Problem) -> None:
    import torch

    if problem.kind == "cpu":
        torch.set_num_threads(problem.threads)
