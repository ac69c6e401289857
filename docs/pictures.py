"""Figures as PNG: of a panel and of plotly figures in a notebook's kernel, and the README's one.

`begin` and `end` run in the kernel, around the cells of a notebook; no cell knows of them.
"""

import base64
import json
import warnings
from pathlib import Path
from typing import Any

import kaleido
import plotly.graph_objects as go
import plotly.io as pio
from IPython.core.getipython import get_ipython

from apclab import DecodeLab, results
from apclab.figures import reuse_roofline

FOLDER = Path(__file__).parent
# of a figure that does not say itself, in CSS pixels; a page of four panels is wider
WIDTH, PAGE_WIDTH = 760, 1100

_shown: list[DecodeLab] = []


def png(figure: go.Figure, width: int = WIDTH, scale: float = 1) -> bytes:
    """The figure as a PNG, at its own height."""
    height = figure.layout.height
    image: bytes = pio.to_image(figure, "png", width=width, height=height, scale=scale)
    return image


def begin() -> None:
    """Put a PNG beside each plotly figure and each panel that this kernel shows from now on."""
    kaleido.start_sync_server(silence_warnings=True)
    # plotly's remark that this server was started before it was asked for
    warnings.filterwarnings("ignore", "The kopts argument")
    pio.renderers.default = "plotly_mimetype+png"
    pio.renderers["png"].width = WIDTH
    shell: Any = get_ipython()
    shell.display_formatter.formatters["image/png"].for_type(DecodeLab, _panel)


def end() -> None:
    """Print the panels as they are now, model id -> PNG: a run changes what a cell has shown."""
    print(json.dumps({lab.model_id: base64.b64encode(_picture(lab)).decode() for lab in _shown}))
    kaleido.stop_sync_server(silence_warnings=True)


def _panel(lab: DecodeLab) -> bytes:
    _shown.append(lab)
    return _picture(lab)


def _picture(lab: DecodeLab) -> bytes:
    return png(lab.figure(), PAGE_WIDTH)


def readme_figure(path: Path = FOLDER / "reuse_roofline.png") -> Path:
    """Draw the reuse roofline of the committed records: issue 4860's shape, default settings."""
    records, problems = results.load(results.measured_dir())
    assert not problems, problems
    wanted: dict[str, Any] = {"dtype": "bfloat16", "layout": "NHD", "order": "request"}
    table = results.frame(records)
    for column, value in {**wanted, "l2": "cold", "batch": 100, "prefix_groups": 1}.items():
        table = table[table[column] == value]
    figure = reuse_roofline(
        table, results.published(), ladder=results.ladder(records), asked=1.0, theme="light"
    )
    path.write_bytes(png(figure, scale=2))
    return path
