"""`python -m apclab campaign`: arguments, the progress line, Ctrl-C, the table."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from apclab import specs
from apclab.campaign.context import Item, Settings
from apclab.campaign.items import ITEMS
from apclab.campaign.run import Missing, run_campaign
from apclab.campaign.table import WIDTH, screen

_CLEAR = "\r\033[K"


class Stop:
    """A wish to stop: the first Ctrl-C lets the item come to an end, the second does not."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Whether somebody asked."""
        return self.asked

    def interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """The signal's handler."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def parser(prog: str = "apclab campaign") -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog=prog,
        description="Measure everything worth measuring on this machine, within a time budget.",
        epilog=f"items, in order: {', '.join(item.name for item in ITEMS)}",
    )
    made.add_argument("--out", type=Path, required=True, metavar="DIR",
                      help="folder of the records and the table, made when missing")  # fmt: skip
    made.add_argument("--time-budget", type=float, default=480.0, metavar="SECONDS",
                      help="for everything; default 480")  # fmt: skip
    made.add_argument("--backend", default="auto", choices=("auto", "cpu", "triton"))
    made.add_argument("--model", default="llama-13b", help="whose attention shape")
    made.add_argument("--dtype", default="bfloat16", choices=tuple(specs.DTYPE_BYTES))
    made.add_argument("--items", metavar="A,B", help="only these items")
    return made


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m apclab campaign") -> int:
    """Run a campaign and print its table.

    Args:
        argv: the arguments behind the word `campaign`.
        prog: how the command was called.

    Returns:
        0; 1 where a kernel gave a wrong result, 2 for bad arguments or a folder that cannot be
        written, 3 where nothing can be measured, 130 after Ctrl-C.
    """
    try:
        given = parser(prog).parse_args(argv)
    except SystemExit as error:  # argparse has said why
        return int(error.code or 0)
    try:
        if not 0 < given.time_budget < float("inf"):
            raise ValueError(
                f"--time-budget must be a number of seconds > 0, got {given.time_budget:g}"
            )
        specs.model(given.model)
        items = _chosen(given.items)
        path = _file(given.out)
    except ValueError as error:
        return _fail(2, str(error))
    except OSError as error:
        return _fail(2, f"--out: cannot write {given.out}: {error.strerror or error}")
    settings = Settings(backend=given.backend, model=given.model, dtype=given.dtype)
    stop = Stop()
    try:
        with _interrupts(stop):
            campaign = run_campaign(
                path, budget_s=given.time_budget, items=items, settings=settings, stop=stop,
                tell=_tell,
            )  # fmt: skip
    except Missing as error:
        return _fail(3, str(error))
    except OSError as error:
        return _fail(2, f"--out: cannot write {path}: {error.strerror or error}")
    except KeyboardInterrupt:
        return _fail(130, f"stopped at once; what was done is in {path}")
    _tell("")
    table = screen(campaign)
    print(table, flush=True)
    with suppress(OSError):  # it is on the screen
        path.with_suffix(".txt").write_text(f"{table}\n", encoding="utf-8")
    if campaign.stopped:
        return 130
    return 1 if campaign.wrong else 0


def _chosen(names: str | None) -> list[Item]:
    known = {item.name: item for item in ITEMS}
    wanted = list(known) if names is None else [name.strip() for name in names.split(",")]
    if not set(wanted) <= set(known):
        raise ValueError(f"--items must be some of {', '.join(known)}; got {names!r}")
    return [item for item in ITEMS if item.name in wanted]


def _file(folder: Path) -> Path:
    """A file that can be written, named by the time.

    Raises:
        OSError: it cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = folder / f"campaign-{now}.jsonl"
    path.open("a").close()
    return path


@contextmanager
def _interrupts(stop: Stop) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, stop.interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(text: str) -> None:
    """One line that is written over on a terminal; elsewhere a line an item."""
    if sys.stderr.isatty():
        wide = min(WIDTH, os.get_terminal_size(sys.stderr.fileno()).columns) - 1
        print(f"{_CLEAR}{text[:wide]}", end="", file=sys.stderr, flush=True)
    elif " of " in text and text.endswith("s left)"):
        print(text, file=sys.stderr, flush=True)


def _fail(status: int, message: str) -> int:
    _tell("")
    print(f"apclab: {message}", file=sys.stderr)
    return status
