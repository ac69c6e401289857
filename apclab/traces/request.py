"""One request of a trace, its fields checked. Reads no file."""

import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

# more than any model's context; a length above is a broken file, not a long prompt
MOST_TOKENS = 2**30
MOST_SECONDS = 1e10
LARGEST_ID = 2**63 - 1


class TraceError(ValueError):
    """A trace file, or a line of it, is not what it should be; the message says where and why."""


class TraceRequest(NamedTuple):
    """A request as a trace tells it.

    Attributes:
        arrival_s: seconds since the trace's start.
        input_len: prompt tokens, at least 1.
        output_len: generated tokens, at least 0.
        hash_ids: one id a block of the prompt, the last one perhaps partial or left out; empty
            where the trace knows lengths only. An id stands for its block and all before it.
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
    try:
        found = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_once)
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
    if not isinstance(found, dict):
        raise TraceError(f"expected a JSON object, got {type(found).__name__}")
    return found


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
    value = _present(fields, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(f"{name} must be an integer, got {_shown(value)}")
    if not least <= value <= most:
        raise TraceError(f"{name} must be between {least} and {most}, got {_shown(value)}")
    return value


def seconds(fields: dict[str, Any], name: str, unit_s: float = 1.0) -> float:
    """The time under a name, in seconds; TraceError if it is missing, negative or no time."""
    value = _present(fields, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceError(f"{name} must be a number, got {_shown(value)}")
    if not (0 <= value * unit_s <= MOST_SECONDS and math.isfinite(value)):
        raise TraceError(f"{name} must be between 0 and {MOST_SECONDS / unit_s:g}, got {value!r}")
    return float(value) * unit_s


def block_ids(
    fields: dict[str, Any], name: str, input_len: int, block_size: int, largest: int = LARGEST_ID
) -> tuple[int, ...]:
    """The ids under a name, one a block of the prompt, with or without its partial last block.

    Raises:
        TraceError: they are no ids, too few or too many, or one stands there twice.
    """
    ids = _present(fields, name)
    if not isinstance(ids, list):
        raise TraceError(f"{name} must be a list of ids, got {_shown(ids)}")
    full, blocks = input_len // block_size, -(-input_len // block_size)
    if len(ids) not in (full, blocks):
        wanted = str(full) if full == blocks else f"{full} or {blocks}"
        raise TraceError(
            f"{name} must hold {wanted} ids for {input_len} tokens in blocks of {block_size}, "
            f"got {len(ids)}"
        )
    for value in ids:
        if type(value) is not int or not 0 <= value <= largest:
            raise TraceError(f"{name} must hold integers from 0 to {largest}, got {_shown(value)}")
    if len(set(ids)) < len(ids):
        twice = _first_twice(ids)
        raise TraceError(f"{name} holds {twice} twice; an id stands for all before it, too")
    return tuple(ids)


def _first_twice(ids: Iterable[int]) -> int:
    seen: set[int] = set()
    return next(value for value in ids if value in seen or seen.add(value))  # type: ignore[func-returns-value]


def _present(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        there = ", ".join(str(key)[:20] for key in list(fields)[:8]) or "nothing"
        raise TraceError(f"{name} is missing; the object holds {there}")
    return fields[name]


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 100:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
