"""Runs the Triton kernel in Triton's interpreter over all cases; one JSON line a case.

A process of its own, `TRITON_INTERPRET=1 python -m tests.interpreted FOLDER`, started by
test_triton_interpreted.py. The folder takes altered copies of the kernel and a sparse file.
"""

import importlib
import itertools
import json
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from apclab_kernels.triton.worker import Tensor, interpret

from tests.kernel_cases import DTYPES, Case, assert_exact, truth_of

# what the kernels have parts of, where a line to be altered may be
SHARED = ("triton/merge", "triton/tile", "triton/work", "runs")
LAYOUTS = ("NHD", "HND")
ORDERS = ("request", "head")
SPLITS = (1, 2, 3, 7)
# Units of u * sum p|v| beyond the kernel's float32 arithmetic. float16: the weights are rounded to
# it before the second product. bfloat16: its weights stay float32 in the interpreter, but the
# interpreter truncates the output where a GPU rounds, which costs u |out| <= u * sum p|v| more.
ROUNDED_WEIGHTS = {"float32": 0.0, "float16": 1.0, "bfloat16": 1.0}

SHAPES = (
    Case(num_heads=3, num_kv_heads=3, head_size=64, seq_lens=(1, 63, 0, 48)),
    Case(num_heads=4, num_kv_heads=2, head_size=64, block_size=7, seq_lens=(100, 7, 70)),
    Case(num_heads=4, num_kv_heads=1, head_size=64, seq_lens=(300, 1), shared_blocks=1),
    Case(num_heads=8, num_kv_heads=1, head_size=64, block_size=256, seq_lens=(256, 257, 0)),
    Case(num_heads=2, num_kv_heads=2, head_size=96, block_size=1, seq_lens=(33, 32, 31)),
    Case(num_heads=5, num_kv_heads=1, head_size=96, block_size=32, seq_lens=(63, 64, 65)),
    Case(num_heads=16, num_kv_heads=2, head_size=96, seq_lens=(17, 90), shared_blocks=2),
    Case(num_heads=2, num_kv_heads=2, head_size=128, seq_lens=(48, 48, 48), shared_blocks=3),
    Case(num_heads=10, num_kv_heads=2, head_size=128, block_size=7, seq_lens=(63, 0, 1)),
    Case(num_heads=8, num_kv_heads=2, head_size=128, block_size=256, seq_lens=(300,)),
    Case(num_heads=2, num_kv_heads=1, head_size=256, block_size=32, seq_lens=(64, 1, 63)),
    Case(num_heads=1, num_kv_heads=1, head_size=256, block_size=1, seq_lens=(0, 0)),
    Case(num_heads=40, num_kv_heads=2, head_size=64, block_size=16, seq_lens=(50,)),
)


class Run(NamedTuple):
    """A case, and how it is launched."""

    case: Case
    order: str
    splits: int

    @property
    def name(self) -> str:
        c = self.case
        return (
            f"{c.dtype} {c.num_heads}/{c.num_kv_heads}x{c.head_size} block {c.block_size} "
            f"{c.layout} {self.order} splits {self.splits}"
        )


def runs() -> list[Run]:
    """Every shape in every dtype and layout; orders and splits take turns."""
    how = itertools.cycle(itertools.product(SPLITS, ORDERS))
    cases = (
        replace(shape, dtype=dtype, layout=layout, seed=seed)
        for seed, shape in enumerate(SHAPES)
        for dtype in DTYPES
        for layout in LAYOUTS
    )
    return [Run(case, order, splits) for case, (splits, order) in zip(cases, how, strict=False)]


class Fault(NamedTuple):
    """A mistake planted into a copy of the kernel; a run must notice it."""

    right: str
    wrong: str
    splits: int = 1
    dtype: str = "float16"


