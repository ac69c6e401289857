"""Latencies as `vllm bench serve` defines them, and the identity of issue 4860."""

import numpy as np
import pytest

from apclab.metrics import latencies, summary, tpot_terms


def test_definitions_on_two_requests_by_hand() -> None:
    # arrival 1 s, tokens at 3, 4, 6 s; arrival 2 s, one token at 5 s
    found = latencies(np.array([1.0, 2.0]), [np.array([3.0, 4.0, 6.0]), np.array([5.0])])
    assert found["ttft_s"].tolist() == [2.0, 3.0]
    assert found["e2e_s"].tolist() == [5.0, 3.0]
    assert found["tpot_s"][0] == 1.5
    assert np.isnan(found["tpot_s"][1])  # one token has no time between tokens
    assert found["itl_s"].tolist() == [1.0, 2.0]


def test_sum_of_itl_is_e2e_less_ttft() -> None:
    rng = np.random.default_rng(0)
    times = [np.cumsum(rng.random(n)) for n in (2, 5, 40)]
    found = latencies(np.zeros(3), times)
    gaps = np.split(found["itl_s"], np.cumsum([len(t) - 1 for t in times])[:-1])
    for r, gap in enumerate(gaps):
        assert gap.sum() == pytest.approx(found["e2e_s"][r] - found["ttft_s"][r])
        assert gap.mean() == pytest.approx(found["tpot_s"][r])


def test_mean_over_requests_is_not_mean_over_tokens() -> None:
    # 10 slow gaps in one request, one fast gap in another (facts: vLLM issues 7242, 6531)
    found = latencies(np.zeros(2), [np.arange(11.0), np.array([0.0, 0.1])])
    rows = summary(found)
    assert rows["tpot_s_mean"] == pytest.approx((1.0 + 0.1) / 2)
    assert rows["itl_s_mean"] == pytest.approx((10 * 1.0 + 0.1) / 11)


def test_nothing_is_nan_not_zero() -> None:
    rows = summary(latencies(np.array([0.0]), [np.array([1.0])]))
    assert np.isnan(rows["tpot_s_mean"])
    assert np.isnan(rows["itl_s_p99"])
    assert rows["ttft_s_p50"] == 1.0


def test_bad_times_are_named() -> None:
    with pytest.raises(ValueError, match="must hold at least one time each, got none of 1"):
        latencies(np.zeros(2), [np.array([1.0]), np.array([])])
    with pytest.raises(ValueError, match=r"token_times_s\[0\] starts at 1 s, before the arrival"):
        latencies(np.array([2.0]), [np.array([1.0])])


def test_terms_count_steps_by_kind_and_pauses_apart() -> None:
    step_s = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    kinds = ["prefill", "decode", "mixed", "prefill", "decode", "decode"]
    # first token at the end of step 0, last at the end of step 5; preempted in steps 3 and 4
    terms = tpot_terms(step_s, kinds, [(0, 5, [[3, 4]]), (0, 5, []), (4, 4, [])])
    rows = {name: column.tolist() for name, column in terms.items()}
    assert rows["decode_s"] == [2.0 + 32.0, 2.0 + 16.0 + 32.0, 0.0]
    assert rows["mixed_s"] == [4.0, 4.0, 0.0]
    assert rows["prefill_s"] == [0.0, 8.0, 0.0]
    assert rows["preemption_s"] == [24.0, 0.0, 0.0]
    assert rows["steps_decode"] == [2, 3, 0]
    assert rows["steps_preemption"] == [2, 0, 0]
