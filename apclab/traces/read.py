"""Opens a trace, finds out which format it has, and gives its requests one after another."""

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from pathlib import Path

from apclab.arguments import instance, one_of, truth, whole_number
from apclab.traces import formats
from apclab.traces.lines import head, lines, whole_file
from apclab.traces.request import TraceError, TraceRequest, parse_object

FORMATS = ("mooncake", "bailian", "azure", "kv-cache-tester", "lengths")
_BLOCK_SIZES = {"mooncake": 512, "bailian": 16}
MOST_PROBLEMS = 20  # kept in words; the rest is counted


@dataclass(eq=False)
class Trace:
    """A trace on disk: iterate over it for its requests, as often as wanted.

    Line formats are read as a stream; sessions of kv-cache-tester are merged by time, so all of
    them are held while they are read.

    Attributes:
        path: file, or folder of kv-cache-tester sessions.
        format: one of FORMATS.
        block_size: tokens of a block that an id names; None where the trace has lengths only.
        skip_bad: leave bad lines (or sessions) out instead of raising.
        limit: requests to read at most; None reads all.
        skipped: how many were left out in the last reading.
        problems: the first of them in words.
    """

    path: Path
    format: str
    block_size: int | None
    skip_bad: bool = False
    limit: int | None = None
    skipped: int = 0
    problems: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests by arrival.

        Raises:
            TraceError: a line is bad and `skip_bad` is off, or the trace holds no request at all.
        """
        self.skipped, self.problems = 0, []
        last_s, count = 0.0, 0
        for where, found in self._found():
            if self.limit is not None and count >= self.limit:
                return
            if isinstance(found, TraceRequest) and found.arrival_s < last_s:
                found = TraceError(
                    f"arrives at {found.arrival_s:g} s, before the request above "
                    f"({last_s:g} s); a trace must be in order of arrival"
                )
            if isinstance(found, TraceError):
                self._refuse(f"{where}: {found}")
                continue
            last_s, count = found.arrival_s, count + 1
            yield found
        if not count:
            raise TraceError(f"{self.path}: no request in it ({self.skipped} bad ones skipped)")

    def _refuse(self, problem: str) -> None:
        if not self.skip_bad:
            raise TraceError(problem)
        self.skipped += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    def _found(self) -> Iterator[tuple[str, TraceRequest | TraceError]]:
        """Where, and the request or what is wrong with it."""
        if self.format == "kv-cache-tester":
            yield from _sessions(self.path, self.block_size)
            return
        first: datetime | None = None
        for number, text in lines(self.path):
            where = f"{self.path}:{number}"
            if isinstance(text, TraceError):
                yield where, text
                continue
            if self.format == "azure" and text.strip() == formats.AZURE_HEADER:
                continue
            try:
                match self.format:
                    case "mooncake":
                        request = formats.mooncake(text, self.block_size or 1)
                    case "bailian":
                        request = formats.bailian(text, self.block_size or 1)
                    case "lengths":
                        request = formats.lengths(text)
                    case _:
                        request, time = formats.azure(text, first)
                        first = first or time
                yield where, request
            except TraceError as error:
                yield where, error


def _sessions(
    path: Path, block_size: int | None
) -> Iterator[tuple[str, TraceRequest | TraceError]]:
    bad: list[tuple[str, TraceError]] = []
    sessions = []
    for number, file in enumerate(_session_files(path)):
        try:
            session = parse_object(whole_file(file))
            if (said := formats.session_block_size(session)) != block_size:
                raise TraceError(f"block_size must be {block_size} in all sessions, got {said}")
            requests = list(formats.session_requests(session, number))
        except TraceError as error:
            text = str(error).removeprefix(f"{file}: ")
            bad.append((str(file), TraceError(text)))
            continue
        sessions.append([(str(file), request) for request in requests])
    yield from bad
    yield from heapq.merge(*sessions, key=lambda found: found[1].arrival_s)


def _session_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.name.endswith((".json", ".json.gz")))


def read_trace(
    path: Path | str,
    *,
    format: str = "auto",  # noqa: A002 - the option's name on the command line, too
    block_size: int | None = None,
    skip_bad: bool = False,
    limit: int | None = None,
) -> Trace:
    """Open a request trace; its requests are read when it is iterated.

    Args:
        path: a file of one of FORMATS, plain or gzipped, or a folder of kv-cache-tester sessions.
        format: one of FORMATS; "auto" looks at the first line.
        block_size: tokens of a block; None takes what the trace says, or its format's usual one
            (Mooncake 512, Bailian 16).
        skip_bad: leave bad lines out and count them, instead of raising.
        limit: requests to read at most.

    Raises:
        TraceError: the file cannot be read, or is of no known format.
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """
    path = Path(instance("path", path, str | PathLike, "a path"))
    one_of("format", format, ("auto", *FORMATS))
    truth("skip_bad", skip_bad)
    for name, value in (("block_size", block_size), ("limit", limit)):
        if value is not None:
            whole_number(name, value, 1)
    first = _first_session(path) if path.is_dir() else path
    start = head(first)
    if not start:
        raise TraceError(f"{first}: the file is empty")
    if format == "auto":
        format = _format_of(first, start)  # noqa: A001
    if block_size is None:
        block_size = _block_size_of(first, format, start)
    return Trace(path, format, block_size, skip_bad, limit)


def _first_session(folder: Path) -> Path:
    files = _session_files(folder)
    if not files:
        raise TraceError(f"{folder}: a folder without .json files; name a file, or one of sessions")
    return files[0]


def _format_of(path: Path, start: bytes) -> str:
    if start.startswith(b"{"):
        if b'"input_length"' in start or b'"timestamp"' in start:
            return "bailian" if b'"chat_id"' in start or b'"turn"' in start else "mooncake"
        if b'"requests"' in start or start == b"{" or b'"hash_id_scope"' in start:
            return "kv-cache-tester"
    elif start.startswith(formats.AZURE_HEADER):
        return "azure"
    elif start.replace(b",", b"").replace(b"-", b"").isdigit() and start.count(b",") == 1:
        return "lengths"
    raise TraceError(
        f"{path}:1: neither {', '.join(FORMATS)}; the file starts with {start[:60]!r} "
        f"(name its format if that is a broken line)"
    )


def _block_size_of(path: Path, format: str, start: bytes) -> int | None:  # noqa: A002
    if format == "kv-cache-tester":
        try:
            return formats.session_block_size(parse_object(whole_file(path)))
        except TraceError as error:
            raise TraceError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    if format == "mooncake" and (said := re.search(rb'"block_size"\s*:\s*([1-9]\d{0,8})\b', start)):
        return int(said[1])
    return _BLOCK_SIZES.get(format)
