"""Where traces come from: pipes, folders, endless files; what reading them may take."""

import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apclab.cli import run
from apclab.engine.intake import trace_requests
from apclab.traces import TraceError, TraceRequest, generate, read_trace, write_trace
from apclab.traces.lines import Source

LINE: dict[str, Any] = {
    "timestamp": 0, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 2],
}  # fmt: skip
SESSION: dict[str, Any] = {
    "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}],
}  # fmt: skip


@contextlib.contextmanager
def fed(pipe: Path, text: bytes) -> Iterator[Path]:
    """A named pipe into which somebody writes in two pieces."""
    os.mkfifo(pipe)

    def feed() -> None:
        with pipe.open("wb", buffering=0) as file:
            file.write(text[:1])
            file.write(text[1:])

    writer = threading.Thread(target=feed)
    writer.start()
    yield pipe
    writer.join(10)
    assert not writer.is_alive()


@pytest.mark.parametrize("zipped", [False, True])
def test_a_pipe_is_read_once_and_kept(tmp_path: Path, zipped: bool) -> None:
    """Longer than what a pipe holds, so that nobody who reads the start only gets it all."""
    lines = "".join(json.dumps({**LINE, "timestamp": i}) + "\n" for i in range(20_000)).encode()
    with fed(tmp_path / "pipe", gzip.compress(lines) if zipped else lines) as pipe:
        trace = read_trace(pipe)
        assert [sum(1 for _ in trace) for _ in range(2)] == [20_000, 20_000]


