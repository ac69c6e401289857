"""Opens a trace, finds out which format it has, and gives its requests one after another."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from os import PathLike
from pathlib import Path

from apclab.arguments import instance, one_of, truth, whole_number
from apclab.traces import hashed, tables, tokens, turns
from apclab.traces.detect import CUT_HERE, FORMATS, block_size_of, format_of, refuse_text
from apclab.traces.lines import Source
from apclab.traces.reading import Reading
from apclab.traces.request import TraceError, TraceRequest, parse_object

_Line = Callable[[bytes, Reading], Iterable[TraceRequest]]
_LINES: dict[str, _Line] = {
    "mooncake": hashed.mooncake,
    "bailian": hashed.bailian,
    "dynamo": hashed.dynamo,
    "sglang": tokens.token_trace,
    "llmservingsim": tokens.llmservingsim,
    "tracelab": turns.tracelab,
    "trie": turns.trie,
    "azure": tables.azure,
    "burstgpt": tables.burstgpt,
    "lengths": tables.lengths,
    "vllm-custom": tokens.vllm_custom,
    "prompts": tokens.prompts,
}
# told by session, or when a request has ended: they are sorted by arrival
_HELD = ("dynamo", "sglang", "tracelab", "trie", "kv-cache-tester")
# times of the day, or since 1970
_ABSOLUTE = ("dynamo", "sglang", "tracelab")
MOST_PROBLEMS = 20  # kept in words; the rest is counted
MOST_BYTES = 2**32
# of a request that is held, and of an id of it: the tuple, its place in the file, a Python integer
REQUEST_BYTES, ID_BYTES = 450, 50

_Found = tuple[str, TraceRequest | TraceError]


@dataclass(eq=False)
class Trace:
    """A trace on disk: iterate over it for its requests, as often as wanted.

    Most line formats are read as a stream; sessions are merged by time, so all of them are held
    while they are read.

    Attributes:
        path: file, or folder of kv-cache-tester sessions.
        format: one of FORMATS.
        block_size: tokens of a block that an id names; None where the trace has lengths only.
        files: it, or what lies in the folder: each with what it holds, or why it cannot be read.
        skip_bad: leave bad lines (or sessions) out instead of raising.
        limit: requests to read at most; None reads all.
        as_lengths: forget what prompts share.
        sorts: whether requests stand there in another order than they arrive in.
        most_bytes: memory that requests which are held may take.
        cancelled: asked at each request that is read; once true, the reading ends.
        skipped: how many were left out in the last reading.
        problems: the first of them in words.
        notes: what to know of how it was read the last time, and how often that was so.
    """

    path: Path
    format: str
    block_size: int | None
    files: list[tuple[Path, Source | TraceError]]
    skip_bad: bool = False
    limit: int | None = None
    as_lengths: bool = False
    sorts: bool = False
    most_bytes: int = MOST_BYTES
    cancelled: Callable[[], bool] | None = None
    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def cut_here(self) -> bool:
        """Whether blocks are made while it is read, so that `block_size` may be set to any."""
        return self.format in CUT_HERE

    @property
    def unit(self) -> str:
        """What lengths are counted in, "tokens", or "bytes" after text was read."""
        return "bytes" if tokens.BYTES in self.notes else "tokens"

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests by arrival.

        Raises:
            TraceError: a line is bad and `skip_bad` is off, or the trace holds no request at all.
        """
        return (request for _, request in self.located())

    def located(self) -> Iterator[tuple[str, TraceRequest]]:
        """Where each request stands, in words that no other one has, and the request."""
        reading = Reading(self.block_size or 1)
        self.skipped, self.problems, self.notes = 0, [], reading.notes
        last_s, count = 0.0, 0
        for where, found in self._found(reading):
            if isinstance(found, TraceRequest) and found.arrival_s < last_s:
                found = TraceError(
                    f"arrives at {found.arrival_s:g} s, before the request above "
                    f"({last_s:g} s); a trace must be in order of arrival"
                )
            if isinstance(found, TraceError):
                self._refuse(f"{where}: {found}")
                continue
            last_s, count = found.arrival_s, count + 1
            yield where, found._replace(hash_ids=()) if self.as_lengths else found
            if count == self.limit:
                return
        if not count and not self._is_cancelled():
            raise TraceError(f"{self.path}: no request in it ({self.skipped} bad ones skipped)")

    def remarks(self) -> list[str]:
        """What the reader of a result should know of the last reading, a line each."""
        lines = [f"{note}: {count:,}" for note, count in self.notes.items()]
        if self.skipped:
            lines.append(
                f"{self.skipped:,} bad lines or files skipped; the first: {self.problems[0]}"
            )
        return lines

    def _refuse(self, problem: str) -> None:
        if not self.skip_bad:
            raise TraceError(problem)
        self.skipped += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    def _found(self, reading: Reading) -> Iterator[_Found]:
        """Where, and the request or what is wrong with it, in order of arrival if that is ours."""
        if self.format == "kv-cache-tester":
            found = self._of_sessions(reading)
        else:
            found = self._of_lines(reading)
        found = takewhile(lambda _: not self._is_cancelled(), found)
        return self._sorted(found) if self.sorts else found

    def _is_cancelled(self) -> bool:
        return self.cancelled is not None and self.cancelled()

    def _of_lines(self, reading: Reading) -> Iterator[_Found]:
        parse = _LINES[self.format]
        for file, source in self.files:
            if isinstance(source, TraceError):
                yield str(file), source
                continue
            for number, text in source.lines():
                where = f"{file}:{number}"
                if isinstance(text, TraceError):
                    yield where, text
                    continue
                try:
                    for turn, request in enumerate(parse(text, reading)):
                        yield (f"{where} turn {turn}" if turn else where), request
                except TraceError as error:
                    yield where, error

    def _of_sessions(self, reading: Reading) -> Iterator[_Found]:
        for number, (file, source) in enumerate(self.files):
            try:
                if isinstance(source, TraceError):
                    raise source
                session = parse_object(source.whole())
                for place, request in turns.session_requests(session, number, reading):
                    yield f"{file}: {place}", request
            except TraceError as error:
                yield str(file), _bare(error, file)

    def _sorted(self, found: Iterator[_Found]) -> Iterator[_Found]:
        """The same by arrival; TraceError if they take too much memory together."""
        good: list[tuple[str, TraceRequest]] = []
        held = 0
        for where, request in found:
            if isinstance(request, TraceError):
                yield where, request
                continue
            good.append((where, request))
            held += REQUEST_BYTES + ID_BYTES * len(request.hash_ids)
            if held > self.most_bytes:
                raise TraceError(
                    f"{where}: the {len(good):,} requests up to here take {held / 1e9:.3g} GB "
                    f"({REQUEST_BYTES} bytes each and {ID_BYTES} an id) of the "
                    f"{self.most_bytes / 1e9:.3g} they may; all must be held, as they do not stand "
                    f"there by arrival: give fewer of them"
                )
        good.sort(key=lambda placed: placed[1].arrival_s)
        first_s = good[0][1].arrival_s if good and self.format in _ABSOLUTE else 0.0
        for where, request in good:
            # a double holds Unix time to less than a microsecond
            at = round(request.arrival_s - first_s, 6) if first_s else request.arrival_s
            yield where, request._replace(arrival_s=at)


