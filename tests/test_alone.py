"""One measurement at a time: in the process, on the machine, freed by the death of its process."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from apclab import Workload, compare_decode
from apclab.cli import run
from apclab.clock import Busy, alone
from apclab.clock.lock import lock_file

ROOT = Path(__file__).resolve().parents[1]
HOLDER = """
from apclab.clock import alone
with alone("decode lab 7"):
    print("holds", flush=True)
    input()
"""
SMALL = ("--batch", "2", "--input-len", "32", "--output-len", "2", "--budget", "0.01")


@contextmanager
def another_process() -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the machine."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], env={**os.environ, "PYTHONPATH": paths}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        try:
            yield process
        finally:
            process.kill()


needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="no flock")


@needs_locks
def test_another_process_is_named_and_its_death_frees_the_machine() -> None:
    with another_process() as process:
        words = rf"runs on this machine since .* \(pid {process.pid}, decode lab 7"
        with pytest.raises(Busy, match=words), alone("me"):
            pass
        with pytest.raises(Busy, match="not started at"):
            compare_decode(Workload(batch=2, input_len=32, output_len=2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        with alone("me"):
            assert f"(pid {os.getpid()}, me)" in lock_file().read_text()


@needs_locks
@pytest.mark.parametrize("command", [("decode", *SMALL), ("calibrate", "--budget", "0.01")])
def test_a_command_beside_a_panel_is_refused(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with another_process() as process:
        assert run(command) == 3
        told = capsys.readouterr().err
        assert "another measurement runs on this machine since" in told
        assert f"(pid {process.pid}, decode lab 7); wait for it or stop it" in told


def test_another_thread_is_refused_and_the_same_one_is_not() -> None:
    told: list[str] = []

    def try_it() -> None:
        try:
            with alone("second"):
                told.append("in")
        except Busy as error:
            told.append(str(error))

    with alone("first"):
        with alone("inside of first"):
            pass
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert told == ["first is measuring in this process: cancel it or wait for it"]
    try_it()
    assert told[1:] == ["in"]


def test_an_error_frees_the_machine() -> None:
    with pytest.raises(ZeroDivisionError), alone("first"):
        raise ZeroDivisionError
    with alone("second"):
        pass


@needs_locks
def test_a_file_that_cannot_be_made_stops_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with alone("me"):
        assert not lock_file().exists()
