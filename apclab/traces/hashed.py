"""Lines that name the blocks of a prompt: Mooncake and its relatives, Bailian, Dynamo.

Sources: github.com/kvcache-ai/Mooncake (FAST25-release/traces); its relatives as
github.com/ai-dynamo/dynamo describes them (docs/dynosim/trace-formats.md, docs/agents);
github.com/alibaba-edu/qwen-bailian-usagetraces-anon, whose ids are of one block alone (issue 4).
"""

from typing import Any

from apclab.traces.ids import block_ids, chain, once_each
from apclab.traces.reading import Reading
from apclab.traces.request import (
    TraceError,
    TraceRequest,
    list_of,
    parse_object,
    seconds,
    text_of,
    whole,
)

_MS = 1e-3


def mooncake(text: bytes, reading: Reading) -> tuple[TraceRequest]:
    """A line of Mooncake's JSON Lines; times in milliseconds, `block_size` may stand there."""
    fields = parse_object(text)
    size = reading.block_size
    said = whole(fields, "block_size", 1) if "block_size" in fields else size
    if said != size:
        raise TraceError(f"block_size must stay {size} in one trace, got {said}")
    session = text_of(fields, "session_id")
    arrival_s = _arrival(fields, session, reading)
    if "input_length" not in fields:
        fields["input_length"] = size * len(list_of(fields, "hash_ids"))
    input_len = whole(fields, "input_length", 1)
    ids = once_each(block_ids(fields, "hash_ids", input_len, size), "hash_ids")
    output_len = 0
    if "output_length" in fields:
        output_len = whole(fields, "output_length", 0)
    else:
        reading.notes["lines without output_length, read as 0"] += 1
    reading.last_s[session] = arrival_s
    return (TraceRequest(arrival_s, input_len, output_len, ids, session),)


def _arrival(fields: dict[str, Any], session: str, reading: Reading) -> float:
    """When a line arrives; one of a closed loop says so from its session's last one on."""
    delay = next((name for name in ("delay", "delay_ms") if name in fields), "")
    if delay and "timestamp" not in fields and "created_time" not in fields:
        before = reading.last_s.get(session) if session else None
        if before is None:
            raise TraceError(f"{delay} must follow an earlier line of its session_id")
        reading.notes["delays after a session's previous line, counted from its arrival"] += 1
        return before + seconds(fields, delay, _MS)
    return seconds(fields, "created_time" if "created_time" in fields else "timestamp", _MS)


def bailian(text: bytes, reading: Reading) -> tuple[TraceRequest]:
    """A line of Qwen-Bailian's JSON Lines; times in seconds, ids of each block's tokens alone."""
    fields = parse_object(text)
    input_len = whole(fields, "input_length", 1)
    ids = block_ids(fields, "hash_ids", input_len, reading.block_size)
    return (
        TraceRequest(
            seconds(fields, "timestamp"),
            input_len,
            whole(fields, "output_length", 0),
            # the same tokens behind others are another prefix
            chain(b"%d" % value for value in ids),
            str(whole(fields, "chat_id", 0, 2**63 - 1)) if "chat_id" in fields else "",
        ),
    )


def dynamo(text: bytes, reading: Reading) -> tuple[TraceRequest, ...]:
    """A record of Dynamo's request trace, told when its request has ended; Unix time."""
    fields = parse_object(text)
    event = fields["event"] if isinstance(fields.get("event"), dict) else fields
    request = event.get("request")
    request = request if isinstance(request, dict) else {}
    replay = request.get("replay")
    if not isinstance(replay, dict):
        reading.notes["records without the blocks of a request, left out"] += 1
        return ()
    size = whole(replay, "trace_block_size", 1)
    if size != reading.block_size:
        raise TraceError(f"trace_block_size must stay {reading.block_size}, got {size}")
    input_len = whole(replay, "input_length", 1)
    ids = block_ids(replay, "input_sequence_hashes", input_len, size)
    context = event.get("agent_context")
    return (
        TraceRequest(
            _received(event, request),
            input_len,
            whole(request, "output_tokens", 0) if request.get("output_tokens") is not None else 0,
            once_each(ids, "input_sequence_hashes"),
            text_of(context, "session_id") if isinstance(context, dict) else "",
        ),
    )


def _received(event: dict[str, Any], request: dict[str, Any]) -> float:
    if request.get("request_received_ms") is not None:
        return seconds(request, "request_received_ms", _MS)
    took_s = 0.0
    if request.get("total_time_ms") is not None:
        took_s = seconds(request, "total_time_ms", _MS)
    return max(0.0, seconds(event, "event_time_unix_ms", _MS) - took_s)
