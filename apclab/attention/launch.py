"""A bound kernel, and which backends can run here."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apclab.attention.tensors import interpreting

Int32 = NDArray[np.int32]

BACKENDS = ("reference", "cpu", "triton")
LAYOUTS = ("NHD", "HND")
ORDERS = ("request", "head")
DTYPES = ("float32", "float16", "bfloat16")


class Unavailable(RuntimeError):  # noqa: N818 - a state of the machine, not a mistake
    """What was named cannot run on this machine or in this version; the message says what helps."""


@dataclass(frozen=True, eq=False)
class Launch:
    """A bound kernel: calling it runs the kernel once and returns nothing.

    On a GPU a call returns before the kernel is done.
    """

    act: Callable[[], None]
    backend: str
    layout: str = "NHD"
    order: str = "request"
    out: Any = field(default_factory=lambda: np.empty(0))  # [batch, num_heads, head_size]
    lse: Any = field(default_factory=lambda: np.empty(0, np.float32))  # [batch, num_heads]
    ran: str = "paged"  # or "cascade"
    why: str = ""  # which runs the prefix-aware kernel left out, in a sentence

    def __call__(self) -> None:
        """Run the kernel once, into `out` and `lse`."""
        self.act()


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of "float32", "float16" or "bfloat16" (which comes from ml_dtypes).

    Raises:
        ValueError: another name.
    """
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def require(backend: str) -> None:
    """Raise if a backend cannot run here.

    Raises:
        Unavailable: with the reason and what would help.
    """
    if backend == "triton":
        _require_triton()
    if backend == "cpu":
        _require_numba()


def _require_numba() -> None:
    if find_spec("numba") is None:
        raise Unavailable("the cpu backend needs numba; install it with: pip install numba")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise Unavailable(
            "the cpu backend compiles its kernels, and NUMBA_DISABLE_JIT forbids that; unset it"
        )


def _require_triton() -> None:
    for name in ("torch", "triton"):
        if find_spec(name) is None:
            raise Unavailable(
                f"the triton backend needs {name}; install it with: pip install 'apclab[torch]'"
            )
    if interpreting():
        return
    import torch

    if torch.cuda.is_available():
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise Unavailable(
            f"the triton backend needs a GPU build of torch, and {torch.__version__} is a CPU "
            f"build; install one with: pip install --force-reinstall 'apclab[torch]', "
            f"or use --backend cpu"
        )
    raise Unavailable(
        "the triton backend needs a GPU that torch can use, and torch sees none (nvidia-smi tells "
        "whether the driver does); use --backend cpu, which shows the same effect on CPU caches"
    )


def resolve(backend: str) -> str:
    """What "auto" means: triton where a GPU is at hand, else cpu; other names stay as they are."""
    if backend != "auto":
        return backend
    # importing torch takes seconds: not before a GPU's device file is there
    files = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")
    if interpreting() or not any(map(os.path.exists, files)):
        return "cpu"
    try:
        _require_triton()
    except Unavailable:
        return "cpu"
    return "triton"


def kernel_cache_note(backend: str) -> str:
    """What a user must know of where compiled kernels are kept; "" where that is as usual."""
    if backend != "cpu":
        return ""
    from apclab_kernels.cpu.cache import CACHE_NOTE

    return CACHE_NOTE
