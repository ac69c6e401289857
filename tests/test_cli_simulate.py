"""`apclab simulate`: every option beside every mode, ranges, and what fits the screen."""

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import typer.main

from apclab import decompose
from apclab.cli import app, run
from apclab.results import append
from apclab.traces import generate, write_trace
from tests.sample_records import sample_calibration

SHARED = Path(__file__).resolve().parents[2] / "shared"
SIMULATE = typer.main.get_command(app).commands["simulate"]  # type: ignore[attr-defined]
FLAGS = {param.name: max(param.opts, key=len) for param in SIMULATE.params}
MODES = ("workload", "trace", "sweep")
# option -> what is given for it; each differs from the default and from BASE
ASKED: dict[str, list[str]] = {
    "batch": ["5"],
    "input_len": ["50"],
    "output_len": ["9"],
    "cache_hit": ["0.25"],
    "prefix_groups": ["3"],
    "primed": [],
    "rate": ["3"],
    "samples": ["2"],
    "trace": ["TRACE"],
    "limit": ["7"],
    "skip_bad": [],
    "as_lengths": [],
    "drop_last_block": [],
    "policy": ["v0"],
    "queue": ["lpm"],
    "max_num_batched_tokens": ["70"],
    "max_num_seqs": ["2"],
    "scheduler_reserve_full_isl": [],
    "block_size": ["8"],
    "num_blocks": ["14"],
    "kv_gb": ["0.17"],
    "model": ["llama-2-7b"],
    "device": ["H100-SXM5-80GB"],
    "calibration": ["RATES"],
    "dtype": ["float32"],
    "fixed_ms": ["3"],
    "sweep": ["policy=v1,v0"],
    "out": ["OUT"],
    "scheduler": ["nowhere"],
    "json_lines": [],
    "html": ["HTML"],
}
SWITCHED = {"scheduler_reserve_full_isl": "--no-scheduler-reserve-full-isl"}
BASE = {
    "batch": "6",
    "input_len": "64",
    "output_len": "8",
    "cache_hit": "0.5",
    "prefix_groups": "2",
}
# what a trace and a sweep have beside: a pool and a budget that are felt
TIGHT = {"max_num_batched_tokens": "40"}
# what else must be there, in both runs, for an option to be felt
BESIDE = {"scheduler_reserve_full_isl": {"num_blocks": "15"}, "queue": {"max_num_seqs": "1"}}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A trace, the same with a bad line, rates, and paths to write to."""
    trace, bad, rates = (tmp_path / name for name in ("trace.jsonl", "bad.jsonl", "rates.jsonl"))
    requests = generate(12, cache_hit=0.5, groups=3, input_len=64, output_len=8, rate_per_s=100)
    write_trace(trace, requests, 16)
    bad.write_text(trace.read_text() + "no request\n")
    records = [sample_calibration(probe) for probe in ("distinct", "shared", "product")]
    for record in records:
        record["model"]["dtype"] = "float16"
    append(rates, records)
    written = {"OUT": str(tmp_path / "out.jsonl"), "HTML": str(tmp_path / "page.html")}
    return {"TRACE": str(trace), "BAD": str(bad), "RATES": str(rates), **written}


def outcome(
    options: dict[str, list[str] | str], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> tuple[Any, ...]:
    """Exit status, stdout, last line of stderr, and what was written to files."""
    words = ["simulate"]
    for name, values in options.items():
        words.append(SWITCHED.get(name, FLAGS[name]))
        words += [
            files.get(value, value) for value in ([values] if isinstance(values, str) else values)
        ]
    capsys.readouterr()
    status = run(words)
    shown = capsys.readouterr()
    written = {}
    for name in ("OUT", "HTML"):
        if (path := Path(files[name])).exists():
            # of a sweep what was found, not what was asked: that is written in any case
            lines = path.read_text().splitlines() if name == "OUT" else ["a figure"]
            written[name] = [line.partition('"result":')[2] for line in lines]
            path.unlink()
    return status, shown.out, (shown.err.splitlines() or [""])[-1], written


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name in FLAGS if name != "help"])
def test_no_option_is_ignored_in_silence(
    name: str, mode: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside each mode an option changes what comes out, or is refused by its name."""
    base: dict[str, Any] = {**TIGHT, **BESIDE.get(name, {})}
    match mode:
        case "workload":
            base |= BASE
        case "trace":
            base |= {"trace": "BAD" if name == "skip_bad" else "TRACE"}
        case "sweep":
            base |= {**BASE, "sweep": "seed=0,1", "out": "OUT"}
    if name in base and name in ("sweep", "out", "trace"):
        return  # the mode itself
    before = outcome(base, files, capsys)
    after = outcome({**base, name: ASKED[name]}, files, capsys)
    if after[0] == 2 and FLAGS[name].lstrip("-") in after[2]:
        return
    assert after != before
    assert after[0] == 0 or name == "scheduler"


