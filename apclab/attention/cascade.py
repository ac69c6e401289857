"""Whether the prefix-aware kernel runs: finds the shared runs of a step, and chooses among them."""

from typing import Any, NamedTuple

from apclab_kernels.layout import cache_shape
from apclab_kernels.runs import Rates, Runs, StepShape, choose_runs, find_runs, saved_s

from apclab.attention.launch import Int32

NOTHING = "no two requests share a full block from their first token on"
PAGED = "the paged kernel ran in place of the prefix-aware one"


def runs_of(
    query: Any, key_cache: Any, tables: Int32, lens: Int32, *, layout: str, rates: Rates | None
) -> tuple[Runs | None, str]:
    """The runs that are to be read once, as the block tables themselves show them.

    Args:
        query: as in `plan`.
        key_cache: as in `plan`.
        tables: int32 [batch, max_blocks], in host memory.
        lens: int32 [batch], in host memory.
        layout: "NHD" or "HND".
        rates: of the machine; None takes every run of at least two requests, also if that is none.

    Returns:
        The runs, None where rates say that the paged kernel is to run, and why some or all were
        left out or none is there: a sentence, "" where there is nothing to say.
    """
    shape = _shape(query, key_cache, layout)
    found = find_runs(tables, lens, shape.block_size)
    if rates is None:
        return found, "" if found.runs else NOTHING
    if not found.runs:
        return None, f"{PAGED}: {NOTHING}"
    chosen, why = choose_runs(found, shape, rates)
    if not chosen.runs:
        return None, f"{PAGED}: {why}"
    return chosen, f"the prefix-aware kernel ran in part: {why}" if why else ""


class Advice(NamedTuple):
    """Which kernel a machine's rates speak for."""

    kernel: str  # "paged" or "cascade"
    saved_s: float  # what reading the shared runs once would save; negative where it costs


def advise(
    query: Any, key_cache: Any, tables: Int32, lens: Int32, *, layout: str, rates: Rates
) -> Advice:
    """Which kernel the rule would take for a step; arguments as in `runs_of`."""
    shape = _shape(query, key_cache, layout)
    found = find_runs(tables, lens, shape.block_size)
    chosen, _ = choose_runs(found, shape, rates)
    saved = sum(saved_s(run, shape, rates) for run in (chosen.runs or found.runs))
    return Advice("cascade" if chosen.runs else "paged", saved - rates.launch_s)


def _shape(query: Any, key_cache: Any, layout: str) -> StepShape:
    _, block_size, num_kv_heads, head_size = cache_shape(key_cache, layout)
    num_heads, itemsize = int(query.shape[1]), _itemsize(key_cache)
    return StepShape(block_size, num_heads, num_kv_heads, head_size, itemsize)


def _itemsize(array: Any) -> int:
    return int(array.itemsize if hasattr(array, "itemsize") else array.element_size())
