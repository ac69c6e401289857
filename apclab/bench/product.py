"""The product of two square matrices: NumPy's on the CPU, torch's on a GPU. What a peak is here."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from apclab.attention import ROUNDOFF
from apclab.bench.bound import WrongResult
from apclab.bench.how import How
from apclab.results import Record

# rows and columns: at least 90 % of the rate of larger ones, 2 and 137 * 10**9 operations a call
_SIZE = {"cpu": 1024, "cuda": 4096}
_CHECKED_ROWS = 4


class Product(NamedTuple):
    """A product, checked, bound to its arrays."""

    act: Callable[[], None]  # on a GPU it returns before it is done
    size: int
    dtype: str  # float32 on a CPU; on a GPU that of the cache, as its matrix units take it
    max_error: float
    error_bound: float
    notes: tuple[str, ...] = ()

    def fields(self) -> Record:
        """What a calibration record says of it, times left out."""
        return {
            "probe": "product",
            "asked": {"m": self.size, "n": self.size, "k": self.size, "dtype": self.dtype},
            "l2": "warm",
            "logical_bytes": 0,
            "distinct_bytes": 0,
            "flops": 2 * self.size**3,
            "max_error": self.max_error,
            "error_bound": self.error_bound,
            "checked": f"{_CHECKED_ROWS} of {self.size} rows",
            "notes": list(self.notes),
        }


def plan_product(how: How) -> Product:
    """Make two matrices, multiply them once, hold some rows against float64.

    Raises:
        WrongResult: an element is outside its bound.
    """
    size = _SIZE[how.kind]
    notes: tuple[str, ...] = ()
    dtype = how.dtype if how.kind == "cuda" else "float32"
    rng = np.random.default_rng(0)
    left: Any = rng.standard_normal((size, size), np.float32)
    right: Any = rng.standard_normal((size, size), np.float32)
    if how.kind == "cuda":
        import torch

        # the bound is too wide to tell
        if dtype == "float32" and torch.backends.cuda.matmul.allow_tf32:
            notes = ("TF32 was on: fewer bits than float32 has",)
        left, right = (torch.from_numpy(x).to("cuda", getattr(torch, dtype)) for x in (left, right))
        out: Any = torch.empty_like(left)

        def act() -> None:
            torch.matmul(left, right, out=out)

        act()
        rows, a, b = (x.double().cpu().numpy() for x in (out[:_CHECKED_ROWS], left, right))
    else:
        out = np.empty_like(left)

        def act() -> None:
            np.matmul(left, right, out=out)

        act()
        rows, a, b = (x.astype(np.float64) for x in (out[:_CHECKED_ROWS], left, right))
    a = a[:_CHECKED_ROWS]
    exact = a @ b
    # a sum of n products in float32 (Higham, 3.1), and one rounding to the result's dtype
    bound = size * 2.0**-24 * (np.abs(a) @ np.abs(b)) + ROUNDOFF[dtype] * np.abs(exact)
    error = np.abs(rows - exact)
    at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error / bound)), error.shape)
    if not error[at] <= bound[at]:
        raise WrongResult(
            f"product of {dtype} matrices of {size}: an element is {error[at]:.3g} from float64, "
            f"its bound is {bound[at]:.3g}"
        )
    return Product(act, size, dtype, float(error[at]), float(bound[at]), notes)
