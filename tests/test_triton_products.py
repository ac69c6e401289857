"""The Triton kernels of prefill and cascade, interpreted, against float64; and planted faults.

Processes of their own interpret (interpreted_products.py): one for what is looked at each time, one
for every layout and order of every dtype. A GPU, where there is one, runs the same steps.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import interpreted_products
from tests.interpreted_products import FAULTS, OTHERS, Kernels, steps

ROOT = Path(__file__).resolve().parents[1]
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="needs triton, in the version of constraints.txt"
)


def _interpret(folder: Path, which: str) -> dict[str, Any]:
    """What a process that interprets said of each check."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    environment = {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.interpreted_products", str(folder), which], cwd=ROOT,
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {answer["name"]: answer for answer in map(json.loads, done.stdout.splitlines())}


def _failures(answers: dict[str, Any], names: list[str]) -> dict[str, str | None]:
    """How checks failed; a crash is no answer."""
    crashed = {name: answers[name]["crash"] for name in names if answers[name]["crash"]}
    assert crashed == {}
    return {name: answers[name]["failure"] for name in names}


@needs_triton
def test_steps_are_right_and_planted_faults_are_noticed(tmp_path: Path) -> None:
    # one test, since it is one process: no test process has to wait for another
    answers = _interpret(tmp_path, "some")
    right = [name for name, _ in steps(some=True)] + list(OTHERS)
    assert {name: why for name, why in _failures(answers, right).items() if why} == {}
    noticed = _failures(answers, [f"fault: {name}" for name in FAULTS])
    words = ("outside its bound", "never written", "lse errs")
    assert [n for n, why in noticed.items() if not any(w in str(why) for w in words)] == []


@needs_triton
@pytest.mark.slow
def test_steps_are_right_in_every_layout_and_order(tmp_path: Path) -> None:
    names = [name for name, _ in steps(some=False)]
    answers = _failures(_interpret(tmp_path, "all"), names)
    assert {name: why for name, why in answers.items() if why} == {}


def test_the_steps_are_many_and_odd() -> None:
    for some in (True, False):
        found = steps(some=some)
        assert len({name for name, _ in found}) == len(found)
        for kind in (interpreted_products.Prefill, interpreted_products.Cascade):
            mine = [step for _, step in found if isinstance(step, kind)]
            assert {step.dtype for step in mine} == {"float32", "float16", "bfloat16"}
            assert {step.layout for step in mine} == {"NHD", "HND"}
            assert {step.order for step in mine} == {"request", "head"}
            assert {step.head_size for step in mine} == {64, 96, 128, 256}
            assert {step.num_heads // step.num_kv_heads for step in mine} >= {1, 2, 5, 20}
            assert {step.splits for step in mine} >= {1, 2, 3}
    # two levels, two groups, and nothing shared
    runs = [len(step.runs(step.arrays()).runs) for step in interpreted_products.CASCADES]
    assert {0, 1, 2} <= set(runs)
    first = interpreted_products.CASCADES[0]
    starts = [run.first for run in first.runs(first.arrays()).runs]
    assert starts == [0, 2]


class _OnGpu:
    """A module of kernels that takes NumPy arrays to the GPU and back."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def bind(self, *tensors: Any, **how: Any) -> Any:
        from apclab.attention import as_torch

        self.host = [tensor.array for tensor in tensors[-2:]]
        on_gpu = [as_torch(tensor.array).cuda() for tensor in tensors]
        self.result = on_gpu[-2:]
        return self.module.bind(*on_gpu, **how)

    def run(self, bound: Any) -> None:
        from apclab.attention.tensors import to_host

        self.module.run(bound)
        for host, result in zip(self.host, self.result, strict=True):
            host[...] = to_host(result)


@needs_triton
@pytest.mark.parametrize("name", [name for name, _ in steps(some=True)])
def test_on_a_gpu_every_element_is_within_its_bound(name: str) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch can use")
    on_gpu = Kernels(*(_OnGpu(module) for module in interpreted_products.real()))
    interpreted_products.checked(dict(steps(some=True))[name], on_gpu)
