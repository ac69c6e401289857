"""One request of a trace, its fields checked. Reads no file."""

import json
import math
from typing import Any, NamedTuple

# ten times the longest context on offer, 10 million; a length above is a broken file
MOST_TOKENS = 2**27
MOST_SECONDS = 1e10


class TraceError(ValueError):
    """A trace file, or a line of it, is not what it should be; the message says where and why."""


class TraceRequest(NamedTuple):
    """A request as a trace tells it.

    Attributes:
        arrival_s: seconds since the trace's start.
        input_len: prompt tokens, at least 1.
        output_len: generated tokens, at least 0.
        hash_ids: one id a block of the prompt, the last one perhaps partial or left out; empty
            where the trace knows lengths only. An id stands for its block and all before it, and
            fits int64.
        session: conversation or agent the request belongs to, "" where the trace does not say.
    """

    arrival_s: float
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()
    session: str = ""


def parse_object(text: bytes) -> dict[str, Any]:
    """One JSON object, strictly: no NaN, no infinity, no key twice.

    Raises:
        TraceError: it is none.
    """
    found = parse_json(text)
    if not isinstance(found, dict):
        raise TraceError(f"expected a JSON object, got {type(found).__name__}")
    return found


def parse_json(text: bytes) -> Any:
    """What `parse_object` reads, of any kind."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_once)
    except RecursionError:
        raise TraceError("nested too deeply for a request") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"not UTF-8 text: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise TraceError(f"not JSON: {error.msg} at column {error.colno}") from None
    except TraceError:
        raise
    except ValueError as error:  # Python refuses to read integers of thousands of digits
        raise TraceError(f"not JSON that can be read: {str(error).split(';')[0]}") from None


def _refuse_constant(name: str) -> None:
    raise TraceError(f"{name} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise TraceError(f"key {twice[:40]!r} appears twice in one object")
    return found


def whole(fields: dict[str, Any], name: str, least: int, most: int = MOST_TOKENS) -> int:
    """The integer under a name; TraceError if it is missing, no integer or out of range."""
    value = present(fields, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(f"{name} must be an integer, got {shown(value)}")
    if not least <= value <= most:
        raise TraceError(f"{name} must be between {least} and {most}, got {shown(value)}")
    return value


def seconds(fields: dict[str, Any], name: str, unit_s: float = 1.0) -> float:
    """The time under a name, in seconds; TraceError if it is missing, negative or no time."""
    value = present(fields, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceError(f"{name} must be a number, got {shown(value)}")
    most = MOST_SECONDS / unit_s
    if not (0 <= value <= most and math.isfinite(value)):
        raise TraceError(f"{name} must be between 0 and {most:g}, got {shown(value)}")
    return float(value) * unit_s


def text_of(fields: dict[str, Any], name: str) -> str:
    """The name of something under a name, "" where there is none."""
    value = fields.get(name, "")
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TraceError(f"{name} must be a name, got {shown(value)}")
    return shown(value) if isinstance(value, int) else value[:200]


def list_of(fields: dict[str, Any], name: str) -> list[Any]:
    """The list under a name; TraceError if it is missing or no list."""
    value = present(fields, name)
    if not isinstance(value, list):
        raise TraceError(f"{name} must be a list, got {type(value).__name__}")
    return value


def present(fields: dict[str, Any], name: str) -> Any:
    """The value under a name; TraceError if it is missing."""
    if name not in fields:
        raise TraceError(f"{name} is missing; the object holds {names_of(fields)}")
    return fields[name]


def names_of(fields: dict[str, Any]) -> str:
    """Names in an object, for a message."""
    return ", ".join(str(key)[:20] for key in list(fields)[:8]) or "nothing"


def shown(value: Any) -> str:
    """A value in a message, never long."""
    if isinstance(value, int) and value.bit_length() > 100:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value[:60] if isinstance(value, str) else value)
    if isinstance(value, list | dict):
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
