"""The command `apclab`: arguments in; tables, JSON Lines and figures out. No arithmetic, no clock.

Exit status: 0 done, 1 a bug of ours, 2 bad arguments or input, 3 the machine lacks something,
128 + its number for a signal (130 Ctrl-C), 141 where the reader of stdout has gone.
"""

import errno
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from apclab import __version__, process
from apclab.cli import calibrate, campaign, decode, doctor, lab, replay, simulate
from apclab.cli.terminal import CommandError

# what a write to stdout fails with: no reader, a full disk, closed, its terminal gone
_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EBADF, errno.EIO)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(decode.decode)
app.command()(simulate.simulate)
app.command()(calibrate.calibrate)
# argparse has the options, so that it works where typer is missing
app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)(campaign.campaign)
app.command()(lab.lab)
app.command()(doctor.doctor)
app.command()(replay.replay)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"apclab {__version__}")
        raise typer.Exit


@app.callback()
def apclab(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Why, and by how much, does decode get faster when prefix caching is on? Measure it."""


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit status; a bad input costs one line, no traceback.

    Args:
        argv: the arguments without the program's name.
    """
    process.begin()
    # --debug is taken anywhere, also after the command's name
    arguments = _give_save_a_value([argument for argument in argv if argument != "--debug"])
    debug = len(arguments) < len(argv)
    try:
        status = app(args=arguments or ["--help"], prog_name="apclab", standalone_mode=False)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if debug and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        status, message = _explain(error, arguments)
        if message:
            process.say(f"apclab: {message}")
    if stopped := process.exit_status():
        process.say(f"apclab: stopped by {process.reason_to_stop()}")
    return stopped or status or 0


def _give_save_a_value(argv: list[str]) -> list[str]:
    """Turn `--save` without a path into `--save=`; an option always takes a value."""
    following = [*argv[1:], "-"]
    return [
        "--save=" if argument == "--save" and after.startswith("-") else argument
        for argument, after in zip(argv, following, strict=False)
    ]


def _explain(error: BaseException, arguments: list[str]) -> tuple[int, str]:
    """Exit status and one line for an error that reached the top."""
    if hasattr(error, "format_message"):  # an argument that typer refused
        message = error.format_message().rstrip(".")
        values = _values_of(arguments, error)
        if values and not any(f"{value!r}" in message for value in values):
            message += f", got {', '.join(map(repr, values))}"
        command = getattr(getattr(error, "ctx", None), "command_path", "apclab")
        return 2, f"{message} (see: {command} --help)"
    match error:
        case CommandError():
            return error.status, str(error)
        case KeyboardInterrupt() | typer.Abort():
            return 130, ""
        case SystemExit():  # typer and rich hide the reader who has gone behind it
            gone = isinstance(error.__context__, OSError)
            return (process.tell_output_error(BrokenPipeError()) if gone else 1), ""
        case OSError() if error.filename is None and error.errno in _OF_OUTPUT:
            return process.tell_output_error(error), ""
        case MemoryError():
            return 3, str(error) or "out of memory"
        case ModuleNotFoundError() if not (error.name or "apclab").startswith("apclab"):
            return 3, f"{error}; to get it: {sys.executable} -m pip install {error.name}"
        case OSError():
            return (3 if error.errno == errno.ENOSPC else 2), str(error)
        case ValueError():
            return 2, str(error)
    hint = "a bug; --debug shows the traceback, which belongs into a report"
    return 1, f"{type(error).__name__}: {error} ({hint})"


def _values_of(arguments: list[str], error: BaseException) -> list[str]:
    """What was given to the option that typer refused: all of it, where each of it counts."""
    param = getattr(error, "param", None)
    options = getattr(param, "opts", [])
    split = (argument.partition("=") for argument in arguments)
    values = [
        value if equals else after
        for (name, equals, value), after in zip(split, [*arguments[1:], ""], strict=True)
        if name in options
    ]
    return values if getattr(param, "multiple", False) else values[-1:]
