"""`apclab calibrate`: every option arrives, table, JSON, save, Ctrl-C, bad input in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from apclab import attention, bench, clock, results
from apclab.cli import run
from tests.sample_records import sample_calibration

RECORDS = [sample_calibration(probe) for probe in results.PROBES]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []

    def calibrate(model: str, **how: Any) -> list[results.Record]:
        asked.append({"model": model, **how})
        how["progress"](0.5, "timing")
        return RECORDS

    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(bench, "calibrate", calibrate)
    return asked


def test_every_option_arrives(calls: list[dict[str, Any]]) -> None:
    argv = (
        "calibrate --model llama-3.1-8b --dtype float16 --dtype float32 --dtype float16 "
        "--layout HND --backend reference --order head --budget 0.2 --threads 1"
    )
    assert run(argv.split()) == 0
    assert [call["dtype"] for call in calls] == ["float16", "float32"]
    expected = {
        "model": "llama-3.1-8b", "layout": "HND", "backend": "reference", "order": "head",
        "budget_s": 0.2, "threads": 1,
    }  # fmt: skip
    assert {name: calls[0][name] for name in expected} == expected


def test_the_table_has_rates_with_units(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate"]) == 0
    assert calls[0]["dtype"] == "bfloat16"
    shown = capsys.readouterr().out
    for word in ("20.0 GB/s", "200 Gflop/s", "20.0 us", "one_block", "plain reads, GB/s: L2"):
        assert word in shown


def test_json_and_save(
    calls: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rates.jsonl"
    assert run(["calibrate", "--json", "--save", str(path)]) == 0
    assert len(calls) == 1
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == RECORDS
    assert results.load(path, kind="calibration") == (RECORDS, [])


def test_ctrl_c_keeps_what_was_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        stopped = clock.Cancelled()
        stopped.records = RECORDS[:2]
        raise stopped

    monkeypatch.setattr(bench, "calibrate", stop)
    assert run(["calibrate", "--json"]) == 130
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2


def test_bad_input_costs_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise attention.Unavailable("no GPU")

    monkeypatch.setattr(bench, "calibrate", missing)
    for argv, status, words in (
        (["--dtype", "fp8"], 2, "dtype must be one of float32, float16, bfloat16, got 'fp8'"),
        (["--save", str(tmp_path / "no" / "x.jsonl")], 2, "--save: cannot write"),
        (["--budget", "much"], 2, "got 'much'"),
        ([], 3, "no GPU"),
    ):
        assert run(["calibrate", *argv]) == status
        shown = capsys.readouterr()
        assert shown.out == ""
        assert words in shown.err
        assert len(shown.err.splitlines()) == 1
