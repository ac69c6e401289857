"""Files of records: appending beside others and through crashes, loading whatever is there."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apclab.results import append, load
from tests.sample_records import sample_record

ROOT = Path(__file__).resolve().parent.parent


def line(**changes: Any) -> bytes:
    return json.dumps(sample_record(**changes)).encode()


def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """A real second process that can import apclab and the sample record."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    prelude = (
        "import os, signal, sys\n"
        "from apclab.results import append\n"
        "from tests.sample_records import sample_record\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", prelude + script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_nothing_is_written_when_one_record_is_not_valid(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(ValueError, match="record 2: case must be one of"):
        append(path, [sample_record(), sample_record(case="none")])
    with pytest.raises(ValueError, match="record 1 must fit 4194304 bytes, got"):
        append(path, [sample_record(notes=["x" * 5_000_000])])
    assert not path.exists()


def test_two_processes_append_at_once(tmp_path: Path) -> None:
    path = tmp_path / "both.jsonl"
    script = (
        "path, name = sys.argv[1:]\n"
        "for number in range(40):\n"
        "    append(path, [sample_record(notes=[name, str(number), 'x' * 9000])] * 2)\n"
    )
    writers = [start(script, path, name) for name in ("a", "b")]
    for writer in writers:
        output, _ = writer.communicate(timeout=120)
        assert writer.returncode == 0, output
    records, problems = load(path)
    assert problems == []
    for name in ("a", "b"):
        numbers = [int(r["notes"][1]) for r in records if r["notes"][0] == name]
        assert numbers == [number for number in range(40) for _ in range(2)]


def test_a_writer_waits_for_the_line_of_another_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    half = len(line()) // 2
    with path.open("wb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line()[:half])
        writer = start("append(sys.argv[1], [sample_record(case='shared')])", path)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(timeout=0.8)
        file.write(line()[half:] + b"\n")
    output, _ = writer.communicate(timeout=60)
    assert writer.returncode == 0, output
    assert load(path) == ([sample_record(), sample_record(case="shared")], [])


def test_a_writer_killed_in_the_middle_of_a_line_loses_only_that_line(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    script = (
        "append(sys.argv[1], [sample_record()] * 2)\n"
        "write = os.write\n"
        "def stop_half_way(handle, data):\n"
        "    line = bytes(data).index(b'\\n') + 1\n"
        "    write(handle, data[: line + line // 2])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.write = stop_half_way\n"
        "append(sys.argv[1], [sample_record(case='shared')] * 3)\n"
    )
    writer = start(script, path)
    writer.communicate(timeout=60)
    assert writer.returncode == -signal.SIGKILL

    # two lines of the first call, the whole one of the second; its half line is told
    records, problems = load(path)
    assert [record["case"] for record in records] == ["private", "private", "shared"]
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:4: torn last line skipped: not a JSON object")

    # the dead writer's lock is gone, and the next line starts afresh
    append(path, [sample_record(case="cascade")])
    records, problems = load(path)
    assert [record["case"] for record in records] == ["private", "private", "shared", "cascade"]
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:4: skipped: not a JSON object")


def test_writers_killed_at_any_moment_lose_at_most_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "busy.jsonl"
    script = "while True: append(sys.argv[1], [sample_record(notes=['x' * 200_000])])\n"
    kept, kills = 0, 3
    for _ in range(kills):
        writers = [start(script, path), start(script, path)]
        deadline = time.monotonic() + 60
        grown = (path.stat().st_size if path.exists() else 0) + 1_000_000
        while not (path.exists() and path.stat().st_size > grown):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for writer in writers:
            writer.kill()
            writer.communicate()
        records, problems = load(path)
        assert len(problems) <= 2 * kills
        assert len(records) >= kept + 3
        kept = len(records)
    append(path, [sample_record()])
    assert len(load(path)[0]) == kept + 1


def test_a_full_disk_names_the_file_and_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    append(path, [sample_record()])
    size = path.stat().st_size
    # a limit on file size stops a write half-way as a full disk does
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            append(path, [sample_record()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(path)
    assert path.stat().st_size == size
    append(path, [sample_record(case="shared")])
    records, problems = load(path)
    assert ([record["case"] for record in records], problems) == (["private", "shared"], [])


def test_a_path_that_cannot_be_written_passes_its_error_through(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").symlink_to("/dev/full")
    for name, kind in (
        ("file/a.jsonl", OSError),
        ("", IsADirectoryError),
        ("full", OSError),
        ("x" * 300, OSError),
    ):
        with pytest.raises(kind) as caught:
            append(tmp_path / name, [sample_record()])
        assert caught.value.filename == str(tmp_path / name)
        assert caught.value.strerror


def test_writing_records_needs_no_pandas() -> None:
    script = (
        "append(sys.argv[1], [sample_record()])\n"
        "from apclab.results import load, finding\n"
        "print(finding(load(sys.argv[1])[0]))\n"
        "heavy = {'pandas', 'numpy'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    process = start(script, os.devnull)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert output == "nothing was measured yet.\n"


# --- hostile content ---


HOSTILE: dict[str, tuple[bytes, str]] = {
    "truncated": (line()[:500], "torn last line skipped: not a JSON object"),
    "words": (b"hello\n", "skipped: not a JSON object (Expecting value at column 1)"),
    "a list": (b"[1, 2]\n", "skipped: record must be an object, got list"),
    "a number": (b"1\n", "skipped: record must be an object, got int"),
    "old schema": (line(schema=0) + b"\n", "skipped: schema must be 1, got 0"),
    "NaN": (line(seq_len=float("nan")) + b"\n", "skipped: NaN is not a number of JSON"),
    "infinite": (line().replace(b"310", b"1e999") + b"\n", "skipped: seq_len must be a finite"),
    "long number": (b"9" * 100_000 + b"\n", "skipped: "),
    "long line": (b'"' + b"x" * 10_000_000 + b'"\n', "skipped: longer than 4194304 bytes"),
    "long last line": (b"\0" * 10_000_000, "skipped: longer than 4194304 bytes"),
    "binary": (bytes(range(128, 256)) + b"\n", "skipped: not UTF-8 text"),
    "deep": (b"[" * 200_000 + b"\n", "skipped: nested too deeply"),
    "deep inside": (
        line().replace(b'"notes": []', b'"notes": ' + b"[" * 500 + b"]" * 500) + b"\n",
        "skipped: notes must be a list of texts",
    ),
    "long key": (
        b'{"' + b"k" * 1_000_000 + b'": 1, "schema": 1}\n',
        "skipped: record has a field that schema 1 does not know, in 'kkkk",
    ),
    "surrogate": (b'{"schema": "\\ud800"}\n', "skipped: schema must be 1, got"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_is_told_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    content, problem = HOSTILE[name]
    path = tmp_path / "hostile.jsonl"
    path.write_bytes(line() + b"\r\n\n" + content)
    if content.endswith(b"\n"):
        path.write_bytes(path.read_bytes() + line(case="shared") + b"\n")
    records, problems = load(path)
    cases = ["private", "shared"] if content.endswith(b"\n") else ["private"]
    assert [record["case"] for record in records] == cases
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:3: {problem}"), problems[0][:200]
    assert len(problems[0]) < 400


def test_an_empty_file_and_an_empty_folder_hold_nothing_and_no_problem(tmp_path: Path) -> None:
    assert load(tmp_path) == ([], [])
    (tmp_path / "empty.jsonl").touch()
    assert load(tmp_path) == ([], [])


def test_a_file_with_its_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "notepad.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line() + b"\n")
    assert load(path) == ([sample_record()], [])


def test_a_whole_last_line_without_its_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line())
    append(path, [sample_record(case="shared")])
    assert load(path) == ([sample_record(), sample_record(case="shared")], [])


def test_many_problems_of_a_file_are_counted_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "noise.jsonl"
    path.write_bytes(b"x\n" * 1000)
    _, problems = load(path)
    assert len(problems) == 21
    assert problems[-1] == f"{path}: 980 more lines skipped"


def test_a_folder_is_read_file_by_file_and_what_is_no_file_is_told(tmp_path: Path) -> None:
    append(tmp_path / "b" / "1.jsonl", [sample_record(case="shared")])
    append(tmp_path / "a" / "2.jsonl", [sample_record()])
    (tmp_path / "a" / "notes.txt").write_text("not ours")
    (tmp_path / "a" / "dangling.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a" / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe.jsonl")
    records, problems = load(tmp_path)
    assert [record["case"] for record in records] == ["private", "shared"]
    assert problems == [
        f"{tmp_path}/a/dangling.jsonl: no such file or folder",
        f"{tmp_path}/a/pipe.jsonl: not a regular file, skipped",
    ]
    assert load(tmp_path / "typo") == ([], [f"{tmp_path}/typo: no such file or folder"])


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that fails to read")
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").symlink_to("/proc/self/mem")
    append(tmp_path / "good.jsonl", [sample_record()])
    records, problems = load(tmp_path)
    assert len(records) == 1
    assert problems == [f"{tmp_path}/bad.jsonl: cannot be read: Input/output error"]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_no_content_raises(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, after_record: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_bytes((line() + b"\n") * after_record + content)
    records, problems = load(path)
    assert len(records) == after_record
    assert bool(problems) == bool(content.strip())
