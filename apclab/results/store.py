"""Files of records, one JSON object a line: append, load, where they go. Knows no measurement."""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from apclab import data_dir
from apclab.results.field import Record
from apclab.results.kinds import kind_of, validate

if sys.platform != "win32":
    import fcntl

# no record comes near it; a longer line is not one of ours and is never held in memory
_LONGEST_LINE = 4 * 2**20
# problems of one file told one by one; the rest is counted
_TOLD = 20

Check = Callable[[Record], None]  # raises ValueError, naming the field, for what is no record


def append(
    path: str | os.PathLike[str], records: Iterable[Record], *, check: Check = validate
) -> None:
    """Add records to the end of a file, all or none, safe against crashes and other writers.

    Whole lines go out in one write under a file lock, then to the disk. A line that a killed
    writer left without its end is ended first, so that it spoils nothing but itself. If the
    write fails half-way (a full disk), what it left is taken back.

    Args:
        path: file, made with its folders when missing.
        records: checked before anything is written.
        check: what a record must pass; a sweep has records of its own.

    Raises:
        ValueError: a record is not valid; names its position and field.
        OSError: the file cannot be written; its filename is set.
    """
    payload = b"".join(
        _line(number, record, check) for number, record in enumerate(records, start=1)
    )
    if not payload:
        return
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        handle = os.open(path, flags, 0o666)
        try:
            _write(handle, payload, locked=_lock(handle))
        finally:
            os.close(handle)  # also lets go of the lock
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _line(number: int, record: Record, check: Check) -> bytes:
    try:
        check(record)
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except ValueError as error:
        raise ValueError(f"record {number}: {error}") from error
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"record {number} must fit {_LONGEST_LINE} bytes, got {len(line)}")
    return line


def _lock(handle: int) -> bool:
    """Wait for the file's lock; False where the platform or the file system has none."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        # some network file systems have no locks: one O_APPEND write is still better than none
        return False
    return True


def _write(handle: int, payload: bytes, *, locked: bool) -> None:
    size = os.fstat(handle).st_size
    if size:
        os.lseek(handle, -1, os.SEEK_END)
        if os.read(handle, 1) != b"\n":
            payload = b"\n" + payload
    try:
        rest = memoryview(payload)
        while rest:
            rest = rest[os.write(handle, rest) :]
        if stat.S_ISREG(os.fstat(handle).st_mode):
            os.fsync(handle)
    except OSError:
        # without the lock the bytes past `size` may be another writer's
        if locked:
            with suppress(OSError):
                os.ftruncate(handle, size)
        raise


def load(
    path: str | os.PathLike[str], *, kind: str = "decode", check: Check = validate
) -> tuple[list[Record], list[str]]:
    """Read every valid record of one kind of a file, or of all *.jsonl files under a folder.

    Args:
        path: file or folder.
        kind: "decode", "calibration", "peer" or "campaign"; records of other kinds are passed over.
        check: as in `append`; what another check lets through has no kind.

    Returns:
        The records in the order of the file (files by name), and the problems in words, each
        with file and line. Content never raises: what is no record is skipped and named.
    """
    records: list[Record] = []
    problems: list[str] = []
    for file in _files(Path(path), problems):
        found = _read(file, records, check)
        problems += found[:_TOLD]
        if len(found) > _TOLD:
            problems.append(f"{file}: {len(found) - _TOLD} more lines skipped")
    if check is validate:
        records = [record for record in records if kind_of(record) == kind]
    return records, problems


def _read(file: Path, records: list[Record], check: Check) -> list[str]:
    """Add the valid records of one file to `records`; return the problems."""
    if not file.is_file():
        why = "not a regular file, skipped" if file.exists() else "no such file or folder"
        return [f"{file}: {why}"]
    problems = []
    try:
        for number, raw in _lines(file):
            try:
                if text := raw.strip():
                    records.append(_parse(text, check))
            except ValueError as error:
                # every whole line ends with a line end: a writer was stopped before it
                what = "skipped" if raw.endswith(b"\n") else "torn last line skipped"
                problems.append(f"{file}:{number}: {what}: {error}")
    except OSError as error:
        problems.append(f"{file}: cannot be read: {error.strerror}")
    return problems


def _files(path: Path, problems: list[str]) -> list[Path]:
    if not path.is_dir():
        return [path]

    def unreadable(error: OSError) -> None:
        problems.append(f"{error.filename}: {error.strerror}")

    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(path, onerror=unreadable)
        for name in names
        if name.endswith(".jsonl")
    )


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their number; a line that is too long is cut, but stays too long."""
    with file.open("rb") as stream:
        number = 0
        while raw := stream.readline(_LONGEST_LINE + 1):
            number += 1
            rest = raw
            while len(rest) > _LONGEST_LINE and not rest.endswith(b"\n"):
                rest = stream.readline(_LONGEST_LINE + 1)
            yield number, raw if rest is raw else raw + b"\n"


def _parse(text: bytes, check: Check) -> Record:
    if len(text) > _LONGEST_LINE:
        raise ValueError(f"longer than {_LONGEST_LINE} bytes")
    try:
        record: Record = json.loads(text.decode("utf-8-sig"), parse_constant=_refuse)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not a JSON object ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check(record)
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


def destination(record: Record) -> Path:
    """Where "save" puts a record: one file a device, day and commit.

    Returns:
        `data/measured/<device>/<UTC date>-<commit7>.jsonl` of the checkout, or the same under
        `apclab-results` in the working folder where there is no checkout. Without a commit the
        package version takes its place.
    """
    device = re.sub(r"[^a-z0-9]+", "-", record["device"]["name"].lower()).strip("-")[:60]
    version = record["commit"][:7] if record["commit"] else f"v{record['apclab']}"
    day = datetime.fromisoformat(record["created"]).date().isoformat()
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{day}-{version}.jsonl")
    return measured_dir() / (device or "unnamed") / name


def measured_dir() -> Path:
    """Folder of measurements: the checkout's `data/measured`, else `./apclab-results`."""
    data = data_dir()
    in_checkout = data.name == "data"  # the copy inside a wheel is named _data
    return data / "measured" if in_checkout else Path("apclab-results")
