"""The command line: tables and JSON, files, statuses, and one clear line for every bad input."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apclab import attention, bench, clock, results
from apclab.cli import doctor, lab, run
from apclab.workload import OWN_HISTORY, Workload
from tests import notebooks
from tests.sample_records import sample_pair

Calls = list[dict[str, Any]]
# a step that takes milliseconds: 2 requests of 40 and 33 tokens that share their first block
STEP: dict[str, Any] = {
    "block_tables": np.array([[5, 3, 7], [5, 2, 4]], dtype=np.int32),
    "seq_lens": np.array([40, 33], dtype=np.int32),
    "num_blocks": 9,
    "block_size": 16,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_size": 16,
}


@pytest.fixture(autouse=True)
def _same_width_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What `apclab decode` asks of the bench, which answers with a made-up pair at once."""
    asked: Calls = []

    def compare(subject: object, model: object, **how: Any) -> list[results.Record]:
        asked.append({"subject": subject, "model": model, **how})
        how["progress"](0.5, "measuring")
        return sample_pair(382.0, 252.5)

    monkeypatch.setattr(bench, "compare_decode", compare)
    monkeypatch.setattr(bench, "compare_tables", compare)
    return asked


@pytest.fixture
def step_file(tmp_path: Path) -> Callable[..., str]:
    """Writes STEP, with arrays changed or (None) left out, and returns the path."""

    def write(**changes: object) -> str:
        arrays = {name: value for name, value in (STEP | changes).items() if value is not None}
        path = tmp_path / "step.npz"
        np.savez(path, **arrays)
        return str(path)

    return write


def refused(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 2) -> str:
    """Run a command that must fail with this status and one line; returns the line."""
    assert run(argv) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    # some of it only comes to light when the measurement begins
    (line,) = (line for line in shown.err.splitlines() if not line.startswith("measuring"))
    assert line.startswith("apclab: ")
    return line


# --- what is asked, and what is shown


def test_defaults_are_the_issue(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["decode"]) == 0
    (call,) = calls
    assert call["subject"] == Workload()
    assert call["model"] == "llama-13b"
    assert call["cases"] == ("private", "shared", "cascade")
    assert (call["dtype"], call["block_size"], call["step"]) == ("bfloat16", 16, "mid")
    shown = capsys.readouterr().out
    for word in ("private", "shared", "382.0", "252.5", "hit asked 1.00, realised", "readers"):
        assert word in shown
    assert results.finding(sample_pair(382.0, 252.5)) in " ".join(shown.split())


def test_every_option_arrives(calls: Calls) -> None:
    argv = (
        "decode --batch 8 --input-len 64 --output-len 4 --cache-hit 0.5 --prefix-groups 2 "
        "--not-primed --seed 3 --model llama-3.1-8b --dtype float16 --block-size 32 --layout HND "
        "--backend reference --order head --l2 warm --step last --case shared --budget 0.2 "
        "--threads 1"
    )
    assert run(argv.split()) == 0
    (call,) = calls
    assert call["subject"] == Workload(8, 64, 4, 0.5, 2, False, 3)
    expected = {
        "model": "llama-3.1-8b",
        "dtype": "float16",
        "block_size": 32,
        "layout": "HND",
        "backend": "reference",
        "order": "head",
        "l2": "warm",
        "step": "last",
        "cases": ("shared",),
        "budget_s": 0.2,
        "threads": 1,
    }
    assert {name: call[name] for name in expected} == expected


def test_preset_gives_way_to_options(calls: Calls) -> None:
    assert run(["decode", "--preset", "own history", "--input-len", "64"]) == 0
    assert calls[0]["subject"] == Workload(
        input_len=64, cache_hit=OWN_HISTORY.cache_hit, prefix_groups=OWN_HISTORY.prefix_groups
    )


def test_json_is_records_and_nothing_else(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["decode", "--json"]) == 0
    assert len(calls) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == sample_pair(382.0, 252.5)


def test_save_appends_to_a_path(calls: Calls, tmp_path: Path) -> None:
    path = tmp_path / "new" / "mine.jsonl"
    path.parent.mkdir()
    assert run(["decode", "--save", str(path)]) == 0
    assert run(["decode", "--save", str(path), "--json"]) == 0
    assert len(calls) == 2
    assert results.load(path) == (sample_pair(382.0, 252.5) * 2, [])


