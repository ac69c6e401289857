"""Rows of lengths: Azure, BurstGPT, plain tables. No prefix is known from them.

Sources: github.com/Azure/AzurePublicDataset (2023, 2024 and the multimodal trace of 2025),
github.com/HPMLL/BurstGPT.
"""

import re
from datetime import UTC, datetime

from apclab.traces.reading import Reading
from apclab.traces.request import MOST_SECONDS, TraceError, TraceRequest, shown, whole

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE_LMM = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
BURSTGPT = "Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,..."


def azure(text: bytes, reading: Reading) -> tuple[TraceRequest, ...]:
    """A row of Azure's CSV, with images or without, seconds since the first one."""
    cells = _cells(text)
    names = (AZURE_LMM if len(cells) == 4 else AZURE).split(",")
    if cells == names:
        return ()
    if len(cells) != len(names):
        raise TraceError(f"expected {len(names)} values, {','.join(names)}, got {len(cells)}")
    row = dict(zip(names, cells, strict=True))
    time = moment(row["TIMESTAMP"], "TIMESTAMP")
    if "NumImages" in row and (images := _count(row, "NumImages", 0)):
        reading.notes["images, of whose tokens the trace says nothing more"] += images
    counts = _count(row, "ContextTokens", 1), _count(row, "GeneratedTokens", 0)
    reading.first = reading.first or time
    return (TraceRequest((time - reading.first).total_seconds(), *counts),)


def moment(text: str, name: str) -> datetime:
    """A date and time in UTC; TraceError if it is none, or of another zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(f"{name} must be a date and time, got {shown(text)}") from None
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    if time.utcoffset() != UTC.utcoffset(None):
        raise TraceError(f"{name} must be UTC (+00:00), got the zone {time:%z} in {shown(text)}")
    return time


def burstgpt(text: bytes, reading: Reading) -> tuple[TraceRequest, ...]:
    """A row of BurstGPT's CSV, in the order that its header names; times in seconds."""
    cells = _cells(text)
    if "Request tokens" in cells:
        reading.first = cells
        return ()
    names = reading.first
    if not names or len(cells) != len(names):
        raise TraceError(f"expected the {len(names or ())} values of the header, got {len(cells)}")
    row = dict(zip(names, cells, strict=True))
    for name in ("Timestamp", "Request tokens", "Response tokens"):
        if name not in row:
            raise TraceError(f"expected a header {BURSTGPT}, got none with {name}")
    if not re.fullmatch(r"\d{1,12}(\.\d+)?", row["Timestamp"], re.ASCII):
        raise TraceError(f"Timestamp must be seconds, got {shown(row['Timestamp'])}")
    arrival_s = min(float(row["Timestamp"]), MOST_SECONDS)
    input_len, output_len = _count(row, "Request tokens", 0), _count(row, "Response tokens", 0)
    if not output_len or not input_len:
        reading.notes["failed requests (Response tokens 0), left out"] += 1
        return ()
    return (TraceRequest(arrival_s, input_len, output_len, (), row.get("Session ID", "")[:200]),)


def lengths(text: bytes, _reading: Reading) -> tuple[TraceRequest]:
    """A row of a table of token counts, prompt and output; all requests are there at the start."""
    cells = _cells(text)
    if len(cells) != 2:
        raise TraceError(f"expected 2 values, prompt and output tokens, got {len(cells)}")
    row = dict(zip(("prompt tokens", "output tokens"), cells, strict=True))
    return (TraceRequest(0.0, _count(row, "prompt tokens", 1), _count(row, "output tokens", 0)),)


def _cells(text: bytes) -> list[str]:
    return [cell.strip() for cell in text.decode("utf-8-sig", "replace").split(",")]


def _count(row: dict[str, str], name: str, least: int) -> int:
    cell = row[name]
    if not re.fullmatch(r"-?\d{1,19}", cell, re.ASCII):
        raise TraceError(f"{name} must be an integer, got {shown(cell)}")
    return whole({name: int(cell)}, name, least)
