"""Whether the prefix-aware kernel runs: finds the shared runs of a step, and chooses among them."""

from typing import Any

from apclab_kernels.runs import Rates, Runs, choose_runs, find_runs

from apclab.attention.launch import Int32

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
        rates: of the machine; None takes every run of at least two requests.

    Returns:
        The runs, None where the paged kernel is to run, and why some or all were left out: a
        sentence, "" where none was.
    """
    axes = (1, 2) if layout == "NHD" else (2, 1)
    block_size, num_kv_heads = (int(key_cache.shape[axis]) for axis in axes)
    found = find_runs(tables, lens, block_size)
    if not found.runs:
        return None, f"{PAGED}: no two requests share a full block from their first token on"
    if rates is None:
        return found, ""
    chosen, why = choose_runs(
        found, block_size=block_size, num_heads=query.shape[1], num_kv_heads=num_kv_heads,
        head_size=query.shape[2], itemsize=_itemsize(key_cache), rates=rates,
    )  # fmt: skip
    if not chosen.runs:
        return None, f"{PAGED}: {why}"
    return chosen, f"the prefix-aware kernel ran in part: {why}" if why else ""


def _itemsize(array: Any) -> int:
    return int(array.itemsize if hasattr(array, "itemsize") else array.element_size())
