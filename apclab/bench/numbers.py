"""The same small step through every backend, held against the reference: numbers, no times."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apclab.attention import (
    DTYPES,
    Comparison,
    Launch,
    Unavailable,
    compare,
    dtype_of,
    plan,
    plan_interpreted,
)
from apclab.bench.step import Step
from apclab.specs import ModelShape


def step_arrays(
    step: Step,
    model: ModelShape,
    *,
    dtype: str = "float16",
    case: str = "shared",
    layout: str = "NHD",
    placement: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """The arguments of a decode kernel for a step, with random keys, values and queries.

    A request has the same tokens in either case and at any placement; only where they lie differs.
    Blocks that no request names hold other random numbers. The pool has the same size in each case.

    Args:
        step: whose block tables.
        model: whose heads.
        dtype: "float32", "float16" or "bfloat16".
        case: "shared" or "private".
        layout: "NHD" or "HND".
        placement: seed of the block ids.
        seed: of the random numbers.

    Raises:
        ValueError: case or dtype is another.
    """
    if case not in ("shared", "private"):
        raise ValueError(f"case must be shared or private, got {case!r}")
    batch, columns = step.shared.block_tables.shape
    # [batch, columns]: which entries a request reads
    named = np.arange(columns) * step.block_size < step.shared.seq_lens[:, None]
    # [entries]: which of the distinct blocks of the shared step an entry holds
    distinct, content = np.unique(step.shared.block_tables[named], return_inverse=True)
    num_blocks = len(content) + 1
    table = getattr(step, case).permuted(placement, num_blocks)
    rng = np.random.default_rng(seed)
    heads = (step.block_size, model.num_kv_heads, model.head_size)
    arrays = {"query": rng.standard_normal((batch, model.num_heads, model.head_size), np.float32)}
    for name in ("key_cache", "value_cache"):
        blocks = rng.standard_normal((len(distinct), *heads), np.float32)
        pool = rng.standard_normal((num_blocks, *heads), np.float32)
        pool[table.block_tables[named]] = blocks[content]
        arrays[name] = pool if layout == "NHD" else pool.swapaxes(1, 2)
    made = {name: np.ascontiguousarray(a.astype(dtype_of(dtype))) for name, a in arrays.items()}
    return made | {"block_tables": table.block_tables, "seq_lens": table.seq_lens}


def run_backends(
    arrays: dict[str, Any], *, layout: str = "NHD", order: str = "request", splits: int = 1
) -> dict[str, NDArray[np.float64]]:
    """What each backend that runs here makes of the same arrays.

    Args:
        arrays: as from `step_arrays`.
        layout: of the caches.
        order: of the kernels' programs.
        splits: programs of the Triton kernel that share a sequence.

    Returns:
        Outputs [batch, num_heads, head_size] of "reference", "cpu", and "triton" (interpreted)
        where `interpreter` says that it is there.
    """
    launches = _launches(arrays, layout, order, splits)
    return {name: launch.out.astype(np.float64) for name, launch in launches.items()}


def check_backends(
    step: Step,
    model: ModelShape,
    *,
    dtypes: Sequence[str] = DTYPES,
    layout: str = "NHD",
    order: str = "request",
    splits: int = 1,
) -> list[dict[str, Any]]:
    """Hold each backend that runs here against the reference, in each dtype.

    Returns:
        One row a backend and dtype: the error of the element that comes closest to its bound, that
        bound, how much of it is used, and whether all elements are within theirs.
    """
    rows = []
    for dtype in dtypes:
        arrays = step_arrays(step, model, dtype=dtype, layout=layout)
        for name, launch in _launches(arrays, layout, order, splits).items():
            if name == "reference":
                continue
            found = compare(launch, **arrays)
            rows.append({"dtype": dtype, "backend": name, **verdict(found)})
    return rows


def verdict(found: Comparison) -> dict[str, Any]:
    """A comparison as fields of a row; what is no number, or of a wrong result, is None."""
    return {
        "max_error": found.max_error if found.max_error == found.max_error else None,
        "error_bound": found.error_bound,
        "used": found.max_error / found.error_bound if found.ok else None,
        "within": found.ok,
    }


def _launches(arrays: dict[str, Any], layout: str, order: str, splits: int) -> dict[str, Launch]:
    """Launches that have run; without the interpreter where it is missing."""
    launches = {
        backend: plan(**arrays, layout=layout, order=order, backend=backend)
        for backend in ("reference", "cpu")
    }
    with suppress(Unavailable):  # `interpreter` says why
        launches["triton"] = plan_interpreted(**arrays, layout=layout, order=order, splits=splits)
    for launch in launches.values():
        launch()
    return launches