def _bare(error: TraceError, file: Path) -> TraceError:
    return TraceError(str(error).removeprefix(f"{file}: "))


def read_trace(
    path: Path | str,
    *,
    format: str = "auto",  # noqa: A002 - the option's name on the command line, too
    block_size: int | None = None,
    skip_bad: bool = False,
    limit: int | None = None,
    as_lengths: bool = False,
    most_bytes: int = MOST_BYTES,
) -> Trace:
    """Open a request trace; its requests are read when it is iterated.

    Args:
        path: a file of one of FORMATS, plain or gzipped, a pipe of one (it is read here, and kept),
            or a folder of kv-cache-tester sessions.
        format: one of FORMATS; "auto" looks at the start. "prompts" must be asked for.
        block_size: tokens of a block; None takes what the trace says, or its format's usual one
            (Mooncake 512, Bailian and all that is cut into blocks here 16).
        skip_bad: leave bad lines and files out and count them, instead of raising.
        limit: requests to read at most.
        as_lengths: forget what prompts share; reads vLLM's custom dataset, too.
        most_bytes: memory that requests may take where all are held, to be sorted by arrival.

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
    files = _files(path)
    first: TraceError | None = None
    for file, source in files:
        try:
            kind, start = _kind_of(source, format, as_lengths=as_lengths)
            size = block_size or _size_of(source, kind, start)
        except TraceError as error:
            first = first or TraceError(f"{file}: {_bare(error, file)}")
            if not skip_bad:
                raise first from None
            continue
        sorts = kind in _HELD or (kind == "mooncake" and b'"session_id"' in start.splitlines()[0])
        return Trace(path, kind, size, files, skip_bad, limit, as_lengths, sorts, most_bytes)
    raise first or TraceError(
        f"{path}: a folder without .json files; name a file, or one of sessions"
    )


def _files(path: Path) -> list[tuple[Path, Source | TraceError]]:
    if not path.is_dir():
        return [(path, Source(path))]
    found: list[tuple[Path, Source | TraceError]] = []
    for file in sorted(path.iterdir()):
        if file.name.endswith((".json", ".json.gz")):
            try:
                found.append((file, Source(file, pipes=False)))
            except TraceError as error:
                found.append((file, _bare(error, file)))
    return found


def _kind_of(source: Source | TraceError, name: str, *, as_lengths: bool) -> tuple[str, bytes]:
    """The format, and the start of the file."""
    if isinstance(source, TraceError):
        raise source
    start = source.head()
    if not start:
        raise TraceError("the file is empty")
    if name == "auto":
        refuse_text(name := format_of(start), as_lengths=as_lengths)
    return name, start


def _size_of(source: Source | TraceError, name: str, start: bytes) -> int | None:
    if name == "kv-cache-tester" and isinstance(source, Source):
        return turns.session_block_size(parse_object(source.whole()))
    return block_size_of(name, start)
