"""Binds checked arrays to a kernel of a backend, which it imports; checks nothing itself."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from apclab.attention.launch import Launch
from apclab.attention.tensors import as_numpy, as_torch, place


def bind(
    kernel: str,
    backend: str,
    arrays: tuple[Any, ...],
    out: Any,
    *,
    scale: float | None,
    layout: str,
    order: str,
    **more: Any,
) -> Launch:
    """Bind a launch; `plan` and `plan_prefill` have checked what it is given.

    Args:
        kernel: "decode", "cascade" or "prefill".
        backend: "reference", "cpu" or "triton".
        arrays: query, key_cache, value_cache and the kernel's int32 arrays, in its order.
        out: where the result goes; made if None.
        scale: factor of the scores, 1 / sqrt(head_size) if None.
        layout: "NHD" or "HND".
        order: "request" or "head".
        more: what only this kernel takes, as the runs of "cascade".
    """
    query = arrays[0]
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    if backend == "triton":
        return _on_gpu(kernel, arrays, out, scale=scale, layout=layout, order=order, **more)
    host = [np.ascontiguousarray(as_numpy(array)) for array in arrays]
    made = np.empty_like(host[0]) if out is None else as_numpy(out)
    lse = np.empty(query.shape[:2], np.float32)
    if backend == "reference":
        act = _reference_act(kernel, host, made, lse, scale, layout)
    else:
        module = import_module(f"apclab_kernels.cpu.{kernel}")
        bound = module.bind(*host, made, lse, scale=scale, layout=layout, order=order, **more)
        act = partial(module.run, bound)
    if place(query) == "torch":
        out = as_torch(made) if out is None else out
        return Launch(act, backend, layout, order, out, as_torch(lse))
    return Launch(act, backend, layout, order, made, lse)


def _on_gpu(
    kernel: str,
    arrays: tuple[Any, ...],
    out: Any,
    *,
    layout: str,
    order: str,
    **more: Any,
) -> Launch:
    import torch

    module = import_module(f"apclab_kernels.triton.{kernel}")
    query, keys, values, *numbers = arrays
    query, numbers = query.contiguous(), [array.contiguous() for array in numbers]
    out = torch.empty_like(query) if out is None else out
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    bound = module.bind(query, keys, values, *numbers, out, lse, layout=layout, order=order, **more)
    return Launch(partial(module.run, bound), "triton", layout, order, out, lse)


def _reference_act(
    kernel: str, arrays: list[Any], out: Any, lse: Any, scale: float, layout: str
) -> Callable[[], None]:
    from apclab_kernels import reference

    attend = getattr(reference, f"paged_attention_{kernel}")

    def act() -> None:
        truth = attend(*arrays, scale=scale, layout=layout)
        out[...] = truth.out.astype(out.dtype)
        lse[...] = truth.lse

    return act