FAULTS = {
    "a split begins a tile late": Fault(
        "first = (tiles * split // SPLITS)", "first = ((tiles * split + 1) // SPLITS)", 2
    ),
    "a split ends a token early": Fault(
        "(tiles * (split + 1) // SPLITS) * TILE, n)",
        "(tiles * (split + 1) // SPLITS) * TILE - 1, n)", 2,
    ),
    "the last token is left out": Fault("last = tl.minimum(", "last = -1 + tl.minimum("),
    "tokens past the end count": Fault("tl.where(in_split[None, :], sc", "tl.where(True, sc"),
    "a tile has one block": Fault("table + token // B", "table + token * 0 + start // B"),
    "earlier tiles are not scaled": Fault("acc = acc * shrink[:, None] +", "acc = acc +"),
    "query heads are interleaved": Fault("kv_head * GROUP + rows", "kv_head + rows * NUM_KV_HEADS"),
    "lse is in base 2": Fault("lse2 * 0.6931471805599453", "lse2"),
    "merged lse is in base 2": Fault("tl.log2(total)) * 0.6931471805599453", "tl.log2(total))", 3),
    "no tokens divide by zero": Fault("tl.where(empty, 1.0, total)", "total"),
    "no tokens in any split": Fault('tl.where(parts == float("-inf"), 0.0, ', "(", 3),
    "splits weigh the same": Fault("tl.exp2(parts - top))", "1.0)", 2),
    "bfloat16 is multiplied as integers": Fault("if UPCAST:", "if False:", dtype="bfloat16"),
}  # fmt: skip
# planted elsewhere than in a line of the kernel, or seen only there
OTHER_FAULTS = ("32-bit block offset", "one wrong table entry")
OTHERS = ("launch from shapes alone", "far blocks")
FAULTY = Case(num_heads=4, num_kv_heads=2, seq_lens=(150, 1, 0, 63))


def kernel() -> Any:
    """The kernel's module; not imported above, so that pytest can list the names without triton."""
    from apclab_kernels.triton import decode

    return decode


def attend(case: Case, arrays: dict[str, Any], order: str, splits: int, kernels: Any) -> None:
    """Interpret a step and hold it against float64."""
    out, lse = interpret(
        arrays, scale=case.head_size**-0.5, layout=case.layout, order=order, splits=splits,
        kernels=kernels,
    )  # fmt: skip
    assert_exact(
        out, lse, truth_of(case, arrays), case.dtype, rounded_weights=ROUNDED_WEIGHTS[case.dtype]
    )


