"""The stop button of a notebook: it ends a run in the background as it ends a cell.

An interrupt reaches the main thread only, and ipykernel ignores it between two cells.
"""

from asyncio import CancelledError
from typing import Any

from apclab import jobs


def follow_stop_button() -> None:
    """Let interrupts of this kernel cancel what runs in the background, from now on."""
    from IPython import get_ipython

    shell: Any = get_ipython()
    if (kernel := getattr(shell, "kernel", None)) is None:
        return
    # what ipykernel puts back when it has handled the message that it is at
    kernel.saved_sigint_handler = _on_interrupt
    callbacks = shell.events.callbacks["post_run_cell"]
    if _after_cell not in callbacks:
        shell.events.register("post_run_cell", _after_cell)


def _on_interrupt(_signal: int, _frame: object) -> None:
    jobs.cancel()


def _after_cell(result: Any) -> None:
    """A cell that was interrupted: the user wanted the kernel to be quiet."""
    if isinstance(getattr(result, "error_in_exec", None), KeyboardInterrupt | CancelledError):
        jobs.cancel()
