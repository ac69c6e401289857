"""The blocks of a decode step as a picture: who reads which. Counts readers nowhere itself."""

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from apclab.figures.block_rows import pool_rows, table_rows
from apclab.figures.style import (
    CLEAR,
    COLOURS,
    Panel,
    alone,
    axis,
    bytes_text,
    significant,
    small,
)

if TYPE_CHECKING:
    from apclab.blocks import BlockTable, Sharing

# what the rows are: requests with their tables, or the pool in the order of block ids
BLOCK_VIEWS = ("logical", "physical")

_PRIVATE = COLOURS["private"]
_FEW, _MANY = "#9ecae8", COLOURS["shared"]
_TALLEST = 4  # rows that a picture has at least, so that one request is a row and not a wall


def block_picture(table: "BlockTable", view: str = "logical", *, theme: str = "auto") -> go.Figure:
    """Draw the blocks of a step; colour is the number of requests that read a block.

    Args:
        table: of one decode step.
        view: "logical": a row is a request's block table, requests of one prefix group lie
            together; "physical": the blocks of the pool in the order of their ids.
        theme: "auto", "light" or "dark".

    Raises:
        ValueError: an unknown view or theme.
    """
    picture = alone(block_panel(table, view), theme)
    picture.update_layout(margin_b=120).data[0].colorbar.update(y=-0.28)
    return picture


def block_panel(table: "BlockTable", view: str = "logical") -> Panel:
    """The same as one panel of a page; one trace."""
    sharing = table.sharing()
    match view:
        case "logical":
            rows = table_rows(table, sharing)
            across = f"block of the request, {table.block_size} tokens each"
            down = "request, by prefix group" if rows.groups > 1 else "request"
            title = _table_title(sharing)
        case "physical":
            rows = pool_rows(table, sharing)
            across = f"block id, {rows.width} a row" + small("before a run permutes the ids")
            down = "first block id of the row"
            title = _pool_title(sharing)
        case _:
            raise ValueError(f"view must be one of {', '.join(BLOCK_VIEWS)}, got {view!r}")
    if rows.every > 1:
        down += f" (1 row of {rows.every} is drawn)"
    height = max(len(rows.readers), _TALLEST)
    most = int(sharing.readers.max())
    trace = {
        "type": "heatmap",
        "x": list(range(rows.width)),
        "y": list(range(len(rows.readers))),
        "z": rows.readers,
        "text": rows.block_ids,
        "customdata": rows.hover,
        "hoverongaps": False,
        "hovertemplate": "block id %{text}<br>readers %{z}<br>%{customdata}<extra></extra>",
        "colorscale": _colours(most),
        "zmin": 1,
        "zmax": max(most, 2),
        "xgap": 1 if rows.width <= 80 else 0,
        "ygap": 1 if len(rows.readers) <= 60 else 0,
        "colorbar": _colour_bar(most),
    }
    return Panel(
        [trace],
        axis(across, showgrid=False, range=[-0.5, rows.width - 0.5], dtick=_tick_step(rows.width)),
        axis(
            down,
            showgrid=False,
            range=[height - 0.5, -0.5],
            tickvals=list(rows.ticks),
            ticktext=list(rows.ticks.values()),
        ),
        title,
    )


def _tick_step(width: int) -> int:
    """A whole step between ticks, so that few columns do not get halves: 1, 2, 5, 10, ..."""
    steps = (step * int(10**power) for power in range(9) for step in (1, 2, 5))
    return next(step for step in steps if width <= 8 * step)


def step_text(table: "BlockTable", token_bytes: int) -> str:
    """Readers and bytes of a step: "readers 6.6, a layer reads 635 MB, 96 MB of them distinct".

    Args:
        table: the step's shared block table.
        token_bytes: K and V of one token in one layer, bytes.
    """
    sharing = table.sharing()
    logical = bytes_text(sharing.logical_bytes(token_bytes))
    distinct = bytes_text(sharing.distinct_bytes(token_bytes))
    readers = significant(sharing.readers_mean)
    return f"readers {readers}, a layer reads {logical}, {distinct} of them distinct"


def _table_title(sharing: "Sharing") -> str:
    entries, distinct = sharing.table_entries, sharing.distinct_blocks
    if entries == distinct:
        return f"{entries:,} table entries,<br>as many blocks: no sharing"
    readers = significant(sharing.readers_mean)
    return f"{entries:,} entries, {distinct:,} blocks:<br>{readers} readers each"


def _pool_title(sharing: "Sharing") -> str:
    alone_in = int((sharing.readers == 1).sum())
    if alone_in == sharing.distinct_blocks:
        return f"{alone_in:,} blocks in use,<br>one reader each: no sharing"
    shared = sharing.distinct_blocks - alone_in
    return f"{shared:,} of {sharing.distinct_blocks:,} blocks in use<br>have several readers"


def _colours(most: int) -> list[list[float | str]]:
    """One reader in the colour of `private`, more of them ever closer to that of `shared`."""
    if most <= 1:
        return [[0.0, _PRIVATE], [1.0, _PRIVATE]]
    edge = 0.5 / (most - 1)
    return [[0.0, _PRIVATE], [edge, _PRIVATE], [edge, _FEW], [1.0, _MANY]]


def _colour_bar(most: int) -> dict[str, object]:
    ticks = sorted({1, (1 + most) // 2, most}) if most > 3 else list(range(1, most + 1))
    return {
        "title": {"text": "readers of the block", "side": "bottom", "font": {"size": 11}},
        "orientation": "h",
        "yanchor": "top",
        "tickvals": ticks,
        "ticktext": [str(tick) for tick in ticks],
        "thickness": 8,
        "tickfont": {"size": 11},
        "outlinewidth": 0,
        "bgcolor": CLEAR,
    }
