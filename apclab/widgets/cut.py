"""Notes on disk that outlive a kernel: a new panel can say that a run before it was cut short.

Nobody tells a notebook why its kernel died, and the widgets in the page die with it. So a run
leaves a note in Jupyter's runtime folder, takes it back when it ends in whatever way, and a new
panel of the same notebook reads the notes of processes that are gone. Measures nothing.
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

GONE = (
    "the kernel that this panel lived in is gone: it was restarted, or it died. Run the cell "
    "again; when that cut a run short, the new panel says so."
)
# hidden beside a panel that lives; JupyterLab itself says no more than "model not found"
_HINT = (
    "<style>.jp-OutputArea:has(.apclab-lab) .apclab-gone { display: none; }</style>"
    f'<div class="apclab-gone">No panel here? Then {GONE}</div>'
)


def hint_in_page() -> None:
    """Put a line under a panel that is seen once the panel cannot be shown any more."""
    from IPython import get_ipython
    from IPython.display import HTML, display

    if get_ipython() is not None:
        display(HTML(_HINT))  # type: ignore[no-untyped-call]  # IPython has no types here


class Cut(NamedTuple):
    """A run that ended with its process."""

    text: str
    records: list[Record]  # of the points that were done


class Note:
    """The note of one process; every method does nothing where the folder cannot be written."""

    def __init__(self) -> None:
        self._file = Path(jupyter_runtime_dir(), f"apclab-run-{os.getpid()}.json")

    def begin(self, name: str, points: int) -> None:
        """Say that a run of so many points began in the panel of that name."""
        process = psutil.Process()
        note = {
            "name": name,
            "points": points,
            "place": _place(),
            "host": platform.node(),
            "process": process.pid,
            "born": process.create_time(),
        }
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._records().unlink(missing_ok=True)
            self._file.write_text(json.dumps(note), encoding="utf-8")

    def add(self, records: Sequence[Record]) -> None:
        """Keep the records of a point until the run has ended."""
        if self._file.exists():
            with suppress(OSError):
                results.append(self._records(), records)

    def end(self) -> None:
        """The run ended and the process lives: there is nothing to say."""
        for file in (self._file, self._records()):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def _records(self) -> Path:
        return self._file.with_suffix(".jsonl")


def cut_before() -> Cut | None:
    """The last run in this notebook whose process is gone; it is told once, then forgotten."""
    found = None
    with suppress(OSError):
        for file in sorted(Path(jupyter_runtime_dir()).glob("apclab-run-*.json")):
            found = _read(file) or found
    return found


def _read(file: Path) -> Cut | None:
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        here = note["place"] == _place() and note["host"] == platform.node()
        if not here or _lives(note["process"], note["born"]):
            return None
        name, points = str(note["name"]), int(note["points"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # half written, or not one of ours
    rest = file.with_suffix(".jsonl")
    records, _ = results.load(rest) if rest.exists() else ([], [])
    for done in (file, rest):
        with suppress(OSError):
            done.unlink(missing_ok=True)
    text = (
        f"the kernel before this one ended (it died or was restarted) while {name} was measuring "
        f"{points} points"
    )
    kept = f'; "overlay the run before" shows its {len(records)} records' if records else ""
    return Cut(text + (kept or ", before the first was done"), records)


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


def _place() -> str:
    """The notebook as far as its kernel knows it, else the working folder."""
    return os.environ.get("JPY_SESSION_NAME") or str(Path.cwd())
