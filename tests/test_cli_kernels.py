"""`apclab doctor --kernels`: the table, its JSON, and what is said where triton is missing."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from apclab import attention
from apclab.attention import compiled
from apclab.cli import run
from tests.test_memory_model import BUILD


@pytest.fixture(autouse=True)
def _same_width_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def pretend(monkeypatch: pytest.MonkeyPatch, *builds: dict[str, Any]) -> None:
    """Let the compiler answer at once, with these."""

    def compile_kernels(**how: Any) -> list[dict[str, Any]]:
        how["progress"](0.5, "sm_80 bfloat16 decode")
        return list(builds)

    monkeypatch.setattr(attention, "compile_kernels", compile_kernels)


def test_table_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = BUILD | {"target": "gfx942", "async_copies": 0, "wide_loads": 17}
    # too few bytes in flight are a reason to worry for decode alone
    pretend(monkeypatch, BUILD, other, BUILD | {"kernel": "cascade", "tile_bytes": 512})
    assert run(["doctor", "--kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("decode") and "A100" in line)
    assert row.split() == [
        "decode",
        "A100-SXM4-80GB",
        "sm_80",
        "bfloat16",
        "40/40",
        "80",
        "21.1",
        "KiB",
        "16",
        "16",
        "6",
        "96",
        "KiB",
        "7.4",
        "KiB*",
        "12.9",
        "0.21",
        "10.2",
    ]
    row = next(line for line in lines if line.startswith("decode") and "gfx942" in line)
    assert row.split() == [
        "decode",
        "-",
        "gfx942",
        "bfloat16",
        "40/40",
        "80",
        "21.1",
        "KiB",
        "17",
        "16",
    ]


def test_json_is_one_row_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, BUILD, BUILD | {"target": "sm_90"})
    assert run(["doctor", "--kernels", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 4
    assert rows[0]["device"] == "A100-SXM4-80GB"
    assert rows[0]["bytes_in_flight"] == 98304


def test_a_fault_is_said_and_is_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, BUILD | {"faults": ["2 instructions spill registers"], "tile_bytes": 512})
    assert run(["doctor", "--kernels"]) == 1
    shown = capsys.readouterr().out
    assert "decode A100-SXM4-80GB bfloat16 40: 2 instructions spill registers" in shown
    assert "decode A100-SXM4-80GB bfloat16 40: too few bytes in flight, ratio 0.40" in shown


def test_without_triton_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "find_spec", lambda _name: None)
    assert run(["doctor", "--kernels"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("apclab: compiling the kernels needs triton; install it with: ")
    assert "pip install 'apclab[torch]'" in shown.err


needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="compiles with triton, which is not installed"
)


@needs_triton
def test_kernels_are_compiled_in_a_process_that_does_not_interpret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    told: list[float] = []
    builds = attention.compile_kernels(
        ["sm_80"], cancelled=lambda: len(told) == 2, progress=lambda done, _: told.append(done)
    )
    # 2 shapes in 3 dtypes, stopped after the second
    assert told == [1 / 6, 2 / 6]
    assert [build["registers"] > 0 for build in builds] == [True, True]
    assert [build["faults"] for build in builds] == [[], []]


@needs_triton
def test_a_compiler_that_fails_is_a_sentence() -> None:
    with pytest.raises(attention.Unavailable, match="cannot compile the kernels here: ValueErr"):
        attention.compile_kernels(["sm_eighty"])


@needs_triton
@pytest.mark.slow
def test_default_variants_keep_dram_busy_on_every_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert run(["doctor", "--kernels", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    held = [row for row in rows if row["device"]]
    devices = {row["device"] for row in held}
    assert {"A100-SXM4-80GB", "H100-SXM5-80GB", "H200", "B200", "L40S"} <= devices
    for row in held:
        if row["kernel"] != "decode":
            continue
        assert row["ratio"] >= 1.5, row
        assert row["issue"] < 1, row
        # half precision even if all programs compute at once; float32 then still once over
        assert row["ratio_least"] >= (1.5 if row["dtype"] != "float32" else 1), row
