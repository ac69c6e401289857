"""Caching off and on, the kernel's part told apart: issue 4860 as the facts have it; the CLI."""

import json
import math
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from apclab import decompose, specs
from apclab.blocks import BlockPool, BlockPoolV0
from apclab.cli import run as command
from apclab.decompose import ARMS, prime, simulate
from apclab.engine import EngineConfig, StepWork, run
from apclab.engine.intake import workload_requests
from apclab.memory_model import StepRates, calibrated_rates, device_rates, roofline_step
from apclab.results import append
from apclab.traces import generate, write_trace
from apclab.workload import Workload
from tests.sample_records import sample_calibration

ISSUE = Workload(100, 300, 20, primed=False)
SMALL = Workload(12, 64, 6, primed=False)


def test_issue_4860_is_mostly_the_engine_and_partly_the_kernel() -> None:
    """Facts, section 2.4, another model of the same run (budget 2048): 133.4 -> 39.9 -> 34.7 ms.

    Its constants differ (15 ms of weights, 382.0 and 252.5 us of attention), so 10 % are allowed.
    """
    config = EngineConfig(policy="v0", max_num_batched_tokens=2048)
    found = simulate(ISSUE, config=config)
    tpot = [row["tpot_s_mean"] * 1e3 for row in found.rows()]
    assert tpot == pytest.approx([133.4, 39.9, 34.7], rel=0.1)
    # of a request in the last prefill group nothing but the kernel changes
    last = [run.tpot_terms()["total_s"][-1] for run in found.runs.values()]
    assert last[0] == pytest.approx(last[1])
    assert last[2] < last[1]
    assert "falls" in found.finding()


def test_own_history_gains_nothing_in_the_kernel() -> None:
    found = simulate(Workload(20, 200, 10, cache_hit=0.9, prefix_groups=20))
    off, engine, on = found.rows()
    assert engine["hit_rate"] > 0.8
    assert engine["tpot_s_mean"] == on["tpot_s_mean"]
    assert off["ttft_s_mean"] > on["ttft_s_mean"]


def test_step_cost_by_hand() -> None:
    """One layer, one head: each roof in turn."""
    shape = specs.ModelShape("one", 1, 1, 1, 100, hidden_size=10, intermediate_size=0, vocab_size=7)
    # q, k, v, o of 10 x 100 each, and the output of 10 x 7
    assert shape.num_weights == 4 * 1000 + 70
    decode = StepWork(0, 2, 4, 3, 60, 60, 2)
    rates = StepRates(1e6, 1e6, 1e30, 0.5, "")
    weights = 2 * 4070 / 1e6
    # 3 blocks of 16 tokens of 400 bytes against 60 tokens through the cache
    assert roofline_step(shape, rates)(decode) == pytest.approx(0.5 + weights + 60 * 400 / 1e6)
    rates = rates._replace(cache_bytes_per_s=None)
    assert roofline_step(shape, rates)(decode) == pytest.approx(0.5 + weights + 48 * 400 / 1e6)
    assert roofline_step(shape, rates, reuse=False)(decode) == pytest.approx(
        0.5 + weights + 60 * 400 / 1e6
    )
    slow = StepRates(1e30, 1e30, 1e3, 0.0, "")
    products = 2 * (4000 * 2 + 70 * 2) + 4 * 100 * 60
    assert roofline_step(shape, slow)(decode) == pytest.approx(products / 1e3)


def test_rates_say_where_they_are_from() -> None:
    rates = device_rates(specs.device("A100-SXM4-80GB"))
    assert "82% of 2039 GB/s" in rates.basis
    unknown = replace(specs.device("A100-SXM4-80GB"), llc_gb_per_s=None)
    assert device_rates(unknown).cache_bytes_per_s is None
    with pytest.raises(ValueError, match=r"data/devices\.csv has no half_tflops"):
        device_rates(specs.device("L20"))
    with pytest.raises(ValueError, match="only the attention's shape is known"):
        roofline_step(specs.ModelShape("mine", 1, 1, 1, 64), rates)


def test_rates_of_a_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 1 GB in 50 ms, 2 Gflop in 10 ms
    records = [sample_calibration(probe) for probe in ("distinct", "shared", "product")]
    dtype = records[0]["model"]["dtype"]
    rates = calibrated_rates(records, dtype, fixed_s=0.1)
    assert rates[:4] == pytest.approx((20e9, 20e9, 2e11, 0.1))
    assert "own blocks 20 GB/s, shared 20, products 0.2 TFLOP/s" in rates.basis
    with pytest.raises(
        ValueError, match="the calibration lacks distinct, shared, product for float32"
    ):
        calibrated_rates(records, "float32")
    path = tmp_path / "c.jsonl"
    append(path, records)
    asked = ["simulate", "--batch", "3", "--dtype", dtype, "--calibration", str(path)]
    assert command(asked) == 0
    assert "calibrated" in capsys.readouterr().out
    assert command([*asked[:-1], str(tmp_path / "none")]) == 2


def test_every_model_has_the_weights_its_name_says() -> None:
    """Weights without embeddings: 12.9e9 of a 13B, 7.5e9 of an 8B and so on."""
    billions = {name: shape.num_weights / 1e9 for name, shape in specs.models().items()}
    said = {"llama-13b": 13, "llama-2-7b": 6.7, "llama-3.1-8b": 8, "llama-3.1-70b": 70,
            "opt-13b": 13, "qwen3-8b": 8, "opt-125m": 0.125}  # fmt: skip
    for name, count in said.items():
        assert billions[name] == pytest.approx(count, rel=0.08)


