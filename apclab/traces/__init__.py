"""Request traces of others, read as requests, and synthetic ones. No pool, no replay, no clock.

A trace names blocks, not tokens: an id of `hash_ids` stands for a block and everything before it,
so equal ids are equal prefixes and the ids serve as prefix keys as they are. Where a format means
something else by its ids, or holds tokens, they are made so when they are read.
"""

from apclab.traces.detect import FORMATS
from apclab.traces.generate import generate, write_trace
from apclab.traces.read import Trace, read_trace
from apclab.traces.request import TraceError, TraceRequest

__all__ = [
    "FORMATS",
    "Trace",
    "TraceError",
    "TraceRequest",
    "generate",
    "read_trace",
    "write_trace",
]
