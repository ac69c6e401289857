"""How many programs should share a sequence: the Triton kernel with each number of them, timed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from apclab.attention import Unavailable, plan_split
from apclab.bench.bound import ready
from apclab.bench.how import How
from apclab.bench.record import speed
from apclab.bench.step import decode_step
from apclab.clock import alone, interleave
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
    table, rows, right = bound.tables["shared"], [], {}
    for count in splits:
        launches = [
            plan_split(bound.query, k, v, table.block_tables, table.seq_lens, splits=count,
                       layout=how.layout, order=how.order)
            for k, v in zip(bound.keys, bound.values, strict=True)
        ]  # fmt: skip
        found = bound.compare("shared", launches[0])
        rows.append({"splits": count, "max_error": found.max_error,
                     "error_bound": found.error_bound, "within": found.ok})  # fmt: skip
        if found.ok:
            right[str(count)] = launches
    samples = interleave(replace(bound, launches=right).timed(), **bound.timing())
    for row in rows:
        if (seconds := samples.get(str(row["splits"]))) is not None:
            fields = speed(bound, "shared", seconds)
            row |= {name: fields[name] for name in ("p50_us", "gb_per_s")}
    return rows
