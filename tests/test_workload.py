"""Workloads: what is asked is what comes, and nothing is shared by accident."""

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apclab.workload import ISSUE_4860, OWN_HISTORY, PRESETS, VOCABULARY, Workload


def test_issue_4860_is_the_default() -> None:
    # https://github.com/vllm-project/vllm/issues/4860: 100 requests, 300 tokens in, 20 out
    assert (
        ISSUE_4860
        == Workload()
        == Workload(batch=100, input_len=300, output_len=20, cache_hit=1.0, prefix_groups=1)
    )
    assert ISSUE_4860.prefix_len == 300
    prompts = ISSUE_4860.prompts()
    assert len(prompts) == 100
    assert all(np.array_equal(prompt, prompts[0]) for prompt in prompts)
    (primer,) = ISSUE_4860.primers()
    assert np.array_equal(primer, prompts[0])
    assert {len(tokens) for tokens in ISSUE_4860.generated()} == {20}


def test_own_history_shares_nothing() -> None:
    assert OWN_HISTORY.prefix_groups == OWN_HISTORY.batch
    primers, prompts = OWN_HISTORY.primers(), OWN_HISTORY.prompts()
    for primer, prompt in zip(primers, prompts, strict=True):
        assert np.array_equal(primer, prompt[:270])
    # [100, 300]: at no position do two requests have the same token
    assert all(len(set(column)) == 100 for column in np.array(prompts).T.tolist())


@settings(max_examples=50, deadline=None)
@given(
    batch=st.integers(1, 9),
    input_len=st.integers(1, 40),
    output_len=st.integers(1, 9),
    cache_hit=st.floats(0, 1),
    data=st.data(),
)
def test_equal_exactly_where_shared(
    batch: int, input_len: int, output_len: int, cache_hit: float, data: st.DataObject
) -> None:
    groups = data.draw(st.integers(1, batch))
    w = Workload(batch, input_len, output_len, cache_hit, groups, seed=data.draw(st.integers(0, 9)))
    assert w.prefix_len == round(cache_hit * input_len)
    prompts, generated = w.prompts(), w.generated()
    for tokens, length in ((prompts, input_len), (generated, output_len)):
        assert len(tokens) == batch
        for row in tokens:
            assert row.shape == (length,)
            assert row.dtype == np.int32
            assert row.min() >= 0
            assert row.max() < VOCABULARY
    whole = [np.concatenate(pair) for pair in zip(prompts, generated, strict=True)]
    positions = np.arange(input_len + output_len)
    for (i, one), (j, other) in itertools.combinations(enumerate(whole), 2):
        shared = (positions < w.prefix_len) & (i % groups == j % groups)
        assert np.array_equal(one == other, shared)
    primers = w.primers()
    assert len(primers) == (groups if w.prefix_len else 0)
    for i, prompt in enumerate(prompts if primers else []):
        assert np.array_equal(primers[i % groups], prompt[: w.prefix_len])


def test_primers_only_when_primed() -> None:
    assert Workload(primed=False).primers() == []
    assert Workload(cache_hit=0).primers() == []
    # 1 % of 40 tokens rounds to none
    assert Workload(input_len=40, cache_hit=0.01).primers() == []


def test_tokens_depend_on_the_seed_alone() -> None:
    once, again, other = Workload(seed=3), Workload(seed=3), Workload(seed=4)
    assert np.array_equal(once.prompts(), again.prompts())
    assert not np.array_equal(once.prompts(), other.prompts())
    # another hit is another sharing of the same starts, not another draw
    assert np.array_equal(once.generated(), Workload(seed=3, cache_hit=0.5).generated())


def test_seq_len_of_the_steps() -> None:
    assert [ISSUE_4860.seq_len(step) for step in ("first", "mid", "last")] == [301, 310, 320]
    assert ISSUE_4860.seq_len() == 310
    one = Workload(output_len=1)
    assert [one.seq_len(step) for step in ("first", "mid", "last")] == [301, 301, 301]
    with pytest.raises(ValueError, match="step must be one of first, mid, last, got 'middle'"):
        one.seq_len("middle")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("batch", 0, "batch must be at least 1, got 0"),
        ("batch", 32_001, "batch must be at most 32000, got 32001"),
        ("input_len", -300, "input_len must be at least 1, got -300"),
        ("output_len", 0, "output_len must be at least 1, got 0"),
        ("prefix_groups", 0, "prefix_groups must be at least 1, got 0"),
        ("prefix_groups", 101, r"prefix_groups must be at most batch \(100\), got 101"),
        ("seed", -1, "seed must be at least 0, got -1"),
        ("cache_hit", 1.2, "cache_hit must be between 0 and 1, got 1.2"),
        ("cache_hit", -0.1, "cache_hit must be between 0 and 1, got -0.1"),
        ("cache_hit", math.nan, "cache_hit must be between 0 and 1, got nan"),
        ("cache_hit", math.inf, "cache_hit must be between 0 and 1, got inf"),
    ],
)
def test_out_of_range(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("batch", 100.0, "batch must be an int, got 100.0"),
        ("batch", True, "batch must be an int, got True"),
        ("input_len", "300", "input_len must be an int, got '300'"),
        ("output_len", None, "output_len must be an int, got None"),
        ("prefix_groups", np.float64(1), "prefix_groups must be an int"),
        ("seed", False, "seed must be an int, got False"),
        ("cache_hit", "0.9", "cache_hit must be a number, got '0.9'"),
        ("cache_hit", True, "cache_hit must be a number, got True"),
        ("cache_hit", None, "cache_hit must be a number, got None"),
        ("primed", 1, "primed must be True or False, got 1"),
    ],
)
def test_wrong_type(field: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Workload(**{field: value})


def test_numpy_scalars_become_plain() -> None:
    # a sweep hands over elements of arrays, a record must be JSON
    w = Workload(np.int64(8), 64, 4, np.float32(0.5), np.int32(2), np.bool_(False))  # type: ignore[arg-type]
    assert json.loads(json.dumps(dataclasses.asdict(w))) == {
        "batch": 8,
        "input_len": 64,
        "output_len": 4,
        "cache_hit": 0.5,
        "prefix_groups": 2,
        "primed": False,
        "seed": 0,
    }


def test_presets() -> None:
    assert list(PRESETS)[:3] == ["issue 4860", "own history", "no sharing"]
    assert PRESETS["no sharing"].prefix_len == 0
    assert PRESETS["one system prompt"].prefix_len == PRESETS["eight tenants"].prefix_len == 512
