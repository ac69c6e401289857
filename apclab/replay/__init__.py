"""A trace through prefix caches of every size: hit rate against capacity. No engine, no clock."""

from apclab.replay.caches import COLUMNS, POLICIES, check_asked, finding, lru_curve, replay
from apclab.replay.stream import RULES, Stream, stream_of

__all__ = [
    "COLUMNS",
    "POLICIES",
    "RULES",
    "Stream",
    "check_asked",
    "finding",
    "lru_curve",
    "replay",
    "stream_of",
]
