"""Machines that are not here: caches, cores and a memory limit, as the package would see them.

`python -m tests.made_up LLC_MB CORES LIMIT_MB decode ...` runs a command of apclab on one and says
at the end how much memory the process had at most.
"""

import importlib
import os
import resource
import sys
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
    """The most that this process, or one that it started and that has ended, had in memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in who) * unit


# a process that a command starts is on the same machine: it imports this file, too
if _ASKED in os.environ:
    install(Machine(*map(int, os.environ[_ASKED].split())))

if __name__ == "__main__":
    os.environ[_ASKED] = " ".join(sys.argv[1:4])
    install(Machine(*map(int, sys.argv[1:4])))
    del sys.argv[1:4]
    from apclab.__main__ import main

    try:
        sys.exit(main())
    finally:
        print(f"\npeak {peak_bytes()}", file=sys.stderr)
