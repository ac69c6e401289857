"""The only clock: interleaved timing of bound launches, and what the machine is that runs them.

It knows launches as callables and nothing of attention, blocks or records.
"""

from apclab.clock.machine import commit, cpu, environment, memory_available, memory_words
from apclab.clock.timing import Cancelled, interleave

__all__ = [
    "Cancelled",
    "commit",
    "cpu",
    "environment",
    "interleave",
    "memory_available",
    "memory_words",
]
