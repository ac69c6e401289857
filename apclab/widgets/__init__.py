"""Panels: controls bound to the functions of other rooms. No arithmetic, no measuring."""

from apclab.widgets.lab import DecodeLab
from apclab.widgets.settings import Settings

__all__ = ["DecodeLab", "Settings"]
