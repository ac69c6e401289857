"""The Triton kernel in Triton's interpreter against float64, over odd shapes, and planted faults.

One process runs all cases (interpreted.py), for all test processes together; what is here looks at
its answers, and at the way there and back through `plan_interpreted`.
"""

import fcntl
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apclab import attention
from apclab.attention import interpreted
from tests.interpreted import FAULTS, OTHER_FAULTS, OTHERS, SPLITS, Run, runs
from tests.kernel_cases import Case, assert_exact, truth_of

ROOT = Path(__file__).resolve().parents[1]
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="needs triton, in the version of constraints.txt"
)


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the interpreter's process said of each check."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the test processes have it in common
    folder /= "interpreted"
    folder.mkdir(exist_ok=True)
    said = folder / "answers.jsonl"
    # who comes second waits for the answers of the first
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            _interpret_all(folder, said)
    lines = said.read_text(encoding="utf-8").splitlines()
    return {answer["name"]: answer for answer in map(json.loads, lines)}


def _interpret_all(folder: Path, said: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    environment = {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
    with said.open("w", encoding="utf-8") as out:
        done = subprocess.run(
            [sys.executable, "-m", "tests.interpreted", str(folder)], cwd=ROOT, check=False,
            env=os.environ | environment, stdout=out, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if done.returncode:
            end = f"ended with status {done.returncode}\n{done.stderr[-2000:]}"
            out.write(json.dumps({"name": "the end", "crash": end}) + "\n")


def _answer(answers: dict[str, Any], name: str) -> str | None:
    """How a check failed, None if it did not; a crash is no answer."""
    if name not in answers:
        pytest.fail(f"the process did not get there: {answers.get('the end')}")
    answer = answers[name]
    assert answer["crash"] is None, answer["crash"]
    failure: str | None = answer["failure"]
    return failure


@needs_triton
@pytest.mark.parametrize("name", [*(run.name for run in runs()), *OTHERS])
def test_is_right(answers: dict[str, Any], name: str) -> None:
    assert _answer(answers, name) is None


@needs_triton
@pytest.mark.parametrize("name", [*FAULTS, *OTHER_FAULTS])
def test_a_planted_fault_is_noticed(answers: dict[str, Any], name: str) -> None:
    failure = _answer(answers, f"fault: {name}")
    assert failure is not None
    assert any(word in failure for word in ("outside its bound", "never written", "lse errs"))


def test_the_cases_are_many_and_odd() -> None:
    def seen(name: str) -> set[Any]:
        return {getattr(run.case, name) for run in runs()}

    assert len({run.name for run in runs()}) == len(runs()) >= 60
    assert seen("dtype") == {"float32", "float16", "bfloat16"}
    assert seen("layout") == {"NHD", "HND"}
    assert seen("head_size") == {64, 96, 128, 256}
    assert seen("block_size") == {1, 7, 16, 32, 256}
    groups = {run.case.num_heads // run.case.num_kv_heads for run in runs()}
    assert groups >= {1, 2, 4, 5, 8, 20}
    lengths = {n for run in runs() for n in run.case.seq_lens}
    assert lengths >= {0, 1, 63, 300, 48, 64, 256, 257}
    # for every dtype: both orders, all splits, and more splits than the longest has tiles of 16
    for dtype in seen("dtype"):
        mine: list[Run] = [run for run in runs() if run.case.dtype == dtype]
        assert {run.splits for run in mine} == set(SPLITS)
        assert {run.order for run in mine} == {"request", "head"}
        assert any(run.splits * 16 > max(run.case.seq_lens) for run in mine)


@needs_triton
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_there_and_back_through_a_process(dtype: str) -> None:
    case = Case(dtype=dtype, num_heads=4, num_kv_heads=2, layout="HND", seq_lens=(33, 0, 1))
    arrays = case.arrays()
    launch = interpreted.plan_interpreted(**arrays, layout="HND", order="head", splits=2)
    launch.out.fill(np.nan)
    launch()
    assert launch.out.dtype == arrays["query"].dtype
    assert_exact(launch.out, launch.lse, truth_of(case, arrays), dtype, rounded_weights=1.0)
    found = attention.compare(launch, **arrays)
    assert found.ok
    assert found.checked == "all pairs"
    arrays["block_tables"][0, 1] = arrays["block_tables"][2, 0]
    assert not attention.compare(launch, **arrays).ok


def test_a_missing_triton_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "_version", lambda: None)
    with pytest.raises(attention.Unavailable, match=r"pip install 'triton>=3\.7'"):
        interpreted.plan_interpreted(**Case().arrays())


def test_an_old_triton_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "_version", lambda: "3.6.0")
    with pytest.raises(attention.Unavailable, match=r"3\.6\.0 is installed"):
        interpreted.plan_interpreted(**Case().arrays())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "NDH"}, "layout must be one of NHD, HND"),
        ({"order": "token"}, "order must be one of request, head"),
        ({"splits": 0}, "splits must be 1 to 64, got 0"),
    ],
)
def test_misuse_raises(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreted, "_version", lambda: "3.7.1")
    with pytest.raises(ValueError, match=message):
        interpreted.plan_interpreted(**Case().arrays(), **change)


def test_an_odd_head_size_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "_version", lambda: "3.7.1")
    with pytest.raises(ValueError, match="head_size must be one of 64, 96, 128, 256"):
        interpreted.plan_interpreted(**Case(head_size=80).arrays())


def test_the_process_is_told_on_when_it_dies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "apclab_kernels" / "triton"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "worker.py").write_text("raise SystemExit('no luck today')")
    monkeypatch.setattr(interpreted, "_version", lambda: "3.7.1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="interpreter's process failed: no luck today"):
        interpreted.plan_interpreted(**Case().arrays())()