def poisoned(case: Case) -> dict[str, Any]:
    """The arrays of a case, NaN wherever no sequence has a token."""
    arrays = case.arrays()
    tables, size = arrays["block_tables"], case.block_size
    spare = np.setdiff1d(np.arange(len(arrays["key_cache"])), tables)[0]
    used = np.zeros((len(arrays["key_cache"]), size), bool)  # [num_blocks, block_size]
    for table, n in zip(tables, case.seq_lens, strict=True):
        used[np.repeat(table, size)[:n], np.arange(n) % size] = True
        table[-(-n // size) :] = spare
    for name in ("key_cache", "value_cache"):
        by_token = arrays[name] if case.layout == "NHD" else arrays[name].swapaxes(1, 2)
        by_token[~used] = np.nan
    return arrays


def far(folder: Path) -> tuple[Case, dict[str, Any]]:
    """A step whose blocks lie more than 2**31 elements into the caches; most of them a hole.

    The hole reaches as far below the caches, where 32 bits would wrap to: zeros, not a crash.
    """
    case = Case(dtype="float16", num_heads=2, num_kv_heads=2, seq_lens=(40, 17))
    arrays = case.arrays()
    small = arrays["key_cache"].shape
    most = 2**31 // int(np.prod(small[1:])) + small[0]  # blocks
    for name in ("key_cache", "value_cache"):
        hole = np.memmap(folder / name, np.float16, "w+", shape=(2 * most, *small[1:]))
        (folder / name).unlink()  # the mapping keeps it; nobody is to copy a file of 8 GB
        hole[-small[0] :] = arrays[name]
        arrays[name] = hole[most:]
    arrays["block_tables"] += most - small[0]
    return case, arrays


def planted(folder: Path, name: str, right: str, wrong: str, of: str = "decode") -> Any:
    """A module out of a copy of the kernels with a mistake in one of them."""
    package = folder / "planted_{}".format("".join(c if c.isalnum() else "_" for c in name))
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    others = shutil.ignore_patterns("__pycache__", "cpu", "aot", "reference.py")
    shutil.copytree(Path(kernel().__file__).parents[1], package, ignore=others)
    # in the module itself, or else in one that it has parts of
    files = [package / f"{module}.py" for module in (f"triton/{of}", *SHARED)]
    having = [file for file in files if right in file.read_text("utf-8")]
    assert having, f"no kernel has the line for {name!r} any more"
    having[0].write_text(having[0].read_text("utf-8").replace(right, wrong), "utf-8")
    for file in package.rglob("*.py"):
        text = file.read_text("utf-8").replace("apclab_kernels", package.name)
        file.write_text(text, "utf-8")
    return importlib.import_module(f"{package.name}.triton.{of}")


def wrong_entry() -> None:
    """One block of ten is another one's, for the kernel only."""
    case = Case(dtype="bfloat16", num_heads=2, num_kv_heads=2, head_size=128, seq_lens=(150, 150))
    arrays = case.arrays()
    truth = truth_of(case, arrays)
    arrays["block_tables"][1, 7] = arrays["block_tables"][0, 7]
    out, lse = interpret(
        arrays, scale=128**-0.5, layout="NHD", order="request", splits=1, kernels=kernel()
    )
    assert_exact(out, lse, truth, "bfloat16", rounded_weights=ROUNDED_WEIGHTS["bfloat16"])


def same_launch() -> None:
    """Lengths do not decide what is launched: a CUDA graph may replay it at the next step."""
    launches = []
    for seq_lens in ((4096, 1), (1, 1)):
        arrays = FAULTY.arrays() | {
            "block_tables": np.zeros((2, 256), np.int32),
            "seq_lens": np.array(seq_lens, np.int32),
        }
        tensors = [Tensor(array) for array in arrays.values()]
        tensors[0] = Tensor(arrays["query"][:2])
        out, lse = Tensor(arrays["query"][:2].copy()), Tensor(np.empty((2, 4), np.float32))
        grid, chosen, _, numbers, *_ = kernel().bind(*tensors, out, lse, scale=1.0)
        launches.append((grid, chosen, numbers))
    assert launches[0] == launches[1]


def checks(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every check with its name; those that begin with "fault" have to fail."""
    for run in runs():
        yield run.name, partial(_checked, run.case, run.order, run.splits, kernel())
    yield "launch from shapes alone", same_launch
    away = far(folder)
    yield "far blocks", partial(attend, *away, "request", 1, kernel())
    narrow = planted(
        folder, "narrow", "block.to(tl.int64) * block_stride",
        "(block * block_stride).to(tl.int64)",
    )  # fmt: skip
    yield "fault: 32-bit block offset", partial(attend, *away, "request", 1, narrow)
    yield "fault: one wrong table entry", wrong_entry
    for name, fault in FAULTS.items():
        module = planted(folder, name, fault.right, fault.wrong)
        case = replace(FAULTY, dtype=fault.dtype)
        yield f"fault: {name}", partial(_checked, case, "request", fault.splits, module)


def _checked(case: Case, order: str, splits: int, kernels: Any) -> None:
    attend(case, poisoned(case), order, splits, kernels)


def report(checks: Iterator[tuple[str, Callable[[], None]]]) -> None:
    """Print a line for each check."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # so it is known to work without
    for name, check in checks:
        result: dict[str, str | None] = {"name": name, "failure": None, "crash": None}
        try:
            check()
        except AssertionError as error:
            result["failure"] = str(error) or "assertion failed"
        except Exception:
            result["crash"] = traceback.format_exc()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    report(checks(Path(sys.argv[1])))
