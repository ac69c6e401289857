"""Conversations, whose turns keep what was said before: kv-cache-tester, trie, TraceLab.

Sources: github.com/callanjfox/kv-cache-tester, and the same format in the files of SemiAnalysis
(aiperf's weka-trace); github.com/Applied-Compute/trie; github.com/uw-syfi/TraceLab (arXiv
2606.30560).
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from apclab.traces.ids import block_ids, once_each
from apclab.traces.reading import Reading
from apclab.traces.request import (
    TraceError,
    TraceRequest,
    list_of,
    parse_object,
    seconds,
    shown,
    text_of,
    whole,
)

# ids of a session are its own; sessions that are mixed get ranges of this size
SESSION_IDS = 2**40
_DEEPEST = 16

Placed = tuple[str, TraceRequest]


def session_block_size(session: dict[str, Any]) -> int:
    """The block size that a kv-cache-tester session names."""
    return whole(session, "block_size", 1)


def session_requests(session: dict[str, Any], number: int, reading: Reading) -> list[Placed]:
    """The requests of a kv-cache-tester session, its sub-agents' among them, by time.

    Times of sub-agents count from their start, or, in the files of SemiAnalysis, from the
    session's; no field says which. A first time below the sub-agent's own can only be the former,
    and what holds for one holds for all of the file.

    Args:
        session: the parsed file.
        number: of the session, from 0; its ids are moved to a range of their own.
        reading: takes the notes.

    Returns:
        The place of each in the file, and the request.
    """
    if (size := session_block_size(session)) != reading.block_size:
        raise TraceError(f"block_size must be {reading.block_size} in all sessions, got {size}")
    name = text_of(session, "id") or f"session {number}"
    starts = list(_starts(session))
    absolute = all(first >= marker for marker, first in starts)
    if starts:
        which = "the session's, as SemiAnalysis'" if absolute else "their own, as kv-cache-tester's"
        reading.notes[f"sub-agents whose times count from a start: {which}"] += len(starts)
    found = list(_calls(session, name, number, reading, absolute=absolute))
    return sorted(found, key=lambda placed: placed[1].arrival_s)


def _starts(owner: dict[str, Any], depth: int = 0) -> Iterator[tuple[float, float]]:
    """Time of each sub-agent, and of its first request, as they stand there."""
    if depth > _DEEPEST:
        raise TraceError(f"sub-agents are nested more than {_DEEPEST} deep")
    for entry in list_of(owner, "requests"):
        if isinstance(entry, dict) and isinstance(inner := entry.get("requests"), list):
            if inner and isinstance(inner[0], dict):
                yield seconds(entry, "t"), seconds(inner[0], "t")
            yield from _starts(entry, depth + 1)


def _calls(
    owner: dict[str, Any], name: str, number: int, reading: Reading, *, absolute: bool,
    start_s: float = 0.0, above: str = "",
) -> Iterator[Placed]:  # fmt: skip
    for index, entry in enumerate(list_of(owner, "requests")):
        place = f"{above}requests[{index}]"
        try:
            if not isinstance(entry, dict):
                raise TraceError(f"{place} must be an object, got {type(entry).__name__}")
            at = start_s + seconds(entry, "t")
            if "requests" in entry:
                inner = f"{name}/{text_of(entry, 'agent_id') or index}"
                yield from _calls(
                    entry, inner, number, reading, absolute=absolute,
                    start_s=0.0 if absolute else at, above=f"{place}.",
                )  # fmt: skip
                continue
            yield place, _call(entry, at, name, number, reading)
        except TraceError as error:
            text = str(error)
            raise TraceError(text if text.startswith(place) else f"{place}: {text}") from None


def _call(
    entry: dict[str, Any], at: float, name: str, number: int, reading: Reading
) -> TraceRequest:
    input_len = whole(entry, "in", 1)
    ids: tuple[int, ...] = ()
    if entry.get("hash_ids") is None:
        reading.notes["requests without hash_ids, whose prefix is not known"] += 1
    else:
        local = block_ids(entry, "hash_ids", input_len, reading.block_size, SESSION_IDS - 1)
        ids = tuple(number * SESSION_IDS + value for value in once_each(local, "hash_ids"))
    return TraceRequest(at, input_len, whole(entry, "out", 0), ids, name)


def trie(text: bytes, reading: Reading) -> Iterator[TraceRequest]:
    """A session of Applied Compute's trie: a prompt that grows by answers and tools' outputs."""
    fields = parse_object(text)
    turns = whole(fields, "num_turns", 0)
    columns = []
    for name in ("assistant_response_length", "tool_call_output_length", "tool_call_latency"):
        if len(column := list_of(fields, name)) != turns:
            raise TraceError(f"{name} must hold num_turns = {turns} values, got {len(column)}")
        columns.append([{name: value} for value in column])
    answers = [whole(row, "assistant_response_length", 0) for row in columns[0]]
    tools = [whole(row, "tool_call_output_length", 0) for row in columns[1]]
    waits_s = [0.0, *(seconds(row, "tool_call_latency") for row in columns[2])]
    answers.append(whole(fields, "final_assistant_response_length", 0))
    session = f"session {len(reading.talks)}"
    talk = reading.talk(session)
    reading.notes["sessions, all begun at 0 s; answers take no time"] += 1
    at, input_len = 0.0, whole(fields, "input_prompt_length", 1)
    for answer, tool, wait_s in zip(answers, [*tools, 0], waits_s, strict=True):
        at += wait_s
        ids = talk.prompt(input_len, talk.num_tokens)
        yield TraceRequest(at, input_len, answer, ids, session)
        input_len = whole({"prompt": input_len + answer + tool}, "prompt", 1)


def tracelab(text: bytes, reading: Reading) -> tuple[TraceRequest]:
    """A round of TraceLab: how much of its prompt the provider's cache held, and what is new."""
    fields = parse_object(text)
    session = f"{text_of(fields, 'provider')}/{text_of(fields, 'session_id')}"
    talk = reading.talk(session)
    if (number := whole(fields, "round_index", 0)) < talk.number:
        raise TraceError(f"round_index must rise in a session, got {number} after {talk.number}")
    talk.number = number
    kept = whole(fields, "prefix_tokens", 0)
    if "input_tokens_total" in fields:
        input_len = whole(fields, "input_tokens_total", 1)
    else:
        input_len = kept + whole(fields, "newly_append_tokens", 1)
    if kept > input_len:
        raise TraceError(f"prefix_tokens must be at most the prompt's {input_len}, got {kept}")
    if (unknown := kept - talk.num_tokens) > 0:
        reading.notes["prefix_tokens that no earlier prompt of their session held"] += unknown
    output_len = whole(fields, "output_tokens", 0) if "output_tokens" in fields else 0
    at = _first_event(list_of(fields, "timing_events"))
    return (TraceRequest(at, input_len, output_len, talk.prompt(input_len, kept), session),)


def _first_event(events: list[Any]) -> float:
    """Time of a round's first event, in Unix seconds."""
    first = events[0] if events else None
    value = first.get("timestamp") if isinstance(first, dict) else None
    if not isinstance(value, str):
        raise TraceError(f"timing_events must begin with a timestamp, got {shown(first)}")
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise TraceError(f"timestamp must be a date and time, got {shown(value)}") from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return seconds({"timestamp": time.timestamp()}, "timestamp")
