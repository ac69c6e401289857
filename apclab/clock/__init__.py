"""The only clock: interleaved timing of bound launches, and what the machine is that runs them.

It knows launches as callables and nothing of attention, blocks or records.
"""

from apclab.clock.gpu import Replay, event_time, synchronize
from apclab.clock.lock import Busy, alone
from apclab.clock.machine import (
    commit,
    cpu,
    environment,
    machine,
    memory_available,
    memory_words,
)
from apclab.clock.timing import Cancelled, CpuShare, interleave, wall_time

__all__ = [
    "Busy",
    "Cancelled",
    "CpuShare",
    "Replay",
    "alone",
    "commit",
    "cpu",
    "environment",
    "event_time",
    "interleave",
    "machine",
    "memory_available",
    "memory_words",
    "synchronize",
    "wall_time",
]
