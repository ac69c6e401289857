"""Machines that are not here: caches, cores and a memory limit, as the package would see them.

`python -m tests.made_up LLC_MB CORES LIMIT_MB decode ...` runs a command of apclab on one and says
at the end how much memory each process had at most.
"""

import atexit
import importlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

_ASKED = "TESTS_MADE_UP_MACHINE"


class Machine(NamedTuple):
    """What a machine has."""

    llc_mb: int = 32
    cores: int = 2
    limit_mb: int = 2000

    def __str__(self) -> str:
        """For the name of a test."""
        return f"{self.llc_mb} MB, {self.cores} cores, limit {self.limit_mb} MB"


MACHINES = [
    Machine(1, 1, 700), Machine(8, 2, 1000), Machine(32, 64, 2000), Machine(300, 2, 700),
    Machine(300, 64, 1000), Machine(300, 1, 2000), Machine(32, 2, 700), Machine(1, 64, 1000),
]  # fmt: skip


def install(made_up: Machine) -> None:
    """Have the clock see this machine; memory at hand is what this process leaves of the limit."""
    clock = importlib.import_module("apclab.clock.machine")
    this = psutil.Process()
    facts = {
        "name": f"made up, {made_up}", "cores": made_up.cores, "l2_bytes": 2**20,
        "llc_bytes": made_up.llc_mb * 2**20, "llc_known": True,
    }  # fmt: skip

    def left() -> tuple[int, str]:
        return max(0, made_up.limit_mb * 10**6 - this.memory_info().rss), "left by a limit"

    vars(clock).update(cpu=lambda: facts, _memory=left)


def peak_bytes() -> int:
    """The most that this process had in memory.

    Not `getrusage`: that begins with what the process had that started this one.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return max(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), default=0
    )


def say_peak() -> None:
    """The last line of a process."""
    print(f"\npeak {peak_bytes()}", file=sys.stderr)


# a process that a command starts is on the same machine, and says its own: it imports this, too
if _ASKED in os.environ:
    install(Machine(*map(int, os.environ[_ASKED].split())))
    atexit.register(say_peak)

if __name__ == "__main__":
    os.environ[_ASKED] = " ".join(sys.argv[1:4])
    install(Machine(*map(int, sys.argv[1:4])))
    del sys.argv[1:4]
    from apclab.__main__ import main

    atexit.register(say_peak)
    sys.exit(main())
