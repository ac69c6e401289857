"""The bench: real pool, checked kernel, honest record, memory added up before it is taken."""

import importlib
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from apclab import bench
from apclab.bench import bound as binding
from apclab.bench import buffers, memory
from apclab.blocks import BlockTable
from apclab.clock import Cancelled, interleave
from apclab.results import finding, validate
from apclab.specs import ModelShape
from apclab.workload import ISSUE_4860, OWN_HISTORY, Workload
from tests.marks.touch import measure_touch

SMALL = ModelShape("small", num_layers=2, num_heads=4, num_kv_heads=2, head_size=64)
QUICK: dict[str, Any] = {"budget_s": 0.0, "memory_limit": 2**26}


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> Any:
    # a last-level cache of 1 MiB: cold without reading half a gigabyte between calls
    tiny = {"name": "test", "cores": 2, "l2_bytes": 2**18, "llc_bytes": 2**20, "llc_known": True}
    for module in (memory, buffers, bench.probes, bench.record):
        monkeypatch.setattr(module, "machine", lambda _kind: tiny)
    monkeypatch.setattr(bench.probes, "_known", {})
    yield
    buffers.release()


def test_the_issue_in_blocks_and_bytes() -> None:
    step = bench.decode_step(ISSUE_4860)
    # 100 x 20 blocks; 18 of them shared by all, 2 of each request's own
    assert step.shared.sharing().table_entries == 2000
    assert step.shared.sharing().distinct_blocks == 18 + 200
    assert step.private.sharing().readers_mean == 1
    assert step.realised_hit == 288 / 300
    assert (step.hit_blocks, step.prompt_blocks) == (18, 18)
    assert step.readers_mean == 2000 / 218
    assert step.seq_len == 310


def test_own_history_hits_and_shares_nothing() -> None:
    step = bench.decode_step(OWN_HISTORY)
    assert step.realised_hit == 256 / 300
    assert step.readers_mean == 1


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_record_a_case_complete_and_consistent(dtype: str, layout: str) -> None:
    work = Workload(batch=6, input_len=100, output_len=8, cache_hit=0.5, prefix_groups=2, seed=3)
    records = bench.compare_decode(work, SMALL, dtype=dtype, layout=layout, pairs=None, **QUICK)
    assert [r["case"] for r in records] == ["private", "shared"]
    for record in records:
        validate(record)
        assert record["checked"] == "all pairs"
        assert len(record["samples_us"]) >= 5
        assert record["p50_us"] == pytest.approx(np.median(record["samples_us"]))
        # 104 tokens x 2 heads x 64 x K and V
        itemsize = {"float32": 4}.get(dtype, 2)
        assert record["logical_bytes"] == 6 * 104 * 2 * 64 * 2 * itemsize
        assert record["workload"]["realised_hit"] == 48 / 100
        assert record["order"] == "request"
    private, shared = records
    assert private["distinct_bytes"] == private["logical_bytes"]
    # 3 shared blocks in each of 2 groups, read by 3 requests each
    saved = 2 * 3 * 16 * (3 - 1)
    assert shared["distinct_bytes"] == shared["logical_bytes"] * (6 * 104 - saved) // (6 * 104)
    assert shared["workload"]["readers_mean"] == pytest.approx(42 / (42 - 12))
    assert finding(records)


ALL: tuple[str, ...] = ("private", "shared", "cascade")


@pytest.mark.parametrize(("dtype", "layout"), [("float32", "HND"), ("bfloat16", "NHD")])
def test_cascade_is_measured_with_the_tables_of_shared(dtype: str, layout: str) -> None:
    work = Workload(batch=6, input_len=100, output_len=8, cache_hit=0.5, prefix_groups=2, seed=3)
    records = bench.compare_decode(
        work, SMALL, cases=ALL, dtype=dtype, layout=layout, pairs=None, **QUICK
    )
    assert [record["case"] for record in records] == list(ALL)
    private, shared, cascade = records
    validate(cascade)
    assert cascade["checked"] == "all pairs"
    for name in ("distinct_bytes", "logical_bytes", "placement", "workload"):
        assert cascade[name] == shared[name]
    assert private["kernel_sha256"] == shared["kernel_sha256"] != cascade["kernel_sha256"]
    assert cascade["notes"] == shared["notes"]
    assert "cascade" in finding(records)


def test_cascade_is_what_it_is_called_where_nothing_is_shared() -> None:
    work = Workload(batch=3, input_len=40, output_len=4, cache_hit=0.0)
    _, shared, cascade = bench.compare_decode(work, SMALL, cases=ALL, **QUICK)
    assert "no two requests share a full block" in cascade["notes"][-1]
    assert cascade["kernel_sha256"] != shared["kernel_sha256"]


