"""Block tables laid out as rows of cells for a picture. Colours and axes are not its business."""

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from apclab.blocks import BlockTable, Sharing

MAX_CELLS = 12_000  # with more cells than this only every n-th row is drawn
_TICKS = 8  # labels down the side
_NAMED = 6  # readers that a hover names
_WIDTHS = (8, 10, 16, 20, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256)


class Rows(NamedTuple):
    """Cells of a picture, row by row from the top; None where there is no block."""

    readers: list[list[int | None]]
    block_ids: list[list[int]]
    hover: list[list[str]]  # who reads the block, and how many tokens of it
    ticks: dict[float, str]  # place of a label -> its text
    width: int  # cells in a row
    every: int  # one row of so many is drawn
    groups: int  # prefix groups that were set apart


def table_rows(table: "BlockTable", sharing: "Sharing") -> Rows:
    """One row a request; requests with the same first block are a prefix group, side by side.

    Groups stand apart by an empty row or more. A table where each request is on its own, or all
    are of one group, keeps the order of its requests.
    """
    batch, width = table.block_tables.shape
    groups = _groups(table, sharing)
    every = -(-batch * width // MAX_CELLS)
    drawn = [group[::every] for group in groups]
    rows = sum(map(len, drawn))
    gap = max(1, min(rows // 40, min(map(len, drawn)) // 2)) if len(drawn) > 1 else 0
    readers: list[list[int | None]] = []
    ids: list[list[int]] = []
    hover: list[list[str]] = []
    places: dict[int, int] = {}  # request -> its row
    middles: dict[float, str] = {}
    for number, requests in enumerate(drawn):
        if number:
            readers += [[None] * width] * gap
            ids += [[0] * width] * gap
            hover += [[""] * width] * gap
        middles[len(readers) + (len(requests) - 1) / 2] = f"group {number}"
        for request in requests:
            places[request] = len(readers)
            # padding stays empty
            readers.append([count or None for count in sharing.readers[request].tolist()])
            ids.append(table.block_tables[request].tolist())
            who = f"request {request}" + (f" of group {number}" if len(drawn) > 1 else "")
            hover.append(_row_hover(who, int(table.seq_lens[request]), table.block_size, width))
    ticks = middles
    if len(drawn) == 1:
        ticks = {float(place): str(request) for request, place in places.items()}
    return Rows(readers, ids, hover, _thinned(ticks), width, every, len(drawn))


def pool_rows(table: "BlockTable", sharing: "Sharing") -> Rows:
    """The blocks of the pool in the order of their ids, as many a row as make a good shape.

    Blocks that no request reads are left empty; where ids lie so far apart that the picture
    would be mostly empty, only those in use are drawn.
    """
    named = sharing.readers > 0
    used = table.block_tables[named]
    where = np.argwhere(named)  # [entries, 2]: request, its block number
    last = int(used.max())
    ids = np.arange(1, last + 1) if last <= 4 * len(np.unique(used)) else np.unique(used)
    width = next((w for w in _WIDTHS if w * w >= 1.6 * len(ids)), _WIDTHS[-1])
    every = -(-len(ids) // MAX_CELLS)
    order = np.argsort(used, kind="stable")
    readers_of = {
        int(block): list(entries)
        for block, entries in groupby(order.tolist(), key=lambda entry: used[entry])
    }
    tokens = np.minimum(
        table.seq_lens[where[:, 0]] - where[:, 1] * table.block_size, table.block_size
    )
    readers: list[list[int | None]] = []
    block_ids: list[list[int]] = []
    hover: list[list[str]] = []
    ticks: dict[float, str] = {}
    for start in range(0, len(ids), width * every):
        row = ids[start : start + width].tolist()
        rest = [0] * (width - len(row))
        ticks[float(len(readers))] = str(row[0])
        found = [readers_of.get(block, []) for block in row]
        readers.append([len(entries) or None for entries in found] + [None] * len(rest))
        block_ids.append([*row, *rest])
        hover.append(
            [
                _who(where[entries, 0].tolist(), int(tokens[entries].max())) if entries else ""
                for entries in found
            ]
            + [""] * len(rest)
        )
    return Rows(readers, block_ids, hover, _thinned(ticks), width, every, 1)


def _groups(table: "BlockTable", sharing: "Sharing") -> list[list[int]]:
    """Requests by their first block; one list of all where that sets nobody apart."""
    first = table.block_tables[:, 0].tolist()
    by_block: dict[int, list[int]] = {}
    for request, block in enumerate(first):
        by_block.setdefault(block, []).append(request)
    if sharing.readers[:, 0].max() < 2 or len(by_block) == 1:
        return [list(range(len(first)))]
    return list(by_block.values())


def _row_hover(who: str, seq_len: int, block_size: int, width: int) -> list[str]:
    blocks = -(-seq_len // block_size)
    words = [
        f"{who}, its block {i}<br>tokens {min(block_size, seq_len - i * block_size)}"
        for i in range(blocks)
    ]
    return words + [""] * (width - blocks)


def _who(requests: list[int], tokens: int) -> str:
    named = ", ".join(map(str, requests[:_NAMED]))
    more = f" and {len(requests) - _NAMED} more" if len(requests) > _NAMED else ""
    return f"read by request {named}{more}<br>tokens {tokens}"


def _thinned(ticks: dict[float, Any]) -> dict[float, str]:
    """At most `_TICKS` labels, evenly spread."""
    step = next(s for s in _steps() if s * _TICKS >= len(ticks))
    return dict(list(ticks.items())[::step])


def _steps() -> Any:
    size = 1
    while True:
        yield from (size, 2 * size, 5 * size)
        size *= 10
