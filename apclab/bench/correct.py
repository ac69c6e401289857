"""Every kernel of a backend on small steps of odd sizes, all elements against float64, no times."""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from apclab.attention import (
    DTYPES,
    LAYOUTS,
    ORDERS,
    as_torch,
    compare,
    compare_on_device,
    dtype_of,
    plan,
    plan_prefill,
    to_host,
)
from apclab.bench.how import CASES
from apclab.bench.numbers import step_arrays, verdict
from apclab.bench.step import decode_step
from apclab.specs import ModelShape
from apclab.workload import Workload

# odd lengths, groups, one request, one token: (workload, heads); lengths are those of the mid step
_STEPS = {
    "gqa": (Workload(7, 290, 20, 0.9, 2), ModelShape("gqa", 1, 8, 2, 128)),
    "mha": (Workload(5, 62, 2, 0.5), ModelShape("mha", 1, 3, 3, 64)),
    "one long": (Workload(1, 1990, 20), ModelShape("one long", 1, 4, 1, 128)),
    "many short": (Workload(33, 15, 2), ModelShape("many short", 1, 2, 2, 64)),
}


class Check(NamedTuple):
    """One kernel on one step."""

    backend: str
    case: str  # "shared", "cascade" on the same tables, or "prefill" of each request's last tokens
    step: str  # a name of the list above
    dtype: str
    layout: str
    order: str

    def __str__(self) -> str:
        """In words."""
        return f"{self.case}, {self.step}, {self.dtype}, {self.layout}, order {self.order}"


def checks(backend: str, *, dtypes: Sequence[str] = DTYPES) -> list[Check]:
    """What `check_kernel` can check of a backend, changing everything early on."""
    cases = [case for case in CASES if case != "private"]
    cases.append("prefill")
    return [
        Check(backend, case, step, dtype, layout, order)
        for step, layout, order, dtype, case in product(_STEPS, LAYOUTS, ORDERS, dtypes, cases)
    ]


def check_kernel(check: Check) -> dict[str, Any]:
    """Run one kernel and compare all of its output.

    Returns:
        The check's fields, "max_error" and "error_bound" of the element that comes closest to its
        bound, "used" (the one over the other), "within" and "checked".
    """
    work, model = _STEPS[check.step]
    step = decode_step(work)
    on_gpu = check.backend == "triton"
    # NumPy has no bfloat16 without ml_dtypes; a GPU rounds float32 itself
    arrays: dict[str, Any] = step_arrays(
        step, model, dtype="float32" if on_gpu else check.dtype, layout=check.layout
    )
    if on_gpu:
        arrays = {name: as_torch(array).cuda() for name, array in arrays.items()}
        for name in ("query", "key_cache", "value_cache"):
            arrays[name] = arrays[name].to(_torch_dtype(check.dtype))
    if check.case == "prefill":
        arrays = _prefill(arrays)
    # what it does not write is found: NaN is never within a bound
    out = arrays["query"].clone() if on_gpu else arrays["query"].astype(dtype_of(check.dtype))
    out[...] = float("nan")
    how: dict[str, Any] = {
        "layout": check.layout, "backend": check.backend, "order": check.order, "out": out,
    }  # fmt: skip
    if check.case == "prefill":
        launch = plan_prefill(**arrays, **how)
        arrays = _as_decode(arrays)
    else:
        launch = plan(**arrays, **how, cascade=check.case == "cascade")
    launch()
    found = (compare_on_device if on_gpu else compare)(launch, **arrays)
    return check._asdict() | verdict(found) | {"checked": found.checked}


def _prefill(arrays: dict[str, Any]) -> dict[str, Any]:
    """The last tokens of each request as new ones: as many as it has queries at hand, or fewer."""
    lens = arrays["seq_lens"]
    new = [1 + (7 * row + 2) % min(int(n), 40) for row, n in enumerate(lens.tolist())]
    starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    # the queries again and again, each time a little smaller, so that no two tokens have the same
    rows = np.arange(starts[-1])
    query, batch = arrays["query"], len(lens)
    shrink = 1 - rows // batch / 64
    if isinstance(query, np.ndarray):
        made: Any = (query[rows % batch] * shrink[:, None, None]).astype(query.dtype)
    else:
        factors = as_torch(shrink).to(query.device, query.dtype)
        made = query[as_torch(rows % batch).to(query.device)] * factors[:, None, None]
        starts = as_torch(starts).to(query.device)
    return arrays | {"query": made, "query_start_loc": starts}


def _as_decode(arrays: dict[str, Any]) -> dict[str, Any]:
    """The decode step that is the same: each new token a request that ends with it."""
    starts, lens = (to_host(arrays[name]) for name in ("query_start_loc", "seq_lens"))
    new = np.diff(starts)
    request = np.repeat(np.arange(len(lens)), new)
    position = lens[request] - new[request] + np.arange(starts[-1]) - starts[request]
    tables = to_host(arrays["block_tables"])[request]
    made = {name: arrays[name] for name in ("query", "key_cache", "value_cache")}
    return made | {"block_tables": tables, "seq_lens": (position + 1).astype(np.int32)}


def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)
