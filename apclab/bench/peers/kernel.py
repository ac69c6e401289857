"""A kernel in the comparison, and what its adapter takes of a bound step."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from apclab.attention import Launch, as_torch, place
from apclab.bench.bound import Bound


class Kernel(NamedTuple):
    """One launch a layer, and what a check must know of it."""

    name: str
    layout: str  # of the cache, in words
    launches: list[Launch]
    # whether softmax weights are rounded to the dtype before they multiply the values
    rounds_weights: bool = True
    ours: bool = False


class Candidate(NamedTuple):
    """Somebody's kernels, before anything of theirs is imported."""

    name: str
    distributions: tuple[str, ...]  # whose versions are recorded
    block_size: int
    bind: Callable[[Bound], list[Kernel]]  # the adapter: a step in blocks of that size -> launches
    copies: int = 0  # of K and V that its launches hold, beside the pool


class Layer(NamedTuple):
    """Keys and values of one layer."""

    keys: Any  # [num_blocks, block_size, num_kv_heads, head_size], or heads first in HND
    values: Any


def table_of(bound: Bound) -> Any:
    """The block table that all kernels have."""
    return bound.tables["shared"]


def scale_of(bound: Bound) -> float:
    """Factor of the scores."""
    return float(bound.model.head_size**-0.5)


def layers_of(bound: Bound, layout: str = "NHD") -> Iterable[Layer]:
    """Keys and values of each layer in a layout; copies unless it is NHD with 16 tokens."""
    for keys, values in zip(bound.keys, bound.values, strict=True):
        if layout == "HND":
            keys, values = (pool.swapaxes(1, 2) for pool in (keys, values))
            if bound.how.kind == "cpu":
                keys, values = np.ascontiguousarray(keys), np.ascontiguousarray(values)
            else:
                keys, values = keys.contiguous(), values.contiguous()
        yield Layer(keys, values)


def tensor(array: Any) -> Any:
    """A torch tensor over the same bytes."""
    return as_torch(array) if place(array) == "numpy" else array


def torch_arrays(bound: Bound) -> tuple[Any, Any, Any]:
    """Query [batch, num_heads, head_size], block table and lengths as tensors where K and V are."""
    ids, lens = bound.arrays("shared")
    return tensor(bound.query), tensor(ids), tensor(lens)


def torch_layers(bound: Bound) -> Iterable[Layer]:
    """Keys and values of each layer as tensors."""
    return (Layer(tensor(keys), tensor(values)) for keys, values in layers_of(bound))


def torch_kernel(name: str, bound: Bound, act: Callable[..., None], out: Any) -> Kernel:
    """The kernel of a function of a layer's keys and values, both in NHD, that writes `out`."""
    return Kernel(name, "NHD", [
        Launch(partial(act, keys, values), name, "NHD", "request", out)
        for keys, values in torch_layers(bound)
    ])  # fmt: skip
