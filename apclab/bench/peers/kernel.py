"""A kernel in the comparison, and how a torch function becomes one."""

from collections.abc import Callable
from typing import Any, NamedTuple

from apclab.attention import Launch, as_torch, place
from apclab.bench.peers.problem import Problem


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
    bind: Callable[[Problem], list[Kernel]]


def torch_query(problem: Problem) -> Any:
    """The query as a tensor, [batch, num_heads, head_size]."""
    return as_torch(problem.query) if place(problem.query) == "numpy" else problem.query


def torch_layer(problem: Problem, index: int, layout: str = "NHD") -> tuple[Any, Any]:
    """Keys and values of a layer as tensors over the same bytes."""
    made = problem.layer(index, layout)
    if problem.kind == "cuda":
        return made.keys, made.values
    return as_torch(made.keys), as_torch(made.values)