def test_stopped_arms_are_left_out() -> None:
    looks = iter([False, False, True, True])
    found = simulate(SMALL, cancelled=lambda: next(looks))
    assert list(found.runs) == ["off", "engine"]
    assert found.finding() == ""


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="arms must be some of off, engine, on, got 'half'"):
        simulate(SMALL, arms=["half"])
    with pytest.raises(ValueError, match="num_blocks must be given where requests are no workload"):
        simulate(list)
    with pytest.raises(ValueError, match="unknown device 'A1000'"):
        simulate(SMALL, device="A1000")
    rates = device_rates(specs.device("A100-SXM4-80GB"))
    with pytest.raises(ValueError, match="fixed_s is for a device of the table"):
        simulate(SMALL, device=rates, fixed_s=0.1)
    with pytest.raises(ValueError, match="rate_per_s and samples are for a workload"):
        simulate(list, num_blocks=9, samples=2)


def test_the_command_prints_arms_terms_and_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert command(["simulate", "--batch", "12", "--policy", "v0"]) == 0
    out = capsys.readouterr().out
    for word in ("off", "on, kernel", "without reuse", "mixed", "Times are modelled", "mean TPOT"):
        assert word in out


def test_the_command_prints_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["simulate", "--batch", "5", "--output-len", "1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["arm"] for row in rows] == list(ARMS)
    assert rows[0]["tpot_s_mean"] is None  # one token has no time between tokens
    assert rows[0]["ttft_s_mean"] > rows[2]["ttft_s_mean"]


def test_the_command_takes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(path, generate(40, cache_hit=0.6, groups=4, input_len=200, output_len=5), 16)
    figure = tmp_path / "f.html"
    arguments = ["--trace", str(path), "--kv-gb", "5", "--json", "--html", str(figure)]
    assert command(["simulate", *arguments]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0]["hit_rate"] == 0.0
    assert rows[2]["hit_rate"] > 0.4
    assert not math.isnan(rows[2]["tpot_s_mean"])
    assert "decode" in figure.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "v2"], "policy must be one of"),
        (["--device", "H1000"], "unknown device"),
        (["--batch", "2", "--num-blocks", "4"], "needs 19 blocks of 16, the pool has 3"),
        (["--batch", "2", "--num-blocks", "20", "--output-len", "90"], "cannot go on"),
        (["--trace", "none.jsonl"], "No such file"),
        (["--rate", "0"], "rate_per_s must be above 0"),
        (["--batch", "0"], "batch must be at least 1"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["simulate", *arguments]) == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_a_sweep_goes_to_its_file_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s.jsonl"
    asked = ["simulate", "--batch", "5", "--output-len", "3", "--out", str(out), "--sweep"]
    assert command([*asked, "cache_hit=0,1", "--sweep", "policy=v0,v1"]) == 0
    assert len(out.read_text().splitlines()) == 4
    assert "TPOT ms" in capsys.readouterr().out
    assert command([*asked, "cache_hit=0,0.5,1", "--sweep", "policy=v0,v1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["point"]["cache_hit"] for row in rows] == [0, 0, 0.5, 0.5, 1, 1]
    assert len(out.read_text().splitlines()) == 6
    # a point that fails is told, the others are there
    assert command([*asked, "prefix_groups=1,9"]) == 2
    assert "prefix_groups=9: ValueError: prefix_groups must be at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sweep", "batch=1"], "--sweep needs --out, too"),
        (["--sweep", "batch", "--out", "f"], "--sweep must be NAME=V,V,..., got 'batch'"),
        (["--sweep", "bach=1", "--out", "f"], "got 'bach'"),
        (["--sweep", "batch=1", "--out", "f", "--kv-gb", "3"], "--sweep goes without --kv-gb"),
    ],
)
def test_a_bad_sweep_is_told_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["simulate", *arguments]) == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("policy", ["v1", "v0"])
def test_blocks_that_are_never_reached_are_only_counted(policy: str) -> None:
    """Each step as with a pool that has all of them, its free blocks too."""
    workload = Workload(12, 64, 6, cache_hit=0.5, prefix_groups=3)
    config = EngineConfig(policy=policy, max_num_batched_tokens=200)
    found = simulate(workload, config=config, num_blocks=5000, arms=["on"])
    pool = (BlockPool if policy == "v1" else BlockPoolV0)(5000)
    prime(pool, workload)
    cost = roofline_step(specs.model("llama-13b"), found.rates)
    whole = run(workload_requests(workload), config, pool, cost)
    assert found.num_blocks == 5000
    assert found.runs["on"].pool.num_blocks < 200
    for name, column in whole.steps.items():
        assert found.runs["on"].steps[name].tolist() == column.tolist(), name


@pytest.mark.parametrize(
    ("workload", "policy"),
    [
        (Workload(300, 800, 16, cache_hit=0.0, primed=False), "v1"),
        (Workload(300, 800, 16, primed=False), "v0"),
        (Workload(40, 100, 800, cache_hit=0.0, primed=False), "v0"),
        (Workload(1, 16, 8000), "v1"),
    ],
)
def test_the_bookkeeping_takes_what_is_counted_for_it(
    workload: Workload, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused below what `tracemalloc` sees, admitted with four times as much."""
    config = EngineConfig(policy=policy)
    tracemalloc.start()
    try:
        simulate(workload, config=config, arms=["on"])
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(decompose, "memory_available", lambda: taken)
    with pytest.raises(MemoryError, match="for the bookkeeping of the pools"):
        simulate(workload, config=config, arms=["on"])
    monkeypatch.setattr(decompose, "memory_available", lambda: 4 * taken)
    simulate(workload, config=config, arms=["on"])