@pytest.mark.parametrize("argv", [["--save"], ["--save", "--json"], ["--save="]])
def test_save_without_a_path_knows_where(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    path = tmp_path / "default.jsonl"
    monkeypatch.setattr(results, "destination", lambda _record: path)
    assert run(["decode", *argv]) == 0
    assert len(calls) == 1
    assert len(results.load(path)[0]) == 2


def test_html_needs_no_network(calls: Calls, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert run(["decode", "--html", str(path)]) == 0
    assert len(calls) == 1
    page = path.read_text("utf-8")
    assert "Plotly.newPlot" in page
    assert 'src="http' not in page


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert run(["decode", "--help"]) == 0
    shown = capsys.readouterr().out
    for word in ("doctor", "--cache-hit", "--tables", "private, shared or cascade"):
        assert word in shown
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("apclab 0.")


# --- real block tables


def test_tables_are_measured_for_real(
    step_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["decode", "--tables", step_file(), "--dtype", "float32", "--budget", "0.05", "--json"]
    assert run([*argv, "--backend", "cpu"]) == 0
    private, shared, cascade = map(json.loads, capsys.readouterr().out.splitlines())
    assert [r["case"] for r in (private, shared, cascade)] == ["private", "shared", "cascade"]
    token_bytes = 2 * 1 * 16 * 4
    assert private["logical_bytes"] == shared["logical_bytes"] == 73 * token_bytes
    assert private["distinct_bytes"] == 73 * token_bytes
    assert shared["distinct_bytes"] == (73 - 16) * token_bytes
    assert shared["model"]["num_heads"] == 2
    assert shared["workload"]["cache_hit"] is None


def test_tables_take_model_and_block_size_from_options(
    calls: Calls, step_file: Callable[..., str]
) -> None:
    path = step_file(
        num_blocks=None, block_size=None, num_heads=None, num_kv_heads=None, head_size=None
    )
    assert run(["decode", "--tables", path, "--model", "llama-3.1-8b", "--block-size", "32"]) == 0
    assert calls[0]["model"] == "llama-3.1-8b"
    assert calls[0]["subject"].block_size == 32


def _change(name: str, value: object) -> dict[str, object]:
    return {name: value}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (_change("seq_lens", None), "seq_lens missing; the file holds block_tables"),
        (_change("block_tables", STEP["block_tables"].astype(np.int64)), "int32, got int64"),
        (_change("block_tables", np.arange(3, dtype=np.int32)), "2 dimension"),
        (_change("seq_lens", np.array([40], dtype=np.int32)), "seq_lens must be [2]"),
        (_change("seq_lens", np.array([40, 50], dtype=np.int32)), "50 in row 1"),
        (_change("seq_lens", np.array([40, 0], dtype=np.int32)), "at least 1, got 0"),
        (_change("num_blocks", 7), "below num_blocks (7), got 7 in row 0, column 2"),
        (_change("block_tables", -STEP["block_tables"]), "got -5 in row 0"),
        (_change("block_size", 0), "block_size must be"),
        (_change("block_size", 2**31), "block_size must be at most 2147483647"),
        (_change("block_size", 16.0), "block_size must be one integer, got float64"),
        (_change("num_heads", np.array([2, 2])), "num_heads must be one integer"),
        (_change("head_size", None), "given without head_size"),
        (_change("num_kv_heads", 3), "multiple"),
        (_change("block_tables", np.array([[1], [None]], dtype=object)), "plain .npz arrays"),
    ],
)
def test_bad_tables_cost_one_line(
    changes: dict[str, object],
    words: str,
    step_file: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = step_file(**changes)
    line = refused(capsys, "decode", "--tables", path)
    assert words in line
    assert path in line


def test_files_that_are_no_npz(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, empty, array = tmp_path / "a.npz", tmp_path / "b.npz", tmp_path / "c.npy"
    text.write_text("block_tables", encoding="utf-8")
    empty.touch()
    np.save(array, np.zeros(3))
    for path in (text, empty, array):
        assert "not an .npz file" in refused(capsys, "decode", "--tables", str(path))
    assert "No such file" in refused(capsys, "decode", "--tables", str(tmp_path / "none.npz"))
    assert "directory" in refused(capsys, "decode", "--tables", str(tmp_path))


def test_a_damaged_npz(step_file: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(step_file())
    content = bytearray(path.read_bytes())
    content[60:200] = b"\0" * 140
    path.write_bytes(content)
    assert str(path) in refused(capsys, "decode", "--tables", str(path))


def _change_member(path: Path, at: int, value: int) -> None:
    """Set two bytes of the first member in both headers of a zip (there 2 further)."""
    content = bytearray(path.read_bytes())
    for magic, more in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        start = content.index(magic) + at + more
        content[start : start + 2] = value.to_bytes(2, "little")
    path.write_bytes(content)


@pytest.mark.parametrize(("at", "value", "words"), [(6, 1, "encrypted"), (8, 99, "compression")])
def test_members_that_nobody_can_unpack(
    at: int,
    value: int,
    words: str,
    step_file: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(step_file())
    _change_member(path, at, value)
    line = refused(capsys, "decode", "--tables", str(path))
    assert words in line
    assert str(path) in line


def test_a_member_that_unpacks_to_gigabytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bomb.npz"
    # 80 MB of zeros are 80 KB in the file
    np.savez_compressed(path, block_tables=np.zeros((2, 10**7), np.int32), seq_lens=np.ones(2))
    line = refused(capsys, "decode", "--tables", str(path))
    assert "block_tables unpacks to 80 MB (20,000,032 ids of 4 bytes)" in line


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        assert "not a regular file" in refused(capsys, "decode", "--tables", str(path))


def test_a_name_with_a_line_end_costs_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "decode", "--tables", str(tmp_path / "a\nb\x1b.npz"))
    assert "a\\nb\\x1b.npz: No such file" in line


def test_tables_and_a_workload_exclude_each_other(
    step_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "decode", "--tables", step_file(), "--batch", "3", "--not-primed")
    assert "leave out batch, primed" in line


# --- bad input and poor machines


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--batch 0", "batch must be at least 1, got 0"),
        ("--batch -3", "batch must be at least 1, got -3"),
        ("--batch many", "'many'"),
        ("--input-len 4 --batch 4 --batch=many", "got 'many'"),
        ("--input-len 0", "input_len must be at least 1, got 0"),
        ("--output-len -1", "output_len must be at least 1, got -1"),
        ("--cache-hit 1.2", "cache_hit must be between 0 and 1, got 1.2"),
        ("--cache-hit nan", "cache_hit must be between 0 and 1, got nan"),
        ("--batch 4 --prefix-groups 5", "prefix_groups must be at most batch (4), got 5"),
        ("--seed -1", "seed must be at least 0, got -1"),
        ("--model lama-13b", "llama-13b"),
        ("--dtype fp8", "dtype must be one of"),
        ("--block-size 0", "block_size must be"),
        ("--layout NHWC", "layout"),
        ("--backend metal", "backend"),
        ("--order random", "order"),
        ("--l2 lukewarm", "l2"),
        ("--step second", "step must be one of first, mid, last"),
        ("--case public", "case"),
        ("--preset mine", "preset must be one of issue 4860"),
        ("--budget nan", "budget"),
        ("--budget -1", "budget"),
        ("--threads 0", "threads must be between 1 and"),
        ("--threads 4096", "threads must be between 1 and"),
        ("--frobnicate", "--frobnicate"),
        ("stray", "stray"),
    ],
)
def test_bad_arguments_cost_one_line(
    argv: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, "decode", *argv.split())


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "frob" in refused(capsys, "frob")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (attention.Unavailable("triton needs an NVIDIA GPU"), 3, "triton needs an NVIDIA GPU"),
        (bench.OutOfMemory("needs 9 GB, 2 GB are free"), 3, "needs 9 GB, 2 GB are free"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 3, "pip install torch"),
        (OSError(errno.ENOSPC, "No space left on device"), 3, "No space left"),
        (TypeError("unexpected"), 1, "TypeError: unexpected (a bug; --debug"),
    ],
)
def test_what_the_bench_raises(
    error: Exception,
    status: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(bench, "compare_decode", fail)
    assert words in refused(capsys, "decode", status=status)
    assert run(["decode", "--debug"]) == status
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--save", "--html"])
def test_unwritable_outputs_are_found_before_measuring(
    option: str, calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "missing" / "out"
    line = refused(capsys, "decode", option, str(target))
    assert f"{option}: cannot write {target}: No such file" in line
    assert calls == []


def test_two_outputs_are_two_files(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "x")
    argv = ["decode", "--save", str(tmp_path / "x"), "--html", str(tmp_path / "link")]
    assert "--save and --html name one file" in refused(capsys, *argv)
    assert calls == []


def test_a_cancelled_run_leaves_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(*_: object, **__: object) -> None:
        raise clock.Cancelled

    monkeypatch.setattr(bench, "compare_decode", cancel)
    assert run(["decode", "--html", str(tmp_path / "page.html")]) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize("option", ["--save", "--html"])
def test_a_full_disk_loses_nothing(
    option: str, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["decode", "--json", option, "/dev/full"]) == 3
    shown = capsys.readouterr()
    assert [json.loads(line) for line in shown.out.splitlines()] == sample_pair(382.0, 252.5)
    assert "No space left" in shown.err
    assert len(calls) == 1


def test_a_failed_save_puts_the_records_on_stdout(
    calls: Calls,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(path: Path, _records: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(results, "append", fail)
    assert run(["decode", "--save", str(tmp_path / "a.jsonl")]) == 3
    shown = capsys.readouterr()
    assert [json.loads(line) for line in shown.out.splitlines()[-2:]] == sample_pair(382.0, 252.5)
    assert "the records are on stdout" in shown.err
    assert len(calls) == 1


# --- Ctrl-C


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_keeps_what_was_measured(
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def compare(*_: object, cancelled: Callable[[], bool], **__: object) -> list[results.Record]:
        os.kill(os.getpid(), number)
        while not cancelled():
            time.sleep(0.01)
        return sample_pair(382.0, 252.5)[:1]

    monkeypatch.setattr(bench, "compare_decode", compare)
    path = tmp_path / "kept.jsonl"
    before = signal.getsignal(number)
    assert run(["decode", "--save", str(path)]) == 128 + number
    assert signal.getsignal(number) is before
    shown = capsys.readouterr()
    assert "382.0" in shown.out
    named = "Ctrl-C" if number == signal.SIGINT else number.name
    assert shown.err.endswith(f"apclab: stopped by {named}\n")
    assert len(results.load(path)[0]) == 1


def test_records_of_a_cancelled_measurement_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cancel(*_: object, **__: object) -> None:
        error = clock.Cancelled("stopped between two timed calls")
        error.records = sample_pair(382.0, 252.5)
        raise error

    monkeypatch.setattr(bench, "compare_decode", cancel)
    assert run(["decode", "--json"]) == 130
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_second_ctrl_c_ends_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(bench, "compare_decode", compare)
    assert "stopped by Ctrl-C" in refused(capsys, "decode", status=130)


def test_every_command_has_the_status_of_its_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(*_: object, cancelled: Callable[[], bool], **__: object) -> list[object]:
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled()
        return []

    monkeypatch.setattr(attention, "compile_kernels", compiled)
    assert run(["doctor", "--kernels"]) == 130
    assert "stopped by Ctrl-C" in capsys.readouterr().err


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_a_real_run(number: signal.Signals, step_file: Callable[..., str]) -> None:
    argv = ["decode", "--tables", step_file(), "--budget", "60", "--dtype", "float32", "--json"]
    command = [sys.executable, "-m", "apclab", *argv]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=env, **pipes) as process:  # type: ignore[call-overload]
        first = process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert first.startswith("measuring"), first + err
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    for line in out.splitlines():
        results.validate(json.loads(line))


# --- the lab


def test_lab_serves_copies_of_the_notebooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", lambda program, command: started.append((program, command)))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(lab, "is_root", lambda: True)
    started: list[tuple[str, list[str]]] = []
    assert run(["lab", "--port", "8899", "--ip", "127.0.0.1"]) == 0
    ((program, command),) = started
    assert program == sys.executable
    assert "--LabApp.default_url=/lab/tree/00_the_question.ipynb" in command
    served = tmp_path / "apclab-notebooks"  # to run and save one there changes no committed file
    assert f"--ServerApp.root_dir={served}" in command
    shipped = {path.name: path.read_bytes() for path in lab.notebooks().glob("*.ipynb")}
    assert {path.name: path.read_bytes() for path in served.iterdir()} == shipped
    assert {"--ServerApp.port=8899", "--ServerApp.ip=127.0.0.1"} <= set(command)
    assert "--allow-root" in command
    assert ("--no-browser" in command) == sys.platform.startswith("linux")


def test_lab_allows_root_only_as_root_and_opens_a_browser_on_a_display() -> None:
    command = lab.server_command(
        Path("notebooks/a.ipynb"), port=None, ip=None, browser=True, root=False
    )
    assert not {"--allow-root", "--no-browser"} & set(command)
    assert not any(".port=" in part or ".ip=" in part for part in command)


def test_lab_really_starts(tmp_path: Path) -> None:
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JUPYTER_CONFIG_DIR": str(tmp_path),
    }
    env = {key: value for key, value in env.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
    command = [sys.executable, "-m", "apclab", "lab", "--port", "0", "--no-browser"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        said = any("/lab/tree/00_the_question.ipynb?token=" in line for line in lines)
        process.terminate()
        process.communicate(timeout=60)
    assert said


def test_copies_keep_folders_and_never_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    (source / "a.ipynb").write_text("a", encoding="utf-8")
    (source / "deep" / "b.csv").write_text("b", encoding="utf-8")
    (source / ".ipynb_checkpoints").mkdir()
    (source / ".ipynb_checkpoints" / "a-checkpoint.ipynb").write_text("old", encoding="utf-8")
    target.mkdir()
    (target / "a.ipynb").write_text("mine", encoding="utf-8")
    lab.copy_notebooks(source, target)
    said = capsys.readouterr().out
    assert "1 files copied, 1 already there" in said
    assert "not as this version has them: a.ipynb; remove them" in said
    assert (target / "a.ipynb").read_text("utf-8") == "mine"
    assert (target / "deep" / "b.csv").read_text("utf-8") == "b"
    assert not (target / ".ipynb_checkpoints").exists()


def test_a_copy_that_only_was_run_is_this_version_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "00_the_question.ipynb"
    ran = notebooks.read(lab.notebooks() / name)
    for cell in ran.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], 99
    notebooks.write(ran, tmp_path / name)
    lab.copy_notebooks(lab.notebooks(), tmp_path)
    assert "not as this version" not in capsys.readouterr().out


# --- the doctor


def test_doctor_says_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("apclab", "python", "numba", "ipywidgets", "anywidget", "chromium", "threads"):
        assert word in shown


def test_doctor_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    names = {check["name"] for check in report["checks"]}
    assert {"numpy", "jupyterlab", "ipykernel", "plotly", "torch", "triton"} <= names
    assert report["machine"]["memory_bytes"] > 0


def test_doctor_names_what_is_missing_or_too_old(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    really = doctor.installed
    seen = {"anywidget": "", "ipywidgets": "7.8.1", "ipykernel": "7.0.1", "torch": ""}
    monkeypatch.setattr(doctor, "installed", lambda name: seen.get(name, really(name)))
    monkeypatch.setattr(doctor, "find_gpus", lambda: ["NVIDIA Test, 1 MiB, 1.0"])
    assert run(["doctor"]) == 3
    lines = capsys.readouterr().out.splitlines()
    for name in seen:
        assert any(
            line.startswith(f"{name} (missing): ") and "pip install" in line for line in lines
        )
    assert not any(line.startswith("plotly (missing)") for line in lines)


def test_gpus_come_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA Test, 81920 MiB, 570.1'\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.find_gpus() == ["NVIDIA Test, 81920 MiB, 570.1"]
    program.write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    assert doctor.find_gpus() == []