@pytest.mark.parametrize(("launch_us", "kernel"), [(1e6, "paged"), (1e-6, "cascade")])
def test_the_rule_is_advice_beside_the_measurement(
    launch_us: float, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A calibration of this machine, shape and dtype speaks for a kernel; the case runs its own."""
    calibrate = sys.modules["apclab.bench.calibrate"]
    monkeypatch.setattr(calibrate, "_saved", list)
    monkeypatch.setattr(calibrate, "_made", [])
    work = Workload(batch=6, input_len=100, output_len=8, cache_hit=0.5)
    assert "advice" not in bench.compare_decode(work, SMALL, cases=ALL, **QUICK)[-1]
    monkeypatch.setitem(calibrate._BATCH_BYTES, "cpu", 2**20)
    for record in bench.calibrate(SMALL, budget_s=0.0, backend="cpu"):
        # rates at which only the launch decides
        value = {"s": launch_us / 1e6, "flop/s": 1e15, "bytes/s": 1e9}[record["unit"]]
        record["value"] = value
    _, shared, cascade = bench.compare_decode(work, SMALL, cases=ALL, **QUICK)
    assert cascade["advice"]["kernel"] == kernel
    assert (cascade["advice"]["saved_us"] > 0) == (kernel == "cascade")
    assert cascade["advice"]["basis"].startswith("rates calibrated on 20")
    assert cascade["kernel_sha256"] != shared["kernel_sha256"]
    other = bench.compare_decode(work, SMALL, cases=ALL, dtype="float32", **QUICK)[-1]
    assert "advice" not in other, "rates of another dtype"


def test_both_cases_run_the_same_pool_and_only_tables_differ() -> None:
    step = bench.decode_step(Workload(batch=5, input_len=64, output_len=4, cache_hit=0.6))
    how = bench.how.How(**QUICK).resolved()
    bound, _ = binding.ready(step, SMALL, how)
    one, other = (bound.launches[case][0].act.args[0].decode for case in ("private", "shared"))  # type: ignore[attr-defined]
    # what follows is for partial states, which such a step has not
    for at, (a, b) in enumerate(zip(one[:12], other[:12], strict=True)):
        if isinstance(a, np.ndarray):
            same = a.ctypes.data == b.ctypes.data
            # block_tables, out and lse are a case's own; lens are equal in value
            assert same == (at not in (3, 4, 5, 6))
        else:
            assert a == b
    ids = bound.tables["private"].block_tables
    assert (np.diff(ids[ids > 0]) != 1).any(), "block ids are permuted"


def test_private_and_shared_are_checked_against_different_data() -> None:
    # swapping the tables of one case must be noticed by the check
    step = bench.decode_step(Workload(batch=5, input_len=64, output_len=4, cache_hit=0.6))
    bound, _ = binding.ready(step, SMALL, bench.how.How(**QUICK, pairs=None).resolved())
    bound.check("private")
    bound.launches["shared"][0] = bound.launches["private"][0]
    with pytest.raises(bench.WrongResult, match="case shared: an output element is"):
        bound.check("shared")


def test_real_tables_are_measured_and_desharded() -> None:
    tables = BlockTable(np.array([[5, 9], [5, 7]], np.int32), np.array([20, 32], np.int32), 16)
    private, shared = bench.compare_tables(tables, SMALL, **QUICK)
    assert (private["workload"]["batch"], private["workload"]["cache_hit"]) == (2, None)
    assert private["seq_len"] == 26
    assert shared["workload"]["readers_mean"] == pytest.approx(4 / 3)
    assert private["distinct_bytes"] - shared["distinct_bytes"] == 16 * SMALL.token_bytes(
        "bfloat16"
    )
    validate(private)
    validate(shared)


def test_memory_is_refused_with_its_arithmetic() -> None:
    with pytest.raises(bench.OutOfMemory, match=r"2,001 blocks x 327,680 bytes = 656 MB .*10 MB"):
        bench.compare_decode(ISSUE_4860, memory_limit=10**7)
    huge = Workload(batch=30_000, input_len=1_000_000, output_len=2)
    start = time.perf_counter()
    with pytest.raises(bench.OutOfMemory, match="GB for K and V of one layer"):
        bench.compare_decode(huge)
    assert time.perf_counter() - start < 5, "refused before the requests were made"


def test_layers_scratch_or_warm_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    how = bench.how.How(backend="cpu", layout="NHD", order="request")
    usual = memory.Needs("a step", 100, 1000, 100_000, 0, 0, 0)

    def plan(cold: int | None = 4 * 2**20, l2: str = "cold", **changes: Any) -> memory.Plan:
        return memory.plan_memory(usual._replace(**changes), replace(how, l2=l2), cold)

    # 4 MiB / 100 kB
    assert (plan().layers, plan().scratch_bytes, plan().l2) == (42, 0, "cold")
    # half of it is shared: twice as many layers would take more than a scratch buffer does
    half = plan(distinct_bytes=50_000)
    assert (half.layers, half.scratch_bytes, half.l2) == (1, 2**22, "cold")
    tiny = plan(distinct_bytes=100)
    assert (tiny.layers, tiny.scratch_bytes) == (1, 2**22)
    assert "a scratch buffer of 4 MB" in tiny.notes[0]
    monkeypatch.setattr(memory, "memory_available", lambda _kind: 6_000_000)
    monkeypatch.setattr(memory, "held_bytes", lambda *_args: 0)
    monkeypatch.setattr(memory, "scratch_bytes", lambda _kind: 0)
    few = plan(distinct_bytes=100)
    assert (few.layers, few.scratch_bytes, few.l2) == (1, 2**22, "cold")
    monkeypatch.setattr(memory, "memory_available", lambda _kind: 1_000_000)
    warm = plan()
    assert (warm.layers, warm.l2) == (1, "warm")
    assert "warm: neither 42 layers" in warm.notes[0]
    assert plan(l2="warm").notes == []
    assert plan(None).l2 == "warm"
    with pytest.raises(bench.OutOfMemory, match=r"1 MB for the check in float64, and 1 MB may be"):
        plan(check=700_001)


def test_cancel_stops_the_filling_and_the_timing() -> None:
    work = Workload(batch=8, input_len=64, output_len=4)
    with pytest.raises(Cancelled):
        bench.compare_decode(work, SMALL, cancelled=lambda: True, **QUICK)
    told: list[str] = []
    with pytest.raises(Cancelled) as stopped:
        bench.compare_decode(
            work, SMALL, budget_s=60, memory_limit=2**26,
            progress=lambda _part, what: told.append(what),
            cancelled=lambda: told.count("timing") > 3,
        )  # fmt: skip
    assert any(what.startswith("reading the machine") for what in told)
    # what was timed until then is not lost
    assert [len(r["samples_us"]) for r in stopped.value.records] == [2, 2]
    for record in stopped.value.records:
        validate(record)
        assert record["notes"][-1] == "stopped before its time"


def test_the_ladder_has_three_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.probes, "_MOST_TRIES", 1)
    ladder = bench.measure_ladder(budget_s=0.0)
    levels = [rung["level"] for rung in ladder.rungs]
    assert levels[:2] == ["L2", "L3"]
    assert (levels[2:] == ["DRAM"]) == (ladder.dram_gb_per_s is not None)
    assert all(rung["gb_per_s"] > 0 for rung in ladder.rungs)
    assert ladder.curve == sorted(ladder.curve)
    again = bench.measure_ladder(budget_s=0.0)
    footprints = [[rung["footprint_bytes"] for rung in found.rungs] for found in (ladder, again)]
    assert footprints[0] == footprints[1], "found once a process"


def test_a_ceiling_is_the_median_of_a_quiet_burst() -> None:
    quiet, faster, busy = (bench.probes.Burst(*pair) for pair in ((30, 0.9), (31, 1), (99, 0.5)))
    slower = bench.probes.Burst(20, 0.95)
    assert bench.probes.believed([slower, faster, busy, quiet]) == quiet
    assert bench.probes.believed([busy]) == busy


def test_touch_is_timed_beside_the_kernel() -> None:
    step = bench.decode_step(Workload(batch=4, input_len=64, output_len=4))
    timed = measure_touch(step, SMALL, cases=("private", "shared"), **QUICK)
    assert set(timed) == {"private", "shared"}
    assert all(len(v) >= 5 for case in timed.values() for v in case.values())


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"cases": ("private", "own")}, ValueError, "cases must be some of private, shared, cascade"),
    ({"cases": ()}, ValueError, "cases must be some of"),
    ({"backend": "reference", "threads": 2}, ValueError, "threads are for backend cpu, got 2"),
    ({"dtype": "fp8"}, ValueError, "dtype must be one of float32, float16, bfloat16, got 'fp8'"),
    ({"l2": "hot"}, ValueError, "l2 must be one of cold, warm"),
    ({"order": "x"}, ValueError, "order must be one of auto, request, head"),
    ({"step": "second"}, ValueError, "step"),
    ({"block_size": 0}, ValueError, "block_size"),
    ({"budget_s": float("nan")}, ValueError, "budget_s must be at least 0, got nan"),
    ({"memory_limit": 0}, ValueError, "memory_limit must be at least 1, got 0"),
    ({"threads": 0}, ValueError, "threads must be between 1 and"),
    ({"model": "lama-13b"}, ValueError, "did you mean llama-13b"),
]


@pytest.mark.parametrize(("change", "error", "words"), BAD, ids=lambda v: str(v)[:30])
def test_bad_arguments(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bench.compare_decode(
            Workload(batch=2, input_len=20, output_len=2), **{"model": SMALL, **QUICK, **change}
        )


def test_rounds_beyond_the_budget_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [True, True, True]
    compare = importlib.import_module("apclab.bench.compare")
    monkeypatch.setattr(compare, "unsettled", lambda _samples: bool(answers and answers.pop()))
    monkeypatch.setattr(compare, "interleave", partial(interleave, patience=1e15))
    work = Workload(batch=2, input_len=30, output_len=2)
    for record in bench.compare_decode(work, SMALL, budget_s=1e-9, memory_limit=2**26):
        assert len(record["samples_us"]) == 5 + 3
        assert any(note.startswith("rounds beyond the budget: 3, ") for note in record["notes"])
