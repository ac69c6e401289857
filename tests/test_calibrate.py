"""Calibration: each probe isolates one rate, is checked, and makes a record that can be judged."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apclab import attention, bench, results
from apclab.bench import buffers, memory, product
from apclab.clock import Cancelled
from apclab.results import PROBES, Record, validate
from apclab.specs import ModelShape
from tests.sample_records import sample_calibration, sample_record

SMALL = ModelShape("small", num_layers=2, num_heads=4, num_kv_heads=2, head_size=64)
QUICK: dict[str, Any] = {"budget_s": 0.0, "batch": 8, "backend": "cpu"}
# the function of that name hides the module
CALIBRATE = sys.modules["apclab.bench.calibrate"]


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> Any:
    tiny = {"name": "test", "cores": 2, "l2_bytes": 2**18, "llc_bytes": 2**20, "llc_known": True}
    for module in (memory, buffers, bench.probes, bench.record):
        monkeypatch.setattr(module, "machine", lambda _kind: tiny)
    monkeypatch.setattr(bench.probes, "_known", {})
    monkeypatch.setattr(CALIBRATE, "_made", [])
    monkeypatch.setitem(product._SIZE, "cpu", 128)
    yield
    buffers.release()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_probe_leaves_a_valid_record(dtype: str) -> None:
    records = bench.calibrate(SMALL, dtype=dtype, **QUICK)
    assert [record["probe"] for record in records] == list(PROBES)
    for record in records:
        validate(record)
        assert record["kind"] == "calibration"
        assert record["device"]["ladder"]
        assert record["model"]["dtype"] == dtype
    by = {record["probe"]: record for record in records}
    # 304 tokens x 2 heads x 64 x K and V, 8 requests
    token = 2 * 2 * 64 * {"float32": 4, "bfloat16": 2}[dtype]
    for probe in ("distinct", "shared", "one_block"):
        assert by[probe]["logical_bytes"] == 8 * 304 * token
    assert by["distinct"]["distinct_bytes"] == 8 * 304 * token
    assert by["shared"]["distinct_bytes"] == 304 * token
    assert by["one_block"]["distinct_bytes"] == 16 * token
    assert [by[probe]["l2"] for probe in PROBES] == ["cold", "cold", "warm", "warm", "warm"]
    assert by["launch"]["asked"] == {"batch": 1, "seq_len": 1}
    assert by["product"]["flops"] == 2 * 128**3
    assert by["product"]["asked"]["dtype"] == "float32"


def test_all_probes_read_one_pool() -> None:
    """One that grew under those that are bound would leave the first alive beside it."""
    records = bench.calibrate(SMALL, **QUICK)
    pools = [pool for key, pool in buffers._pools.items() if key == ("cpu", "bfloat16")]
    assert len(pools) == 1
    held = buffers.held_bytes("cpu")
    # a layer, as much as makes calls cold, and the footprints that were read on the way there
    assert held <= 2**25
    assert records


def test_rates_take_the_values_of_the_records() -> None:
    records = [sample_calibration(probe) for probe in PROBES]
    values = {record["probe"]: record["value"] for record in records}
    rates = bench.rates_of(records)
    assert rates.dram_bytes_per_s == values["distinct"]
    assert rates.cache_bytes_per_s == values["shared"]
    assert rates.product_flop_per_s == values["product"]
    assert rates.run_s == rates.launch_s == values["launch"]


def test_a_stopped_calibration_keeps_what_it_timed() -> None:
    told: list[str] = []
    with pytest.raises(Cancelled) as stopped:
        bench.calibrate(
            SMALL, **QUICK | {"budget_s": 60.0},
            progress=lambda _part, what: told.append(what),
            cancelled=lambda: told.count("timing") > 3,
        )  # fmt: skip
    records = stopped.value.records
    assert {record["probe"] for record in records} == set(PROBES) - {"product"}
    for record in records:
        validate(record)
        assert record["notes"][-1] == "stopped before its time"


def test_a_wrong_product_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(left: Any, right: Any, out: Any) -> None:
        out[...] = left @ right
        out[1, 2] += 0.1

    monkeypatch.setattr(np, "matmul", wrong)
    with pytest.raises(bench.WrongResult, match="product of float32 matrices of 128"):
        bench.calibrate(SMALL, **QUICK)


def test_a_wrong_kernel_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    run = attention.plan

    def wrong(*arrays: Any, **how: Any) -> Any:
        launch = run(*arrays, **how)
        if len(arrays[0]) == 1:  # the smallest step
            object.__setattr__(launch, "act", lambda: launch.out.fill(1.0))
        return launch

    monkeypatch.setattr(bench.bound, "plan", wrong)
    with pytest.raises(bench.WrongResult, match="output element"):
        bench.calibrate(SMALL, **QUICK)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "fp8"}, "dtype must be one of"),
    ({"model": "lama-13b"}, "did you mean llama-13b"),
    ({"block_size": 0}, "block_size must be at least 1, got 0"),
    ({"batch": 0}, "batch must be at least 1, got 0"),
    ({"budget_s": -1.0}, "budget_s must be at least 0, got -1"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=lambda v: str(v)[:30])
def test_bad_arguments(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bench.calibrate(**{"model": SMALL, **QUICK, **change})


# --- records of other kinds in a file


def test_kinds_do_not_meet_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    records: list[Record] = [sample_calibration("distinct"), sample_record()]
    results.append(path, records)
    assert results.load(path) == ([records[1]], [])
    assert results.load(path, kind="calibration") == ([records[0]], [])
    assert results.load(path, kind="campaign") == ([], [])
    assert len(results.load_results(path)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"kind": "guess"},
            "kind must be one of calibration, peer, campaign, or left out; got 'guess'",
        ),
        ({"kind": None}, "kind must be one of calibration"),
        ({"kind": ["x"]}, "kind must be one of calibration"),
        ({"probe": "both"}, "probe must be one of distinct, shared, one_block, launch, product"),
        ({"unit": "s"}, "unit of probe distinct must be bytes/s, got 's'"),
        ({"value": 1e9}, "value must be 2e\\+10 bytes/s, got 1000000000.0"),
        ({"asked": {"x": float("nan")}}, "asked must be an object of plain JSON values"),
        ({"p20_us": 1e9}, "must rise within the samples"),
        ({"distinct_bytes": 2**40}, "distinct_bytes must not exceed"),
        ({"max_error": 1.0}, "a wrong result has no speed"),
        ({"case": "private"}, "a field that schema 1 does not know, in 'case'"),
    ],
)
def test_a_bad_calibration_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate(sample_calibration("distinct") | change)


def test_a_decode_record_does_not_name_its_kind() -> None:
    with pytest.raises(ValueError, match="does not know, in 'kind'"):
        validate(sample_record() | {"kind": "decode"})
