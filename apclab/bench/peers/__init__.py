"""Kernels of others beside ours in one run: same tables, same bytes, checked, then interleaved.

The peers are never dependencies: what does not import is reported with its reason.
"""

from apclab.bench.peers.marks import Mark, Row, marks, rows
from apclab.bench.peers.measure import candidates, measure_peers
from apclab.bench.peers.setting import SHAPES, SHARES, Setting, settings

__all__ = [
    "SHAPES",
    "SHARES",
    "Mark",
    "Row",
    "Setting",
    "candidates",
    "marks",
    "measure_peers",
    "rows",
    "settings",
]
