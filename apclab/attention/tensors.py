"""NumPy arrays and torch tensors: what and where they are, one seen as the other without a copy."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def place(array: Any) -> str | None:
    """Where an array lives: "numpy", "torch" (host memory), "cuda", or None for anything else."""
    if isinstance(array, np.ndarray):
        return "numpy"
    # no import of torch: who holds a tensor has imported it
    if any(
        base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(array).__mro__
    ):
        return "cuda" if array.is_cuda else "torch"
    return None


def dtype_name(array: Any) -> str:
    """The dtype as NumPy calls it."""
    return str(array.dtype).removeprefix("torch.")


def is_contiguous(array: Any) -> bool:
    """Whether the elements lie in a row, the last dimension fastest."""
    if isinstance(array, np.ndarray):
        return array.flags.c_contiguous
    return bool(array.is_contiguous())


def first_not_finite(array: Any) -> list[int] | None:
    """Where the first NaN or infinity is, None if there is none."""
    if isinstance(array, np.ndarray):
        bad = ~np.isfinite(array)
        return np.argwhere(bad)[0].tolist() if bad.any() else None
    bad = ~array.isfinite()
    return bad.nonzero()[0].tolist() if bool(bad.any()) else None


def as_numpy(array: Any) -> Array:
    """A tensor in host memory as a NumPy array over the same bytes."""
    if isinstance(array, np.ndarray):
        return array
    import torch

    array = array.detach()
    if array.dtype == torch.bfloat16:  # NumPy has none: the bits, then ml_dtypes' view of them
        import ml_dtypes

        bits: Array = array.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    numbers: Array = array.numpy()
    return numbers


def as_torch(array: Array) -> Any:
    """A NumPy array as a torch tensor over the same bytes."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_host(array: Any) -> Array:
    """The same numbers in a NumPy array, copied only if they lie on a GPU."""
    return as_numpy(array.cpu() if place(array) == "cuda" else array)


def interpreting() -> bool:
    """Whether Triton interprets its kernels in this process, on tensors in host memory."""
    return os.environ.get("TRITON_INTERPRET") == "1"
