"""A trace through prefix caches of every size: hit rate against capacity. No engine, no clock."""

import sys
from types import ModuleType
from typing import Any

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


class _Room(ModuleType):
    """The import system binds `apclab.replay` to this room: calling it calls the function."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return replay(*arguments, **named)


sys.modules[__name__].__class__ = _Room
