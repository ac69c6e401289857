"""Lines of a file or pipe that may be gzipped, torn or hostile, in bounded memory. Parses none."""

import gzip
import os
import stat
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from apclab.traces.request import TraceError

# a prompt of 2**27 tokens in blocks of 512 is 2**18 ids of a few characters
MOST_LINE_BYTES = 2**25
MOST_FILE_BYTES = 2**28  # of a file that must be read as a whole
MOST_PIPE_BYTES = 2**33  # a copy of them lies on the disk of temporary files
# without content between two lines that have some; a blank line is as much work as 256 bytes
MOST_EMPTY_BYTES = 2**28
_LINE_WORK = 2**8
_HEAD_BYTES = 2**16
_PIECE_BYTES = 2**20
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)


class Source:
    """A file to be read as often as wanted. A pipe is read once, from its start, and kept.

    Attributes:
        path: as it was named.
    """

    def __init__(self, path: Path, *, pipes: bool = True) -> None:
        """Look what the path is.

        Args:
            path: of a regular file, or of a pipe.
            pipes: whether a pipe is welcome; one in a folder would wait for ever.

        Raises:
            TraceError: it is neither, or cannot be read.
        """
        self.path = path
        self._copy: BinaryIO | None = None
        try:
            mode = path.stat().st_mode
            if stat.S_ISREG(mode):
                return
            if not pipes or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
                raise TraceError(f"{path}: not a regular file{' or a pipe' if pipes else ''}")
            with path.open("rb", buffering=0) as pipe:
                self._copy = _copied(pipe, path)
            weakref.finalize(self, self._copy.close)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror or error}") from None

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """The bytes from the start, unzipped if they are gzip; TraceError if they are broken."""
        try:
            with self._copy_or_file() as raw:
                zipped = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                if not zipped:
                    yield raw
                    return
                with gzip.GzipFile(fileobj=raw) as file:
                    yield cast(BinaryIO, file)
        except _BROKEN as error:
            raise TraceError(f"{self.path}: broken gzip data: {error}") from None
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror or error}") from None

    def _copy_or_file(self) -> BinaryIO:
        if self._copy is None:
            return self.path.open("rb")
        # a file of its own, so that closing it keeps the copy
        file = os.fdopen(os.dup(self._copy.fileno()), "rb")
        file.seek(0)
        return file

    def lines(self) -> Iterator[tuple[int, bytes | TraceError]]:
        """Number and text of each line that is not blank, or what is wrong with it.

        A line that is too long to be true is read piece by piece and dropped; broken gzip data, and
        very much without content, end the file.

        Raises:
            TraceError: the file cannot be read.
        """
        with self._opened() as file:
            number, empty = 1, 0
            try:
                while text := file.readline(MOST_LINE_BYTES):
                    if len(text) == MOST_LINE_BYTES and not text.endswith(b"\n"):
                        empty += _drop_rest(file)
                        yield number, TraceError(f"a line of over {MOST_LINE_BYTES // 2**20} MiB")
                    elif text.strip():
                        empty = 0
                        yield number, text
                    else:
                        empty += len(text) + _LINE_WORK
                    if empty > MOST_EMPTY_BYTES:
                        yield number, TraceError("nothing but blank or endless lines from here on")
                        return
                    number += 1
            except _BROKEN as error:
                yield number, TraceError(f"broken gzip data: {error}")

    def whole(self) -> bytes:
        """All bytes; TraceError if they cannot be read, or are more than MOST_FILE_BYTES."""
        with self._opened() as file:
            text = file.read(MOST_FILE_BYTES + 1)
        if len(text) > MOST_FILE_BYTES:
            most = MOST_FILE_BYTES // 2**20
            raise TraceError(f"{self.path}: over {most} MiB, too large for one session")
        return text

    def head(self) -> bytes:
        """The start of the file from its first line on that is not blank, b"" if there is none."""
        empty = 0
        with self._opened() as file:
            while (text := file.readline(_HEAD_BYTES)) and empty <= MOST_EMPTY_BYTES:
                if text.strip():
                    return text.lstrip() + file.read(_HEAD_BYTES)
                empty += len(text) + _LINE_WORK
        return b""


def _copied(pipe: BinaryIO, path: Path) -> BinaryIO:
    copy = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - it lives as long as its source
    while piece := pipe.read(_PIECE_BYTES):
        copy.write(piece)
        if copy.tell() > MOST_PIPE_BYTES:
            raise TraceError(
                f"{path}: over {MOST_PIPE_BYTES // 2**30} GiB through a pipe; name a file instead"
            )
    copy.flush()
    return copy


def _drop_rest(file: BinaryIO) -> int:
    """Read to the line's end, or until it is surely none; the bytes that were dropped."""
    dropped = 0
    while (piece := file.readline(_PIECE_BYTES)) and dropped <= MOST_EMPTY_BYTES:
        dropped += len(piece)
        if piece.endswith(b"\n"):
            break
    return dropped
