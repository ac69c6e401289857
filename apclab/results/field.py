"""What a field of a record may be, and the check of a record against a table of fields."""

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

SCHEMA = 1
Record = dict[str, Any]

# whole numbers stay exact in every JSON reader and in an int64 column
_LARGEST = 2**63 - 1


class Field(NamedTuple):
    """One field of a record."""

    meaning: str  # with its unit
    expected: str  # in words, for messages
    accepts: Callable[[Any], bool]


def is_int(value: Any) -> bool:
    """Whether a value is a whole number that every reader keeps exact."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def is_number(value: Any) -> bool:
    """Whether a value is a finite number of JSON."""
    return is_int(value) or (isinstance(value, float) and math.isfinite(value))


def integer(meaning: str, low: int) -> Field:
    """A whole number from `low` on."""
    return Field(meaning, f"an integer >= {low}", lambda value: is_int(value) and value >= low)


def number(meaning: str, low: float, high: float = math.inf) -> Field:
    """A finite number within bounds."""
    words = f"a finite number >= {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
    return Field(meaning, words, lambda value: is_number(value) and low <= value <= high)


def positive(meaning: str) -> Field:
    """A finite number above 0."""
    return Field(meaning, "a finite number > 0", lambda value: is_number(value) and value > 0)


def flag(meaning: str) -> Field:
    """True or false."""
    return Field(meaning, "true or false", lambda value: isinstance(value, bool))


def text(meaning: str, pattern: str = r"(?s).+", expected: str = "text, not empty") -> Field:
    """A text of a pattern."""
    whole = re.compile(pattern)
    return Field(
        meaning,
        expected,
        lambda value: isinstance(value, str) and whole.fullmatch(value) is not None,
    )


def one_of(meaning: str, *names: str) -> Field:
    """One of some names."""
    return Field(
        meaning,
        f"one of {', '.join(names)}",
        lambda value: isinstance(value, str) and value in names,
    )


def or_null(field: Field) -> Field:
    """What another field may be, or null."""
    return Field(
        field.meaning,
        f"{field.expected}, or null",
        lambda value: value is None or field.accepts(value),
    )


def is_plain(value: Any, depth: int = 20) -> bool:
    """Whether a value is made of what JSON has, not nested without end."""
    match value:
        case dict() | list() if depth == 0:
            return False
        case dict():
            return all(isinstance(k, str) and is_plain(v, depth - 1) for k, v in value.items())
        case list():
            return all(is_plain(item, depth - 1) for item in value)
        case None | bool() | str():
            return True
        case _:
            return is_number(value)


def check_fields(record: object, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Hold a record against a table of fields.

    Returns:
        The record's values by the names of the table.

    Raises:
        ValueError: a field is missing, unknown, or not what it should be.
    """
    flat = _flatten(record, fields)
    for name, field in fields.items():
        if name not in flat:
            raise ValueError(f"record lacks {name!r} ({field.meaning})")
        if not field.accepts(flat[name]):
            raise ValueError(f"{name} must be {field.expected}, got {show(flat[name])}")
    return flat


def _flatten(record: object, fields: Mapping[str, Field]) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ValueError(f"record must be an object, got {type(record).__name__}")
    # another version may have other fields: say that first
    if (schema := record.get("schema")) != SCHEMA:
        raise ValueError(f"schema must be {SCHEMA}, got {show(schema)}")
    groups = {name.partition(".")[0] for name in fields if "." in name}
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if name not in groups:
            inner: dict[Any, Any] = {name: value}
        elif isinstance(value, dict):
            inner = {f"{name}.{field}": item for field, item in value.items()}
        else:
            raise ValueError(f"{name} must be an object, got {show(value)}")
        if not inner.keys() <= fields.keys() or (name not in groups and "." in name):
            raise ValueError(
                f"record has a field that schema {SCHEMA} does not know, in {show(name)}"
            )
        flat |= inner
    return flat


def show(value: object) -> str:
    """A value in a message, cut to 80 characters."""
    text = reprlib.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
