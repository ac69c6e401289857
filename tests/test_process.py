"""Signals, streams and files, with real processes: nothing measured is lost, nothing is torn."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from apclab import process, results

ROOT = Path(__file__).resolve().parents[1]
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
APCLAB = [sys.executable, "-m", "apclab"]
NEEDS_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")


def surroundings(path: str = PYTHONPATH) -> dict[str, str]:
    """The environment as it is in a test: when this file is imported, TMPDIR is not its own yet."""
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture(scope="module")
def measuring(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command that measures a step of two requests in milliseconds."""
    path = tmp_path_factory.mktemp("step") / "step.npz"
    tables = np.array([[5, 3, 7], [5, 2, 4]], dtype=np.int32)
    np.savez(path, block_tables=tables, seq_lens=np.array([40, 33], dtype=np.int32), num_heads=2,
             num_kv_heads=1, head_size=16, block_size=16)  # fmt: skip
    return [*APCLAB, "decode", "--tables", str(path), "--dtype", "float32", "--budget", "0.05"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["decode", "campaign"])
def test_a_signal_during_the_imports(tmp_path: Path, number: signal.Signals, command: str) -> None:
    slow = "print('importing', flush=True)\nimport time\ntime.sleep(60)\n"
    for name in ("typer", "argparse"):
        (tmp_path / f"{name}.py").write_text(slow, encoding="utf-8")
    env = surroundings(os.pathsep.join([str(tmp_path), PYTHONPATH]))
    with subprocess.Popen(
        [*APCLAB, command], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "importing\n"
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    assert err == "apclab: stopped\n"


@pytest.mark.parametrize("argv", [["--help"], ["doctor", "--json"], ["campaign", "--help"]])
def test_a_reader_who_has_gone(argv: list[str]) -> None:
    done = _without_reader([*APCLAB, *argv])
    # argparse keeps to itself that nobody read its help
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_a_reader_who_has_gone_costs_no_record(measuring: list[str], tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    done = _without_reader([*measuring, "--save", str(path)])
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert len(results.load(path)[0]) == 3


def _without_reader(command: list[str]) -> "subprocess.CompletedProcess[str]":
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            command,
            env=surroundings(),
            text=True,
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writing)


@NEEDS_FULL
@pytest.mark.parametrize(("where", "status"), [(">/dev/full", 3), (">&-", 2)])
def test_stdout_that_takes_nothing_costs_no_record(
    measuring: list[str], tmp_path: Path, where: str, status: int
) -> None:
    path = tmp_path / "kept.jsonl"
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {where}', "sh", *measuring, "--save", str(path)],
        env=surroundings(), text=True, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "apclab: stdout: cannot write: " in done.stderr
    assert "Traceback" not in done.stderr
    assert len(results.load(path)[0]) == 3


@pytest.mark.slow
@NEEDS_FULL
def test_stderr_that_takes_nothing_is_no_failure(measuring: list[str]) -> None:
    for where in ("2>/dev/full", "2>&-"):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {where}', "sh", *measuring, "--json"],
            env=surroundings(), text=True, stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
        assert done.returncode == 0
        assert len(done.stdout.splitlines()) == 3


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow beyond a kilobyte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _replace(path: Path, text: str) -> None:
    with process.replacing(path) as file:
        file.write(text)


@pytest.mark.usefixtures("small_disk")
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path, link = tmp_path / "page.html", tmp_path / "link.html"
    _replace(path, "old")
    path.chmod(0o640)
    link.symlink_to(path)
    with pytest.raises(OSError, match="too large"):
        _replace(link, "new" * 1000)
    assert path.read_text("utf-8") == "old"
    _replace(link, "new")
    assert link.is_symlink()
    assert path.read_text("utf-8") == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_what_the_caller_ignores_stays_ignored() -> None:
    code = (
        "import os, signal\nfrom apclab import process\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "def work():\n"
        "    with process.waiting() as stop:\n"
        "        os.kill(os.getpid(), signal.SIGHUP)\n"
        "        return int(stop())\n"
        "raise SystemExit(process.run(work))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=surroundings(), check=False)
    assert done.returncode == 0
