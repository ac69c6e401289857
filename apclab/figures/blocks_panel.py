"""The block tables of a decode step as a picture: who reads which block. Counts nothing itself."""

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from apclab.figures.style import CLEAR, COLOURS, Panel, alone, axis, bytes_text, significant

if TYPE_CHECKING:
    from apclab.blocks import BlockTable

MAX_CELLS = 12_000  # more cells than this and only every n-th request is drawn, and said so

_PRIVATE = COLOURS["private"]
_FEW, _MANY = "#9ecae8", COLOURS["shared"]


def block_picture(table: "BlockTable", *, theme: str = "auto") -> go.Figure:
    """Draw a block table: rows are requests, colour is the number of readers of each block.

    Args:
        table: of one decode step.
        theme: "auto", "light" or "dark".
    """
    return alone(block_panel(table), theme)


def block_panel(table: "BlockTable") -> Panel:
    """The same as one panel of a page; one trace."""
    sharing = table.sharing()
    batch, max_blocks = table.block_tables.shape
    every = -(-batch * max_blocks // MAX_CELLS)
    requests = list(range(0, batch, every))
    readers = [
        [count or None for count in row] for row in sharing.readers[::every].tolist()
    ]  # padding stays empty
    tokens = [
        [min(table.block_size, length - start) for start in range(0, length, table.block_size)]
        for length in table.seq_lens[::every].tolist()
    ]
    most = int(sharing.readers.max())
    trace = {
        "type": "heatmap",
        "x": list(range(max_blocks)),
        "y": requests,
        "z": readers,
        "text": table.block_tables[::every].tolist(),
        "customdata": tokens,
        "hoverongaps": False,
        "hovertemplate": "request %{y}, its block number %{x}<br>block id %{text}"
        "<br>readers %{z}<br>tokens %{customdata}<extra></extra>",
        "colorscale": _colours(most),
        "zmin": 1,
        "zmax": max(most, 2),
        "xgap": 1 if max_blocks <= 80 else 0,
        "ygap": 1 if len(requests) <= 60 else 0,
        "colorbar": _colour_bar(most),
    }
    rows = "request" if every == 1 else f"request (1 of {every} is drawn)"
    return Panel(
        [trace],
        axis(f"block of the request, {table.block_size} tokens each", showgrid=False),
        axis(rows, autorange="reversed", showgrid=False),
        _title(sharing.table_entries, sharing.distinct_blocks, sharing.readers_mean),
    )


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


def _title(entries: int, distinct: int, readers_mean: float) -> str:
    if entries == distinct:
        return f"{entries:,} table entries,<br>as many blocks: no sharing"
    readers = significant(readers_mean)
    return f"{entries:,} entries, {distinct:,} blocks:<br>{readers} readers each"


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