def test_the_command_reads_stdin(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.jsonl", generate(50, input_len=100, block_size=16), 16)
    told = [
        subprocess.run(
            [sys.executable, "-m", "apclab", "replay", path, "--policy", "lru", "--json"],
            input=(tmp_path / "t.jsonl").read_bytes(), capture_output=True, check=True,
        ).stdout
        for path in ("/dev/stdin", str(tmp_path / "t.jsonl"))
    ]  # fmt: skip
    assert told[0] == told[1] != b""


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero"])
def test_a_device_is_no_trace(path: str) -> None:
    with pytest.raises(TraceError, match=f"{path}: not a regular file or a pipe"):
        read_trace(path)


def folder(path: Path) -> Path:
    """Sessions, and what else may lie beside them."""
    (path / "b.json").write_text(json.dumps(SESSION))
    os.mkfifo(path / "a.json")
    (path / "c.json").mkdir()
    (path / "d.json").write_text('{"requests": ')
    (path / "e.json.gz").write_bytes(gzip.compress(json.dumps(SESSION).encode())[:-9])
    (path / "f.json").write_text(json.dumps({**SESSION, "block_size": 32}))
    (path / "g.json").write_text(json.dumps(SESSION))
    return path


def test_a_folder_with_more_than_sessions(tmp_path: Path) -> None:
    trace = read_trace(folder(tmp_path), skip_bad=True)
    for _ in range(2):
        assert len(list(trace)) == 2
        assert trace.skipped == 5
    assert [problem.removeprefix(f"{tmp_path}/") for problem in trace.problems][:3] == [
        "a.json: not a regular file",
        "c.json: not a regular file",
        "d.json: not JSON: Expecting value at column 14",
    ]
    assert "e.json.gz: broken gzip data" in trace.problems[3]
    assert "block_size must be 64 in all sessions, got 32" in trace.problems[4]
    assert len({where for where, _ in trace.located()}) == 2
    with pytest.raises(TraceError, match=r"a\.json: not a regular file"):
        read_trace(tmp_path)


def test_a_folder_in_which_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(TraceError, match=r"a\.json: not a regular file"):
        read_trace(tmp_path, skip_bad=True)


@pytest.mark.parametrize("content", [b"\n", b" " * 99_999 + b"\n", b"x"])
def test_a_file_without_end_is_left(tmp_path: Path, content: bytes) -> None:
    """3 GB that are 3 MB on the disk: what nobody reads costs no time, as the limits say."""
    piece = content * (2**24 // len(content))
    path = tmp_path / "endless.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(json.dumps(LINE).encode() + b"\n")
        for _ in range(40):
            file.write(piece)
        file.write(b"\n" + json.dumps(LINE).encode() + b"\n")
    with pytest.raises(TraceError, match=r":\d+: (nothing but blank or endless|a line of over)"):
        list(read_trace(path))
    trace = read_trace(path, skip_bad=True)
    assert len(list(trace)) == 1
    assert "nothing but blank or endless lines from here on" in trace.problems[-1]


def test_blank_lines_between_lines_are_no_end(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text((json.dumps(LINE) + "\n" * 300_000) * 8)
    assert len(list(read_trace(path))) == 8


def test_a_prompt_beyond_any_context_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps({**LINE, "input_length": 2**29}))
    with pytest.raises(TraceError, match=r":1: input_length must be between 1 and 134217728"):
        list(read_trace(path))


def test_requests_that_are_sorted_are_held_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lines = [{"input_tokens": list(range(160)), "num_output_tokens": 1}] * 50
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(list(read_trace(path))) == 50
    # 450 bytes a request and 50 for each of its 10 ids
    with pytest.raises(
        TraceError, match=r"t:22: the 22 requests up to here take .* \(450 bytes each"
    ):
        list(read_trace(path, most_bytes=950 * 21))


def test_requests_of_a_run_are_held_in_bounded_memory() -> None:
    named = ((f"t:{i}", TraceRequest(0.0, 64, 0, (1, 2))) for i in range(1, 10**9))
    # 1500 bytes a request, 60 for each of its 4 blocks of 16
    with pytest.raises(ValueError, match=r"^t:11: the 11 requests up to here .* \(1500 bytes each"):
        list(trace_requests(named, 16, 32, most_bytes=10 * (1500 + 4 * 60)))


def test_a_pool_that_is_too_small_names_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    long = {**LINE, "input_length": 9000, "hash_ids": list(range(18))}
    path.write_text(f"{json.dumps(LINE)}\n{json.dumps(long)}\n")
    assert run(["simulate", "--trace", str(path), "--num-blocks", "9"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{path}:2" in error
    assert "a prompt of 9000 tokens needs 18 blocks of 512, the pool has 8" in error


@pytest.mark.parametrize(
    "line",
    [
        '"timestamp": 0, "input_length": "' + "x" * 3_000_000 + '"',
        '"timestamp": 1' + "0" * 4000,
        '"' + "x" * 3_000_000 + '": 1, "timestamp": 0',
        '"timestamp": 0, "input_length": 9, "hash_ids": ["' + "z" * 10**6 + '"]',
    ],
)  # fmt: skip
def test_an_error_never_echoes_a_long_line(tmp_path: Path, line: str) -> None:
    for name, text in (("mooncake", f"{{{line}}}"), ("azure", f"{line},1,2"), ("lengths", line)):
        path = tmp_path / "t"
        path.write_text(text + "\n")
        with pytest.raises(TraceError) as raised:
            list(read_trace(path, format=name))
        assert len(str(raised.value)) < 400


def test_remarks_are_a_line_each_where_nobody_sets_a_width(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    path = tmp_path / ("long" * 40)
    path.write_text(json.dumps(LINE) + "\n{\n")
    assert run(["replay", str(path), "--skip-bad", "--policy", "lru"]) == 0
    out, err = capsys.readouterr()
    (remark,) = [line for line in err.splitlines() if "skipped" in line]
    assert remark.endswith("in double quotes at column 1")
    assert sum(str(path) in line for line in out.splitlines()) == 1


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="sees open files in /proc")
def test_ctrl_c_while_a_trace_is_read(tmp_path: Path) -> None:
    """Two million lines: the command ends with 130 and a word, not when it has read them."""
    path = tmp_path / "t.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        lines = (json.dumps(LINE) + "\n").encode() * 10_000
        for _ in range(200):
            file.write(lines)
    command = subprocess.Popen(
        [sys.executable, "-m", "apclab", "replay", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while command.poll() is None and path not in _open_files(command.pid):
        time.sleep(0.01)
    time.sleep(0.2)  # its start is looked at first
    command.send_signal(2)
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (130, "")
    assert "stopped before the trace was read to its end" in err


def _open_files(pid: int) -> list[Path]:
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(link.readlink())
    return found


@pytest.mark.parametrize("sorts", [False, True])
def test_a_reading_ends_when_somebody_asks(tmp_path: Path, sorts: bool) -> None:
    write_trace(tmp_path / "t.jsonl", generate(50, input_len=100, block_size=16), 16)
    trace = read_trace(tmp_path / "t.jsonl")
    trace.sorts = sorts
    trace.cancelled = iter([False] * 7 + [True] * 9).__next__
    assert len(list(trace)) == 7
    trace.cancelled = lambda: True
    assert list(trace) == []


def test_a_source_names_its_path_in_every_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=f"{tmp_path / 'none'}: No such file"):
        Source(tmp_path / "none")
