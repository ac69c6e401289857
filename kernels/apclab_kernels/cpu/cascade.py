"""Paged-attention decode on the CPU, prefix-aware: a shared run is read once for all its queries.

Runs become partial states by matrix products (`products`), what lies behind them by the paged
kernel over tables that begin there, and the states of a request are merged (`merge`).
"""

from typing import Any, NamedTuple

import numpy as np

from apclab_kernels.cpu import decode, merge, products
from apclab_kernels.cpu.spans import Sight
from apclab_kernels.layout import Elements, Int32, cache_shape
from apclab_kernels.runs import Runs, tails_of


class Bound(NamedTuple):
    """Arguments of the three launches: runs, tails, merge; None where there is nothing to do."""

    runs: tuple[Any, ...] | None
    tails: decode.Bound | None
    merge: tuple[Any, ...]


def bind(
    query: Elements,
    key_cache: Elements,
    value_cache: Elements,
    block_tables: Int32,
    seq_lens: Int32,
    out: Elements,
    lse: Elements,
    *,
    scale: float,
    layout: str = "NHD",
    order: str = "request",
    runs: Runs,
) -> Bound:
    """Arguments for `run`: everything that need not be done again at each call.

    Shapes and dtypes as in `reference.paged_attention_decode`; all arrays C-contiguous. `out` has
    the dtype of the query, lse is float32 [batch, num_heads]. `runs` are those of the tables, as
    from `runs.find_runs`; tables and lengths are taken as they are now. `order` is that of the
    tails' kernel.
    """
    arrays = (query, key_cache, value_cache)
    batch, num_heads, size = query.shape
    block_size = cache_shape(key_cache, layout).block_size
    tables, lens = tails_of(block_tables, seq_lens, runs, block_size)
    slots = _slots(runs, batch)
    parts = int(slots.max(initial=-1)) + 1
    has_tails = bool(lens.any()) or not parts
    states = merge.no_states(batch, num_heads, parts + has_tails, size)
    tails = products_of_runs = None
    if has_tails:
        tails = decode.bind_states(
            *arrays, tables, lens, states, parts, scale=scale, layout=layout, order=order
        )
    if runs.runs:
        # heads outside: each thread gets as much of every run
        products_of_runs = products.bind(
            *arrays, _sight(runs, block_size), products.in_states(states, slots, query),
            scale=scale, layout=layout, order="head",
        )  # fmt: skip
    return Bound(products_of_runs, tails, merge.bind(states, out, lse))


def run(bound: Bound) -> None:
    """Launch the kernels once: fills the `out` and `lse` that were bound."""
    if bound.runs is not None:
        products.run(bound.runs)
    if bound.tails is not None:
        decode.run(bound.tails)
    merge.run(bound.merge)


def _sight(runs: Runs, block_size: int) -> Sight:
    """All requests of a run see all of its tokens."""
    tables = np.zeros((len(runs.runs), max(len(one.blocks) for one in runs.runs)), np.int32)
    for table, one in zip(tables, runs.runs, strict=True):
        table[: len(one.blocks)] = one.blocks
    lens = np.array([len(one.blocks) * block_size for one in runs.runs], np.int32)
    requests = np.concatenate([one.requests for one in runs.runs])
    starts = np.cumsum([0, *(len(one.requests) for one in runs.runs)]).astype(np.int32)
    return Sight(tables, lens, lens, requests, starts)


def _slots(runs: Runs, batch: int) -> Int32:
    """Which state of its requests each run makes: 0 for the first of a request, then 1."""
    seen = np.zeros(batch, np.int32)
    slots = np.empty(len(runs.runs), np.int32)
    for i, one in enumerate(runs.runs):
        slots[i] = seen[one.requests].max()
        seen[one.requests] += 1
    return slots
