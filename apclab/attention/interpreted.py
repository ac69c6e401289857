"""The Triton kernel in Triton's interpreter, in a process of its own: its numbers, never its speed.

Needs triton, but neither torch nor a GPU.
"""

import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from apclab.attention.checks import check_arrays, check_names, check_tables
from apclab.attention.launch import Launch, Unavailable
from apclab.attention.tensors import Array

# older interpreters fail with NumPy 2.4
OLDEST = "3.7"


def plan_interpreted(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_tables: Array,
    seq_lens: Array,
    *,
    scale: float | None = None,
    layout: str = "NHD",
    order: str = "request",
    splits: int = 1,
) -> Launch:
    """Bind a decode step to Triton's interpreter; a call starts a process and waits for it.

    The interpreter runs the kernel's source in NumPy, a program after the other: the arithmetic and
    the addresses are the kernel's, the time is not. It takes about 5 ms a program.

    Args:
        query: NumPy arrays, these and the next four as in `plan`.
        key_cache: as in `plan`.
        value_cache: as in `plan`.
        block_tables: as in `plan`.
        seq_lens: as in `plan`.
        scale: as in `plan`.
        layout: as in `plan`.
        order: as in `plan`.
        splits: programs that share a sequence.

    Raises:
        TypeError: as in `plan`.
        ValueError: as in `plan`, or a shape that the kernel cannot do.
        Unavailable: triton is missing or too old; the message says what to install.
    """
    _require()
    from apclab_kernels.layout import cache_shape
    from apclab_kernels.triton.variant import MOST_SPLITS, variant

    check_names(layout=layout, order=order)
    if not 1 <= splits <= MOST_SPLITS:
        raise ValueError(f"splits must be 1 to {MOST_SPLITS}, got {splits}")
    check_arrays(query, key_cache, value_cache, layout)
    _, block_size, num_kv_heads, _ = cache_shape(key_cache, layout)
    check_tables(block_tables, seq_lens, len(query), len(key_cache), block_size)
    _, num_heads, head_size = query.shape
    variant(
        query.dtype.name, num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=head_size,
        block_size=block_size,
    )  # fmt: skip
    step = {
        "query": _bytes(query), "key_cache": _bytes(key_cache), "value_cache": _bytes(value_cache),
        "block_tables": block_tables, "seq_lens": seq_lens, "dtype": query.dtype.name,
        "scale": head_size**-0.5 if scale is None else float(scale),
        "layout": layout, "order": order, "splits": splits,
    }  # fmt: skip
    out, lse = np.empty_like(query), np.empty(query.shape[:2], np.float32)
    return Launch(_act(step, out, lse), "triton", layout, order, out, lse)


def interpreter() -> str:
    """One sentence: which interpreter runs the Triton kernel here, or what to install for one."""
    try:
        _require()
    except Unavailable as missing:
        return str(missing)
    return f"triton {_version()} interprets the kernel, in a process of its own"


def _act(step: dict[str, Any], out: Array, lse: Array) -> Callable[[], None]:
    def act() -> None:
        with TemporaryDirectory(prefix="apclab-") as folder:
            asked, answered = Path(folder, "step.npz"), Path(folder, "result.npz")
            np.savez(asked, **step)
            done = subprocess.run(
                [sys.executable, "-m", "apclab_kernels.triton.worker", asked, answered],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
                raise RuntimeError(f"the interpreter's process failed: {said[-1]}")
            with np.load(answered) as result:
                out[...] = result["out"].view(out.dtype)[..., 0]
                lse[...] = result["lse"]

    return act


def _bytes(array: Array) -> Array:
    """[..., n] elements as uint8 [..., n, itemsize]: files of NumPy know no bfloat16."""
    return np.ascontiguousarray(array)[..., None].view(np.uint8)


def _require() -> None:
    from packaging.version import Version

    found = _version()
    if found is None:
        raise Unavailable(
            f"Triton's interpreter needs triton, on Linux; install it with: "
            f"pip install 'triton>={OLDEST}'"
        )
    if Version(found) < Version(OLDEST):
        raise Unavailable(
            f"Triton's interpreter needs triton {OLDEST} or newer, {found} is installed; "
            f"install it with: pip install 'triton>={OLDEST}'"
        )


def _version() -> str | None:
    """Triton's version, None if it is missing; builds under another name count as new enough."""
    if find_spec("triton") is None:
        return None
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return OLDEST
