"""The process that measures, as seen from the campaign: started, asked, ended."""

import multiprocessing
from collections.abc import Sequence
from typing import Any

from apclab import process
from apclab.campaign.context import Item, Settings
from apclab.campaign.worker import work


class Missing(RuntimeError):  # noqa: N818 - a state of the machine, not a mistake
    """Nothing can be measured here; the message says why."""


class Worker:
    """The process that measures, as seen from here."""

    def __init__(self, settings: Settings, items: Sequence[Item]) -> None:
        # not fork: a CUDA context does not survive it
        context = multiprocessing.get_context("spawn")
        try:
            self.pipe, theirs = context.Pipe()
            self.stop = context.Event()
            self.process = context.Process(
                target=work, args=(theirs, self.stop, settings, items), daemon=False
            )
            with process.shielded():
                self.process.start()
        except OSError as error:
            raise Missing(
                f"cannot start the process that measures: {error}; it needs a /dev/shm that can be "
                f"written and room for one more process"
            ) from error
        theirs.close()

    def send(self, task: tuple[int, float, float, int]) -> None:
        """Give it something to do.

        Raises:
            EOFError: the process is gone.
        """
        try:
            self.pipe.send(task)
        except OSError:
            raise EOFError from None

    def receive(self, seconds: float) -> tuple[str, Any] | None:
        """The next message; None if none came in time.

        Raises:
            EOFError: the process is gone.
        """
        try:
            if not self.pipe.poll(seconds):
                return None
            what, thing = self.pipe.recv()
        except (EOFError, OSError):
            raise EOFError from None
        return what, thing

    def close(self) -> str:
        """End the process, by force if it must be; says how it ended."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(5)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"the process was killed by signal {-code}" + (
                " (out of memory?)" if code == -9 else ""
            )
        return f"the process ended with status {code}"