def test_every_option_is_asked_somewhere() -> None:
    assert set(ASKED) == set(FLAGS) - {"help"}


HUGE = str(10**30)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--num-blocks 0", "num_blocks must be at least 2, got 0"),
        (f"--num-blocks {HUGE}", "num_blocks must be at most 2147483647"),
        ("--block-size 0", "block_size must be at least 1, got 0"),
        ("--samples 0", "samples must be at least 1, got 0"),
        ("--samples -1", "samples must be at least 1, got -1"),
        (f"--samples {HUGE}", "samples must be at most 32000"),
        (f"--input-len {HUGE}", "input_len must be at most 2147483647"),
        (f"--output-len {HUGE}", "output_len must be at most 2147483647"),
        ("--input-len 2147483647", "input_len + output_len must be at most 2147483647"),
        ("--max-num-batched-tokens 0", "max_num_batched_tokens must be at least 1, got 0"),
        ("--max-num-seqs 0", "max_num_seqs must be at least 1, got 0"),
        ("--fixed-ms -1", "--fixed-ms must be at least 0, got -1"),
        ("--fixed-ms nan", "--fixed-ms must be at least 0, got nan"),
        ("--kv-gb nan", "kv_gb must be above 0, got nan"),
        ("--kv-gb inf", "kv_gb must be above 0, got inf"),
        ("--kv-gb 0", "kv_gb must be above 0, got 0"),
        ("--kv-gb 1e-6", "kv_gb must hold a block of 16 tokens, 0.0131 GB, got 1e-06"),
        ("--rate nan", "rate_per_s must be above 0, got nan"),
        ("--policy v0 --no-scheduler-reserve-full-isl", "v0 knows no scheduler_reserve_full_isl"),
        ("--trace TRACE --block-size 0 --num-blocks 50", "block_size must be at least 1, got 0"),
        ("--trace TRACE --kv-gb 0", "kv_gb must be above 0, got 0"),
        ("--sweep batch=5 --out FOLDER", "--out: cannot write"),
        ("--sweep seed=1 --sweep seed=2 --out OUT", "--sweep seed= is given twice"),
        ("--rate 5 --sweep rate_per_s=2,3 --out OUT", "rate_per_s is given on its own and to"),
        ("--sweep batch=5", "--sweep needs --out"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(
    words: str, complaint: str, files: dict[str, str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    files["FOLDER"] = str(tmp_path)
    assert run(["simulate", *(files.get(word, word) for word in words.split())]) == 2
    shown = capsys.readouterr()
    assert complaint in shown.err.splitlines()[-1]
    assert shown.out == ""


def test_a_pool_that_does_not_fit_the_memory_is_refused_with_the_arithmetic(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decompose, "memory_available", lambda: 10**9)
    asked = ["simulate", "--trace", files["TRACE"], "--num-blocks", "40000000"]
    assert run(asked) == 3
    said = "40,000,000 blocks x 120 bytes x 3 runs = 14.40 GB for the bookkeeping of the pools"
    assert said in capsys.readouterr().err
    # a workload that cannot use them costs what it uses
    assert run(["simulate", "--batch", "3", "--num-blocks", "40000000"]) == 0


def test_a_prompt_that_the_pool_cannot_hold_is_told_with_the_option_that_helps(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["simulate", "--trace", files["TRACE"], "--json"]
    for option, small in (("--kv-gb", "0.02"), ("--num-blocks", "4")):
        assert run([*asked, option, small]) == 2
        enough = re.search(rf"{option} ([\d.]+) holds every one", capsys.readouterr().err)
        assert enough
        assert run([*asked, option, enough[1]]) == 0


CONVERSATION = SHARED / "traces" / "requests" / "mooncake" / "conversation_trace.jsonl"


@pytest.mark.skipif(not CONVERSATION.exists(), reason="the real traces are not here")
def test_the_conversation_trace_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """What its longest request takes, by hand: blocks of 512 tokens."""
    assert run(["simulate", "--trace", str(CONVERSATION)]) == 2
    rows = [json.loads(line) for line in CONVERSATION.read_text().splitlines()]
    longest = max(row["input_length"] + row["output_length"] for row in rows)
    # 40 layers of 40 heads of 128, K and V, float16
    gigabytes = -(-longest // 512) * 512 * 40 * 40 * 128 * 2 * 2 / 1e9
    enough = re.search(r"--kv-gb ([\d.]+) holds every one", capsys.readouterr().err)
    assert enough
    assert 0 <= float(enough[1]) - gigabytes <= 0.1001


@pytest.mark.parametrize("more", [[], ["--output-len", "1"], ["--policy", "v0", "--rate", "3"]])
def test_the_table_fits_80_columns(
    more: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["simulate", *more]) == 0
    shown = capsys.readouterr().out
    assert run(["simulate", *more, "--json"]) == 0
    off, _, on = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    (ttft,) = (line.split() for line in shown.splitlines() if line.startswith("TTFT s"))
    assert [ttft[2], ttft[4]] == [f"{row['ttft_s_mean']:.3f}" for row in (off, on)]


def test_a_sweeps_table_fits_80_columns(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = ["--sweep", "input_len=100,3000", "--sweep", "cache_hit=0.25", "--sweep", "policy=v1"]
    assert run(["simulate", "--batch", "5", *asked, "--out", files["OUT"]]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "3000" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_primed_counts_beside_rate_and_samples(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 300 tokens half is known: 9 blocks of 16; every request finds them, so 144 / 300."""
    for more in ([], ["--rate", "50"], ["--rate", "50", "--samples", "1"]):
        asked = ["simulate", "--primed", "--cache-hit", "0.5", "--batch", "20", *more, "--json"]
        assert run(asked) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["hit_rate"] for row in rows] == pytest.approx([0, 0.48, 0.48])


def test_vllm_25538_two_prompts_that_cannot_both_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """15 blocks, two prompts of 10: with the reserve the second waits, else one is preempted."""
    two = ["--batch", "2", "--input-len", "160", "--cache-hit", "0", "--output-len", "8"]
    preempted = {}
    for flag in ("--scheduler-reserve-full-isl", "--no-scheduler-reserve-full-isl"):
        tight = ["--num-blocks", "16", "--max-num-batched-tokens", "64"]
        assert run(["simulate", *two, *tight, flag, "--json"]) == 0
        on = json.loads(capsys.readouterr().out.splitlines()[-1])
        preempted[flag] = on["preemptions"]
        assert on["requests"] == 2
    assert preempted["--scheduler-reserve-full-isl"] == 0
    assert preempted["--no-scheduler-reserve-full-isl"] > 0


def test_a_file_with_other_results_is_told(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["simulate", "--batch", "3", "--sweep", "seed=1", "--out", files["OUT"]]
    assert run(asked) == 0
    (line,) = Path(files["OUT"]).read_text().splitlines()
    row = json.loads(line)
    bad: list[Any] = [5, None, {}, {"rows": 3}, {"rows": [{"arm": "on"}]}, {"rows": []}]
    other = [dict(arm, hit_rate="much") for arm in row["result"]["rows"]]
    for result in (*bad, {"rows": other}):
        Path(files["OUT"]).write_text(json.dumps({**row, "result": result}) + "\n")
        capsys.readouterr()
        assert run(asked) == 2
        said = f"what it holds under the key {row['key']} is no result of"
        assert said in capsys.readouterr().err
    Path(files["OUT"]).write_text(json.dumps({**row, "point": {"seed": 9}}) + "\n")
    assert run(asked) == 2
    assert "{'seed': 9}" in capsys.readouterr().err


def test_a_sweep_counts_its_points_before_it_makes_them(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    thousand = ",".join(map(str, range(1, 1001)))
    names = ("batch", "input_len", "output_len")
    asked = [word for name in names for word in ("--sweep", f"{name}={thousand}")]
    tracemalloc.start()
    try:
        assert run(["simulate", *asked, "--out", files["OUT"]]) == 2
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "grid must hold at most 100,000 points, got 1,000,000,000" in capsys.readouterr().err
    assert peak < 50e6
