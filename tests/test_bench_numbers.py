"""The small step that notebooks run through every backend: same tokens wherever they lie."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from apclab_kernels.reference import gather

from apclab import Workload, attention
from apclab.attention import interpreted
from apclab.bench import check_backends, decode_step, run_backends, step_arrays
from apclab.specs import ModelShape

STEP = decode_step(Workload(batch=3, input_len=40, output_len=4, cache_hit=0.8))
MODEL = ModelShape("small", num_layers=1, num_heads=4, num_kv_heads=2, head_size=64)


def sequences(arrays: dict[str, Any], layout: str, name: str) -> list[Any]:
    return [
        gather(arrays[name], table, int(n), layout)
        for table, n in zip(arrays["block_tables"], arrays["seq_lens"], strict=True)
    ]


@pytest.mark.parametrize("name", ["key_cache", "value_cache"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("case", "placement"), [("shared", 3), ("private", 0), ("private", 3)])
def test_tokens_are_the_same_wherever_they_lie(
    name: str, layout: str, case: str, placement: int
) -> None:
    plain = step_arrays(STEP, MODEL)
    other = step_arrays(STEP, MODEL, layout=layout, case=case, placement=placement)
    assert not np.array_equal(plain["block_tables"], other["block_tables"])
    assert plain["query"].tolist() == other["query"].tolist()
    assert plain[name].size == other[name].size
    here, there = sequences(plain, "NHD", name), sequences(other, layout, name)
    for a, b in zip(here, there, strict=True):
        assert np.array_equal(a, b)
    # 42 tokens: two blocks of 16 shared by all three, the third their own
    assert np.array_equal(here[0][:32], here[1][:32])
    assert not np.array_equal(here[0][32:], here[1][32:])


def test_sharing_and_placement_do_not_move_the_result() -> None:
    plain = run_backends(step_arrays(STEP, MODEL))
    for case, placement in (("shared", 5), ("private", 1)):
        moved = run_backends(step_arrays(STEP, MODEL, case=case, placement=placement))
        assert all(np.array_equal(moved[name], plain[name]) for name in plain)


def test_a_wrong_table_moves_it() -> None:
    arrays = step_arrays(STEP, MODEL)
    plain = run_backends(arrays)
    arrays["block_tables"] = step_arrays(STEP, MODEL, placement=5)["block_tables"]
    assert all(abs(out - plain[name]).max() > 0.1 for name, out in run_backends(arrays).items())


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_every_backend_is_within_its_bound() -> None:
    rows = check_backends(STEP, MODEL, layout="HND", order="head", splits=2)
    assert {(row["dtype"], row["backend"]) for row in rows} == {
        (dtype, backend) for dtype in attention.DTYPES for backend in ("cpu", "triton")
    }
    assert all(row["within"] and 0 < row["used"] <= 1 for row in rows)


def test_a_missing_interpreter_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "_version", lambda: None)
    assert list(run_backends(step_arrays(STEP, MODEL))) == ["reference", "cpu"]
    rows = check_backends(STEP, MODEL, dtypes=["float32"])
    assert [row["backend"] for row in rows] == ["cpu"]
    assert "pip install 'triton" in attention.interpreter()


def test_an_unknown_case_raises() -> None:
    with pytest.raises(ValueError, match="case must be shared or private, got 'cascade'"):
        step_arrays(STEP, MODEL, case="cascade")
