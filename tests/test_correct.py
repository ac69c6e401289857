"""The check of every kernel: all of a backend's cases, and a wrong kernel is seen."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apclab import attention, bench
from apclab.bench import correct


def first(case: str, dtype: str = "float32") -> bench.Check:
    return next(c for c in bench.checks("cpu", dtypes=[dtype]) if c.case == case)


def test_every_combination_once() -> None:
    checks = bench.checks("cpu")
    assert len(checks) == len(set(checks))
    cases = [case for case in (*bench.CASES, "prefill") if case != "private"]
    assert {check.case for check in checks} == set(cases)
    # 4 steps, 2 layouts, 2 orders, 3 dtypes
    assert len(checks) == 4 * 2 * 2 * 3 * len(cases)


@pytest.mark.parametrize("case", ["shared", "prefill"])
def test_a_row_a_check(case: str) -> None:
    row = bench.check_kernel(first(case))
    assert row["within"]
    assert row["checked"] == "all pairs"
    assert row["used"] == row["max_error"] / row["error_bound"] <= 1


@pytest.mark.parametrize("wrong", [0.1, float("nan")])
def test_a_wrong_kernel_is_seen(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    bind = attention.plan

    def plan(**arrays: Any) -> attention.Launch:
        launch = bind(**arrays)

        def act() -> None:
            launch()
            launch.out[2, 1, 3] += wrong

        return replace(launch, act=act)

    monkeypatch.setattr(correct, "plan", plan)
    row = bench.check_kernel(first("shared"))
    assert not row["within"]
    assert row["used"] is None
    assert (row["max_error"] is None) == np.isnan(wrong)


def test_a_prefill_is_a_decode_step_a_token() -> None:
    work, model = correct._STEPS["gqa"]
    arrays = correct._prefill(bench.step_arrays(bench.decode_step(work), model, dtype="float32"))
    starts, lens = arrays["query_start_loc"], arrays["seq_lens"]
    assert (np.diff(starts) >= 1).all()
    assert (np.diff(starts) <= lens).all()
    same = correct._as_decode(arrays)
    assert len(same["query"]) == starts[-1] == len(same["seq_lens"]) == len(same["block_tables"])
    # the last new token of a request sees all of it, the first all but the other new ones
    assert same["seq_lens"][starts[1:] - 1].tolist() == lens.tolist()
    assert same["seq_lens"][starts[:-1]].tolist() == (lens - np.diff(starts) + 1).tolist()
