"""What a line, or a session file, of each known trace format says. Opens no file.

Sources of the formats: Mooncake (github.com/kvcache-ai/Mooncake, FAST25-release/traces), Bailian
(github.com/alibaba-edu/qwen-bailian-usagetraces-anon), Azure 2023 (github.com/Azure/
AzurePublicDataset), kv-cache-tester (github.com/callanjfox/kv-cache-tester).
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from apclab.traces.request import (
    TraceError,
    TraceRequest,
    block_ids,
    parse_object,
    seconds,
    whole,
)

AZURE_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
# ids of a session are its own; sessions that are mixed get ranges of this size
SESSION_IDS = 2**40


def mooncake(text: bytes, block_size: int) -> TraceRequest:
    """A line of Mooncake's JSON Lines; times in milliseconds, `block_size` may stand there."""
    fields = parse_object(text)
    input_len = whole(fields, "input_length", 1)
    said = whole(fields, "block_size", 1) if "block_size" in fields else block_size
    if said != block_size:
        raise TraceError(f"block_size must stay {block_size} in one trace, got {said}")
    return TraceRequest(
        seconds(fields, "timestamp", 1e-3),
        input_len,
        whole(fields, "output_length", 0),
        block_ids(fields, "hash_ids", input_len, block_size),
    )


def bailian(text: bytes, block_size: int) -> TraceRequest:
    """A line of Qwen-Bailian's JSON Lines; times in seconds, a chat's turns name their parent."""
    fields = parse_object(text)
    input_len = whole(fields, "input_length", 1)
    return TraceRequest(
        seconds(fields, "timestamp"),
        input_len,
        whole(fields, "output_length", 0),
        block_ids(fields, "hash_ids", input_len, block_size),
        str(whole(fields, "chat_id", 0, 2**63 - 1)) if "chat_id" in fields else "",
    )


def azure(text: bytes, first: datetime | None) -> tuple[TraceRequest, datetime]:
    """A row of Azure's CSV, seconds since the first one; returns the row's own time, too."""
    cells = text.decode("ascii", "replace").strip().split(",")
    if len(cells) != 3:
        raise TraceError(f"expected 3 values, TIMESTAMP,ContextTokens,GeneratedTokens, got {cells}")
    try:
        # seven digits of a second; Python reads six
        time = datetime.fromisoformat(cells[0][:26])
    except ValueError:
        raise TraceError(f"TIMESTAMP must be a date and time, got {cells[0][:40]!r}") from None
    if time.tzinfo is not None:
        raise TraceError(f"TIMESTAMP must have no time zone (it is UTC), got {cells[0][:40]!r}")
    input_len, output_len = _counts(cells[1:], ("ContextTokens", "GeneratedTokens"))
    arrival_s = (time - (first or time)).total_seconds()
    return TraceRequest(arrival_s, input_len, output_len), time


def lengths(text: bytes) -> TraceRequest:
    """A row of a table of token counts, prompt and output; all requests are there at the start."""
    cells = text.decode("ascii", "replace").strip().split(",")
    if len(cells) != 2:
        raise TraceError(f"expected 2 values, prompt and output tokens, got {len(cells)}")
    return TraceRequest(0.0, *_counts(cells, ("prompt tokens", "output tokens")))


def _counts(cells: list[str], names: tuple[str, str]) -> tuple[int, int]:
    found = {}
    for name, cell in zip(names, cells, strict=True):
        if not (cell.strip().isascii() and cell.strip().lstrip("-").isdigit() and len(cell) < 20):
            raise TraceError(f"{name} must be an integer, got {cell[:40]!r}")
        found[name] = int(cell)
    return whole(found, names[0], 1), whole(found, names[1], 0)


def session_block_size(session: dict[str, Any]) -> int:
    """The block size that a kv-cache-tester session names."""
    return whole(session, "block_size", 1)


def session_requests(session: dict[str, Any], number: int) -> Iterator[TraceRequest]:
    """The requests of a kv-cache-tester session, its sub-agents' among them, by time.

    Args:
        session: the parsed file.
        number: of the session, from 0; its ids are moved to a range of their own.
    """
    block_size = session_block_size(session)
    name = session.get("id")
    name = name if isinstance(name, str) and name else f"session {number}"
    found = list(_calls(session, 0.0, name, block_size, number))
    yield from sorted(found, key=lambda request: request.arrival_s)


def _calls(
    owner: dict[str, Any], start_s: float, name: str, block_size: int, number: int, depth: int = 0
) -> Iterator[TraceRequest]:
    entries = owner.get("requests")
    if not isinstance(entries, list):
        raise TraceError(f"requests must be a list, got {type(entries).__name__}")
    if depth > 16:
        raise TraceError("sub-agents are nested more than 16 deep")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise TraceError(f"requests[{index}] must be an object, got {type(entry).__name__}")
        try:
            at = start_s + seconds(entry, "t")
            if "requests" in entry:  # a sub-agent; its times start at 0, its ids are the parent's
                agent = entry.get("agent_id")
                inner = f"{name}/{agent if isinstance(agent, str) else index}"
                yield from _calls(entry, at, inner, block_size, number, depth + 1)
                continue
            input_len = whole(entry, "in", 1)
            ids = block_ids(entry, "hash_ids", input_len, block_size, SESSION_IDS - 1)
            output_len = whole(entry, "out", 0)
        except TraceError as error:
            raise TraceError(f"requests[{index}]: {error}") from None
        moved = tuple(number * SESSION_IDS + value for value in ids)
        yield TraceRequest(at, input_len, output_len, moved, name)
