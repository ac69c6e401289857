"""Figures: tables in, plotly `Figure` out. No clock, no state, no measuring."""

from apclab.figures.blocks_panel import BLOCK_VIEWS, block_panel, block_picture, step_text
from apclab.figures.hit_rate import hit_rate
from apclab.figures.page import lab_page, redraw, sweep_panels
from apclab.figures.points import VIEWS, X_AXES, Line, lines
from apclab.figures.roofline import reuse_roofline, roofline_panel
from apclab.figures.style import CASES, COLOURS, THEMES, Panel
from apclab.figures.sweep import bandwidth, bandwidth_panel, decode_time, time_panel
from apclab.figures.titles import settings_text
from apclab.figures.tpot import tpot_terms

__all__ = [
    "BLOCK_VIEWS",
    "CASES",
    "COLOURS",
    "THEMES",
    "VIEWS",
    "X_AXES",
    "Line",
    "Panel",
    "bandwidth",
    "bandwidth_panel",
    "block_panel",
    "block_picture",
    "decode_time",
    "hit_rate",
    "lab_page",
    "lines",
    "redraw",
    "reuse_roofline",
    "roofline_panel",
    "settings_text",
    "step_text",
    "sweep_panels",
    "time_panel",
    "tpot_terms",
]
