"""Our kernels as the comparison takes them: both layouts, both orders, and the cascade."""

from apclab.attention import LAYOUTS, ORDERS, plan
from apclab.bench.bound import Bound
from apclab.bench.peers.kernel import Kernel, layers_of


def bind_paged(bound: Bound) -> list[Kernel]:
    """The paged kernel in all four pairs of layout and order; the table shows the best."""
    return [kernel for layout in LAYOUTS for kernel in _bind(bound, layout)]


def bind_cascade(bound: Bound) -> list[Kernel]:
    """The prefix-aware kernel.

    Raises:
        Unavailable: this version has none.
    """
    return _bind(bound, "NHD", cascade=True)


def _bind(bound: Bound, layout: str, *, cascade: bool = False) -> list[Kernel]:
    layers, arrays = list(layers_of(bound, layout)), bound.arrays("shared")
    return [
        Kernel(
            name=f"apclab cascade, {layout}" if cascade else f"apclab {layout}, order {order}",
            layout=layout,
            launches=[
                plan(bound.query, keys, values, *arrays, layout=layout,
                     backend=bound.how.backend, order=order, cascade=cascade)
                for keys, values in layers
            ],
            rounds_weights=bound.how.kind == "cuda",
            ours=True,
        )
        for order in (ORDERS[:1] if cascade else ORDERS)
    ]  # fmt: skip
