"""Notes on disk that outlive a kernel: a new panel can say that a run before it was cut short.

Nobody tells a notebook why its kernel died, and the widgets in the page die with it. So a run
leaves a note in Jupyter's runtime folder, takes it back when it ends in whatever way, and new
panels of the same notebook read the notes of processes that are gone, until the next run begins.
An app of Voila leaves none: its visitors share a folder, and a reload is a visitor of its own.
Measures nothing.
"""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from jupyter_core.paths import jupyter_runtime_dir

from apclab import results
from apclab.results import Record


class Cut(NamedTuple):
    """A run that ended with its process."""

    text: str
    records: list[Record]  # of the points that were done


class Note:
    """The note of one process; every method does nothing where the folder cannot be written."""

    def __init__(self) -> None:
        self._file = Path(jupyter_runtime_dir(), f"apclab-run-{os.getpid()}.json")

    def begin(self, name: str, points: int) -> None:
        """Say that a run of so many points began in the panel of that name.

        What earlier runs in this notebook left is forgotten.
        """
        if is_app():
            return
        process = psutil.Process()
        with suppress(OSError):
            note = {
                "name": name,
                "points": points,
                "place": _place(),
                "host": platform.node(),
                "process": process.pid,
                "born": process.create_time(),
            }
            for file in [*_left_here(), self._file]:
                _forget(file)
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.write_text(json.dumps(note), encoding="utf-8")

    def add(self, records: Sequence[Record]) -> None:
        """Keep the records of a point until the run has ended."""
        if self._file.exists():
            with suppress(OSError):
                results.append(_records(self._file), records)

    def end(self) -> None:
        """The run ended and the process lives: there is nothing to say."""
        _forget(self._file)


def cut_before() -> Cut | None:
    """The last run in this notebook whose process is gone; None when a later one began."""
    with suppress(OSError, ValueError):
        if not is_app() and (left := _left_here()):
            return _read(left[-1])
    return None


def _left_here() -> list[Path]:
    """The notes of this notebook whose processes are gone, the newest last."""
    files = Path(jupyter_runtime_dir()).glob("apclab-run-*.json")
    return sorted(filter(_is_left, files), key=lambda file: file.stat().st_mtime)


def _is_left(file: Path) -> bool:
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        here = note["place"] == _place() and note["host"] == platform.node()
        return bool(here and not _lives(note["process"], note["born"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False  # half written, or not one of ours


def _read(file: Path) -> Cut:
    note = json.loads(file.read_text(encoding="utf-8"))
    rest = _records(file)
    records, _ = results.load(rest) if rest.exists() else ([], [])
    text = (
        f"the kernel before this one ended (it died or was restarted) while {note.get('name')} was "
        f"measuring {note.get('points')} points"
    )
    kept = f'; "overlay the run before" shows its {len(records)} records' if records else ""
    return Cut(text + (kept or ", before the first was done"), records)


def _records(file: Path) -> Path:
    """Where the records of a note's run are."""
    return file.with_suffix(".jsonl")


def _forget(file: Path) -> None:
    for part in (file, _records(file)):
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _lives(process: int, born: float) -> bool:
    """Whether the process is still there, and not another one with the same number."""
    try:
        there = psutil.Process(process)
        # the system's clock may be set in between
        same = abs(float(there.create_time()) - born) < 2
        return same and bool(there.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def is_app() -> bool:
    """Whether Voila runs this kernel."""
    return os.environ.get("SERVER_SOFTWARE", "").startswith("voila")


def _place() -> str:
    """The notebook as far as its kernel knows it, else the working folder."""
    return os.environ.get("JPY_SESSION_NAME") or str(Path.cwd())
