"""Our kernels as the comparison takes them: both layouts, both orders, and the cascade."""

from typing import Any

from apclab.attention import LAYOUTS, ORDERS, plan
from apclab.bench.peers.kernel import Kernel
from apclab.bench.peers.problem import Problem


def bind_paged(problem: Problem) -> list[Kernel]:
    """The paged kernel in all four pairs of layout and order; the table shows the best."""
    return [kernel for layout in LAYOUTS for kernel in _bind(problem, layout)]


def bind_cascade(problem: Problem) -> list[Kernel]:
    """The prefix-aware kernel.

    Raises:
        Unavailable: this version has none.
    """
    return _bind(problem, "NHD", cascade=True)


def _bind(problem: Problem, layout: str, *, cascade: bool = False) -> list[Kernel]:
    backend = "triton" if problem.kind == "cuda" else "cpu"
    tables: Any = (problem.table.block_tables, problem.table.seq_lens)
    if problem.kind == "cuda":
        tables = problem.device_tables
    layers = [problem.layer(index, layout) for index in range(problem.layers)]
    return [
        Kernel(
            name=f"apclab cascade, {layout}" if cascade else f"apclab {layout}, order {order}",
            layout=layout,
            launches=[
                plan(problem.query, keys, values, *tables, layout=layout, backend=backend,
                     order=order, cascade=cascade)
                for keys, values in layers
            ],
            rounds_weights=problem.kind == "cuda",
            ours=True,
        )
        for order in (ORDERS[:1] if cascade else ORDERS)
    ]  # fmt: skip
