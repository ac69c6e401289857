"""Peers on a GPU: FlashInfer, FlashAttention 2 and 3, vLLM's. Written without one, unmeasured.

Each import is inside its function, so that one that fails costs only itself.
"""

from typing import Any

from apclab.attention import as_torch
from apclab.bench.bound import Bound
from apclab.bench.peers.kernel import Kernel, scale_of, table_of, torch_arrays, torch_kernel


def bind_flashinfer(bound: Bound) -> list[Kernel]:
    """FlashInfer's planned decode; tensor cores where query heads share a KV head."""
    import flashinfer
    import torch

    shape, (query, _, _), table = bound.model, torch_arrays(bound), table_of(bound)
    out = torch.empty_like(query)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(2**27, dtype=torch.uint8, device="cuda"), "NHD",
        use_tensor_cores=shape.num_heads != shape.num_kv_heads,
    )  # fmt: skip
    wrapper.plan(
        *(as_torch(array).cuda() for array in table.csr()),
        shape.num_heads, shape.num_kv_heads, shape.head_size, table.block_size,
        q_data_type=query.dtype, kv_data_type=query.dtype, sm_scale=scale_of(bound),
    )  # fmt: skip

    def act(keys: Any, values: Any) -> None:
        wrapper.run(query, (keys, values), out=out)

    return [torch_kernel("FlashInfer", bound, act, out)]


def bind_flash_attention(bound: Bound) -> list[Kernel]:
    """FlashAttention 2, whose blocks are multiples of 256 tokens."""
    import torch
    from flash_attn import flash_attn_with_kvcache

    query, ids, lens = torch_arrays(bound)
    out = torch.empty_like(query)

    def act(keys: Any, values: Any) -> None:
        made = flash_attn_with_kvcache(
            query[:, None], keys, values, cache_seqlens=lens, block_table=ids,
            softmax_scale=scale_of(bound), causal=True,
        )  # fmt: skip
        out.copy_(made[:, 0])

    return [torch_kernel(f"FlashAttention 2, block {table_of(bound).block_size}", bound, act, out)]


def bind_flash_attention_3(bound: Bound) -> list[Kernel]:
    """FlashAttention 3 (Hopper), any block size."""
    import torch
    from flash_attn_interface import flash_attn_with_kvcache

    query, ids, lens = torch_arrays(bound)
    out = torch.empty_like(query)

    def act(keys: Any, values: Any) -> None:
        made = flash_attn_with_kvcache(
            query[:, None], keys, values, cache_seqlens=lens, page_table=ids,
            softmax_scale=scale_of(bound), causal=True,
        )  # fmt: skip
        out.copy_((made[0] if isinstance(made, tuple) else made)[:, 0])

    return [torch_kernel("FlashAttention 3", bound, act, out)]


def bind_vllm_flash(bound: Bound) -> list[Kernel]:
    """The FlashAttention that vLLM ships, in the version that it would choose here."""
    import torch
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    query, ids, lens = torch_arrays(bound)
    out, starts = torch.empty_like(query), _starts(lens)

    def act(keys: Any, values: Any) -> None:
        flash_attn_varlen_func(
            q=query, k=keys, v=values, out=out, cu_seqlens_q=starts, max_seqlen_q=1,
            seqused_k=lens, max_seqlen_k=int(table_of(bound).seq_lens.max()),
            softmax_scale=scale_of(bound), causal=True, block_table=ids,
        )  # fmt: skip

    return [torch_kernel("vLLM FlashAttention", bound, act, out)]


def bind_vllm_triton(bound: Bound) -> list[Kernel]:
    """The Triton kernel of vLLM, which is also its path on AMD."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    query, ids, lens = torch_arrays(bound)
    out, starts = torch.empty_like(query), _starts(lens)

    def act(keys: Any, values: Any) -> None:
        unified_attention(
            q=query, k=keys, v=values, out=out, cu_seqlens_q=starts, max_seqlen_q=1,
            seqused_k=lens, max_seqlen_k=int(table_of(bound).seq_lens.max()),
            softmax_scale=scale_of(bound), causal=True, window_size=(-1, -1), block_table=ids,
            softcap=0, q_descale=None, k_descale=None, v_descale=None,
        )  # fmt: skip

    return [torch_kernel("vLLM Triton", bound, act, out)]


def _starts(lens: Any) -> Any:
    """Where each request's query begins: one token each."""
    import torch

    return torch.arange(len(lens) + 1, dtype=torch.int32, device=lens.device)
