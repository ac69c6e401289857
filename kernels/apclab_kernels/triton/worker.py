"""The Triton kernel in Triton's interpreter, on NumPy arrays: to look and to test, not to time.

A process either interprets or compiles, decided before its first `import triton`. So the
interpreter has a process of its own: `python -m apclab_kernels.triton.worker STEP.npz RESULT.npz`.
"""

import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ARRAYS = ("query", "key_cache", "value_cache", "block_tables", "seq_lens")


class Tensor:
    """A NumPy array behind the methods of a torch tensor that the interpreter and `bind` call.

    With it the interpreter needs triton alone, not the gigabytes of torch. Triton copies what a
    kernel touches to the host and back; here both are the same memory.
    """

    is_cuda = False

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype.name

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self, axis: int | None = None) -> Any:
        strides = [step // self.array.itemsize for step in self.array.strides]
        return strides if axis is None else strides[axis]

    def size(self) -> tuple[int, ...]:
        return self.shape

    def new_empty(self, shape: Any, device: str = "cpu") -> "Tensor":  # noqa: ARG002
        # what is never written shows
        return Tensor(np.full(shape, np.nan, self.array.dtype))

    def new_full(self, shape: Any, value: float) -> "Tensor":
        return Tensor(np.full(shape, value, self.array.dtype))

    def new_tensor(self, array: Array) -> "Tensor":
        return Tensor(array.copy())

    def numpy(self) -> Array:
        return self.array

    def untyped_storage(self) -> "Tensor":
        return self

    def storage_offset(self) -> int:
        return 0

    def cpu(self) -> "Tensor":
        return self

    def set_(self, storage: "Tensor", *_view: Any) -> None:
        self.__init__(storage.array)  # type: ignore[misc]

    def copy_(self, other: "Tensor") -> None:
        assert other.array is self.array, "one memory"


def interpret(
    arrays: dict[str, Array], *, scale: float, layout: str, order: str, splits: int, kernels: Any
) -> tuple[Array, NDArray[np.float32]]:
    """Run a decode step; outputs start as NaN, so what is never written shows.

    Args:
        arrays: query, key_cache, value_cache, block_tables and seq_lens, as in `reference`.
        scale: factor of the scores.
        layout: "NHD" or "HND".
        order: "request" or "head".
        splits: programs that share a sequence.
        kernels: the module `decode`, or an altered copy, imported while interpreting.

    Returns:
        out, dtype and shape of the query, and lse, float32 [batch, num_heads].
    """
    query = arrays["query"]
    out = np.full(query.shape, np.nan, query.dtype)
    lse = np.full(query.shape[:2], np.nan, np.float32)
    bound = kernels.bind(
        *(Tensor(arrays[name]) for name in ARRAYS), Tensor(out), Tensor(lse),
        scale=scale, layout=layout, order=order, splits=splits,
    )  # fmt: skip
    # an empty split has log2(0); NumPy would warn where a GPU does not
    with np.errstate(all="ignore"):
        kernels.run(bound)
    return out, lse


def main(step: str, result: str) -> None:
    """Read a step from one .npz file, write out and lse to another.

    Args:
        step: the arrays, those of elements as bytes [..., itemsize], since files know no bfloat16;
            `dtype`, `scale`, `layout`, `order`, `splits`.
        result: `out` as bytes [..., itemsize], and `lse`.
    """
    os.environ.update(TRITON_INTERPRET="1", TRITON_DEFAULT_FP_FUSION="1")
    # triton asks torch for its class of tensors if torch is there; the import would take seconds
    sys.modules["torch"] = None  # type: ignore[assignment]
    import ml_dtypes

    from apclab_kernels.triton import decode

    with np.load(step) as file:
        given = dict(file)
    name = str(given["dtype"])
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    arrays = {key: given[key] for key in ARRAYS}
    for key in ARRAYS[:3]:
        arrays[key] = arrays[key].view(dtype)[..., 0]
    out, lse = interpret(
        arrays, scale=float(given["scale"]), layout=str(given["layout"]),
        order=str(given["order"]), splits=int(given["splits"]), kernels=decode,
    )  # fmt: skip
    np.savez(result, out=out[..., None].view(np.uint8), lse=lse)


if __name__ == "__main__":
    main(*sys.argv[1:])
