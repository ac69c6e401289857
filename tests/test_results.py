"""The record: its check, any valid one through a file, and where it goes."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apclab.results import RECORD_FIELDS, Record, append, destination, load, validate
from tests.sample_records import sample_record

ROOT = Path(__file__).resolve().parent.parent


def test_the_sample_is_valid_and_has_exactly_the_documented_fields() -> None:
    record = sample_record()
    validate(record)
    groups = {name.split(".")[0] for name in RECORD_FIELDS if "." in name}
    names = {name for name in record if name not in groups}
    names |= {f"{group}.{name}" for group in groups for name in record[group]}
    assert names == RECORD_FIELDS.keys()
    assert all(field.meaning for field in RECORD_FIELDS.values())


def test_a_step_given_as_tables_has_no_asked_lengths() -> None:
    asked = "input_len output_len cache_hit realised_hit prefix_groups primed seed step"
    validate(sample_record(**dict.fromkeys(asked.split()), seq_len=298.75))


def test_advice_may_be_there_or_not() -> None:
    record = sample_record(case="cascade")
    del record["advice"]
    validate(record)
    advice = {"kernel": "paged", "saved_us": -12.5, "basis": "rates saved on 2026-12-01"}
    validate(record | {"advice": advice})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"advice": {"kernel": "paged"}}, "advice must be {kernel: paged or cascade, saved_us: "),
        ({"advice": "paged"}, "advice must be {kernel: paged or cascade, saved_us: number, basis"),
        ({"schema": 2}, "schema must be 1, got 2"),
        ({"schema": True}, "schema must be 1, got True"),
        ({"case": "both"}, "case must be one of private, shared, cascade, got 'both'"),
        ({"batch": 0}, "workload.batch must be an integer >= 1, got 0"),
        ({"batch": True}, "workload.batch must be an integer >= 1, got True"),
        ({"batch": 2**63}, "workload.batch must be an integer >= 1"),
        ({"cache_hit": 1.2}, "workload.cache_hit must be between 0 and 1, or null, got 1.2"),
        ({"readers_mean": 0.5}, "workload.readers_mean must be a finite number >= 1, got 0.5"),
        ({"num_kv_heads": 7}, "num_heads must be a multiple of model.num_kv_heads, got 40 and 7"),
        ({"seq_len": float("nan")}, "seq_len must be a finite number > 0, got nan"),
        ({"max_error": float("inf")}, "max_error must be a finite number >= 0, got inf"),
        ({"max_error": 0.1}, "max_error must not exceed error_bound 0.004, got 0.1: a wrong"),
        ({"samples_us": []}, "samples_us must be a list of at least one finite number > 0"),
        ({"samples_us": [382.0, 0]}, "samples_us must be a list of at least one finite number"),
        ({"p20_us": 390.0}, "p20_us, p50_us, p80_us must rise within the samples"),
        ({"samples_us": [1.0, 2.0]}, "p20_us, p50_us, p80_us must rise within the samples"),
        ({"distinct_bytes": 10**9}, "distinct_bytes must not exceed logical_bytes 635904000"),
        ({"gb_per_s": 1.6}, "gb_per_s must be logical_bytes / p50_us = 1664.67, got 1.6"),
        ({"created": "2025-01-31T23:59:00"}, "created must be an ISO 8601 time in UTC"),
        ({"created": "2025-01-31T23:59:00+02:00"}, "created must be an ISO 8601 time in UTC"),
        ({"commit": "../../etc"}, "commit must be hex, or null, got '../../etc'"),
        ({"environment": {"x": float("nan")}}, "environment must be an object of plain JSON"),
        ({"environment": {1: "x"}}, "environment must be an object of plain JSON"),
        ({"environment": {"x": (1, 2)}}, "environment must be an object of plain JSON"),
        ({"ladder": [{"level": "L2"}]}, "device.ladder must be a list of {level, "),
        ({"notes": "text"}, "notes must be a list of texts, got 'text'"),
        ({"device": "gpu"}, "device must be an object, got 'gpu'"),
        ({"checked": ""}, "checked must be text, not empty, got ''"),
        ({"placement": [1]}, "placement must be a number, text or object"),
    ],
)
def test_a_bad_field_is_named_with_what_was_expected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        validate(sample_record(**change))


def test_missing_and_unknown_fields_are_named() -> None:
    record = sample_record()
    del record["p50_us"]
    with pytest.raises(ValueError, match=r"record lacks 'p50_us' \(median of the samples"):
        validate(record)
    with pytest.raises(ValueError, match="does not know, in 'speed'"):
        validate(sample_record() | {"speed": 1})
    with pytest.raises(ValueError, match=r"does not know, in 'model\.name'"):
        validate(sample_record() | {"model.name": "opt"})
    with pytest.raises(ValueError, match="does not know, in 'model'"):
        validate(sample_record() | {"model": sample_record()["model"] | {"colour": "red"}})
    with pytest.raises(ValueError, match="record must be an object, got list"):
        validate([])


texts = st.text(min_size=1, max_size=20)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | texts
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def valid_records(draw: st.DrawFn) -> Record:
    times = sorted(draw(st.lists(st.floats(1e-3, 1e9), min_size=3, max_size=9)))
    logical = draw(st.integers(1, 2**50))
    p50 = times[len(times) // 2]
    changes = {
        "samples_us": times,
        "p20_us": times[0],
        "p80_us": times[-1],
        "gb_per_s": logical / p50 / 1e3,
        "distinct_bytes": draw(st.integers(1, logical)),
        "environment": draw(st.dictionaries(texts, plain, max_size=4)),
        "placement": draw(st.integers(0, 9) | texts | st.dictionaries(texts, plain, max_size=2)),
        "name": draw(texts),
        "notes": draw(st.lists(st.text(max_size=20), max_size=3)),
        "case": draw(st.sampled_from(["private", "shared", "cascade"])),
        "commit": draw(st.none() | st.just("0123abc")),
        "cache_hit": draw(st.none() | st.floats(0, 1)),
        "batch": draw(st.integers(1, 2**40)),
    }
    return sample_record(p50_us=p50, logical_bytes=logical, **changes)


@settings(max_examples=60, deadline=None)
@given(st.lists(valid_records(), max_size=4), st.integers(0, 4))
def test_any_valid_records_survive_append_and_load(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], split: int
) -> None:
    path = tmp_path_factory.mktemp("survive") / "new" / "folder" / "a.jsonl"
    before = copy.deepcopy(records)
    append(path, records[:split])
    append(path, records[split:])
    assert path.exists() == bool(records)
    if records:
        assert load(path) == (before, [])
        assert load(path.parent.parent) == (before, [])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(RECORD_FIELDS)), plain, st.booleans())
def test_a_wrong_value_is_refused_and_a_right_one_kept(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: object, whole_group: bool
) -> None:
    record = sample_record()
    group, _, field = name.rpartition(".")
    if group and not whole_group:
        record[group][field] = value
    else:
        record[group or field] = value
    path = tmp_path_factory.mktemp("wrong") / "a.jsonl"
    path.write_text(json.dumps(record) + "\n")
    records, problems = load(path)
    assert len(records) + len(problems) == 1
    if problems:
        assert problems[0].startswith(f"{path}:1: skipped: ")
        assert len(problems[0]) < 400
        with pytest.raises(ValueError, match=r"."):
            validate(record)
    else:
        validate(record)
        assert records == [record]


def test_destination_in_a_checkout_and_outside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = sample_record(device=sample_record()["device"] | {"name": "NVIDIA  H200 (141GB)/../x"})
    path = destination(record)
    assert path == ROOT / "data/measured/nvidia-h200-141gb-x/2025-01-31-0123456.jsonl"

    # a wheel holds its tables in the package
    monkeypatch.setattr("apclab.results.store.data_dir", lambda: tmp_path / "apclab" / "_data")
    unknown = sample_record(commit=None, device=sample_record()["device"] | {"name": "???"})
    assert destination(unknown) == Path("apclab-results/unnamed/2025-01-31-v0.1.0.jsonl")
