"""Lines of a file that may be gzipped, torn or hostile, in bounded memory. Parses nothing."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from apclab.traces.request import TraceError

# a prompt of 2**30 tokens in blocks of 512 is 2**21 ids of a few characters
MOST_LINE_BYTES = 2**25
MOST_FILE_BYTES = 2**28  # of a file that must be read as a whole
_HEAD_BYTES = 2**16
_PIECE_BYTES = 2**20
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unzipped if it is gzip; TraceError if it cannot be read."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not zipped:
                yield raw
                return
            with gzip.GzipFile(fileobj=raw) as file:
                yield cast(BinaryIO, file)
    except _BROKEN as error:
        raise TraceError(f"{path}: broken gzip data: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


def lines(path: Path) -> Iterator[tuple[int, bytes | TraceError]]:
    """Number and text of each line that is not blank, or what is wrong with it.

    A line that is too long to be true is read piece by piece and dropped; broken gzip data end the
    file.

    Raises:
        TraceError: the file cannot be read.
    """
    with _opened(path) as file:
        number = 1
        try:
            while text := file.readline(MOST_LINE_BYTES):
                if len(text) == MOST_LINE_BYTES and not text.endswith(b"\n"):
                    _drop_rest(file)
                    yield number, TraceError(f"a line of over {MOST_LINE_BYTES // 2**20} MiB")
                elif text.strip():
                    yield number, text
                number += 1
        except _BROKEN as error:
            yield number, TraceError(f"broken gzip data: {error}")


def _drop_rest(file: BinaryIO) -> None:
    while piece := file.readline(_PIECE_BYTES):
        if piece.endswith(b"\n"):
            return


def whole_file(path: Path) -> bytes:
    """All bytes of a file.

    Raises:
        TraceError: it cannot be read, or is larger than MOST_FILE_BYTES.
    """
    with _opened(path) as file:
        text = file.read(MOST_FILE_BYTES + 1)
    if len(text) > MOST_FILE_BYTES:
        raise TraceError(f"{path}: over {MOST_FILE_BYTES // 2**20} MiB, too large for one session")
    return text


def head(path: Path) -> bytes:
    """The start of the first line that is not blank, b"" if there is none."""
    with _opened(path) as file:
        while text := file.readline(_HEAD_BYTES):
            if text.strip():
                return text.strip()
    return b""
