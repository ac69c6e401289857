"""How many programs should share a sequence: the Triton kernel with each number of them, timed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from apclab.attention import Unavailable, compare_on_device, plan_split
from apclab.bench.bound import ready
from apclab.bench.how import How
from apclab.bench.step import decode_step
from apclab.clock import alone, event_time, interleave
from apclab.specs import model as model_named
from apclab.workload import Workload


@alone("compare_splits")
def compare_splits(
    workload: Workload,
    model: str = "llama-13b",
    *,
    dtype: str = "bfloat16",
    splits: Sequence[int | None] = (None, 1, 2, 4, 8, 16, 32),
    budget_s: float = 1.0,
    cancelled: Callable[[], bool] | None = None,
) -> list[dict[str, Any]]:
    """Time the step's `shared` case on the GPU with different numbers of splits, interleaved.

    Args:
        workload: the requests.
        model: a name of `data/models.csv`.
        dtype: of the KV cache.
        splits: programs of a sequence; None is the kernel's own choice.
        budget_s: seconds of timing.
        cancelled: asked between calls.

    Returns:
        A row a number: "splits", "p50_us", "gb_per_s", "max_error", "error_bound", "within". A
        wrong result has no time.

    Raises:
        Unavailable: no GPU.
    """
    how = How(backend="triton", dtype=dtype, cases=("shared",), budget_s=budget_s,
              cancelled=cancelled).resolved()  # fmt: skip
    if how.kind != "cuda":
        raise Unavailable("splits are compared on a GPU; the cpu kernel chooses them by threads")
    bound, _ = ready(decode_step(workload), model_named(model), how)
    table, rows, calls = bound.tables["shared"], [], {}
    for count in splits:
        launches = [
            plan_split(bound.query, k, v, table.block_tables, table.seq_lens, splits=count,
                       layout=how.layout, order=how.order)
            for k, v in zip(bound.keys, bound.values, strict=True)
        ]  # fmt: skip
        launches[0]()
        found = compare_on_device(
            launches[0], bound.query, bound.keys[0], bound.values[0], table.block_tables,
            table.seq_lens, pairs=how.pairs,
        )  # fmt: skip
        rows.append({"splits": count, "max_error": found.max_error,
                     "error_bound": found.error_bound, "within": found.ok})  # fmt: skip
        if found.ok:
            one = replace(bound, launches={"shared": launches})
            calls[str(count)] = one.timed()["shared"]
    samples = interleave(
        calls, budget_s=budget_s, between=bound.between, cancelled=cancelled, timer=event_time
    )
    logical = table.sharing().logical_bytes(bound.model.token_bytes(dtype))
    for row in rows:
        if str(row["splits"]) in samples:
            p50 = float(np.median(samples[str(row["splits"])])) * 1e6
            row |= {"p50_us": p50, "gb_per_s": logical / p50 / 1e3}
    return rows
