"""`python -m apclab campaign`: arguments, the progress line, Ctrl-C, the table."""

import argparse
import errno
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from apclab import process, specs
from apclab.campaign.child import Missing
from apclab.campaign.context import Item, Settings
from apclab.campaign.items import ITEMS
from apclab.campaign.run import run_campaign
from apclab.campaign.table import WIDTH, screen

_CLEAR = "\r\033[K"


class _Parser(argparse.ArgumentParser):
    """Tells a bad argument in one line, as the other commands do."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see: {self.prog} --help)")


def parser(prog: str = "apclab campaign") -> argparse.ArgumentParser:
    """The arguments."""
    made = _Parser(
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
        written, 3 where nothing can be measured or the disk is full, 128 + the number of a signal
        (130 after Ctrl-C).
    """
    process.begin()
    try:
        given = parser(prog).parse_args(argv)
    except SystemExit as error:  # after --help
        return int(error.code or 0)
    except ValueError as error:
        return _fail(2, str(error))
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
        return _cannot_write(given.out, error)
    settings = Settings(backend=given.backend, model=given.model, dtype=given.dtype)
    try:
        with process.waiting() as stop:
            campaign = run_campaign(
                path, budget_s=given.time_budget, items=items, settings=settings, stop=stop,
                tell=_tell,
            )  # fmt: skip
    except Missing as error:
        return _fail(3, str(error))
    except KeyboardInterrupt:
        status = process.exit_status() or 130
        return _fail(status, f"stopped at once; what was done is in {path}")
    _tell("")
    table = screen(campaign)
    with suppress(OSError), process.replacing(path.with_suffix(".txt")) as file:
        file.write(f"{table}\n")
    try:
        print(table, flush=True)
        for record in campaign.unwritten:
            print(json.dumps(record, allow_nan=False), flush=True)
    except OSError as error:
        return process.tell_output_error(error)
    if campaign.error is not None:
        return _cannot_write(path, campaign.error, "; the records that it lacks are on stdout")
    if campaign.stopped:
        return process.exit_status() or 130
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


def _tell(text: str) -> None:
    """One line that is written over on a terminal; elsewhere a line an item."""
    if sys.stderr.isatty():
        with suppress(OSError):  # a terminal that was closed
            wide = min(WIDTH, os.get_terminal_size(sys.stderr.fileno()).columns) - 1
            print(f"{_CLEAR}{text[:wide]}", end="", file=sys.stderr, flush=True)
    elif " of " in text and text.endswith("s left)"):
        process.say(text)


def _fail(status: int, message: str) -> int:
    _tell("")
    process.say(f"apclab: {message}")
    return status


def _cannot_write(path: Path, error: OSError, remark: str = "") -> int:
    status = 3 if error.errno == errno.ENOSPC else 2
    return _fail(status, f"--out: cannot write {path}: {error.strerror or error}{remark}")
