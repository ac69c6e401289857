"""Checks of plain values that callers pass: each names the argument, what it takes, and what came.

Knows nothing of blocks, models or arrays; every room may use it.
"""

import math
import operator
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any, TypeVar

Value = TypeVar("Value")

# tokens of a request and blocks of a pool are counted in int32, as in vLLM's tensors
INT32_MOST = 2**31 - 1
_LONGEST_SHOWN = 80


def shown(value: object) -> str:
    """A value as a message shows it: on one line, and not at any length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value as a Python int, checked: TypeError for no int, ValueError out of range."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, got {shown(value)}")
    if (number := operator.index(value)) < least:
        raise ValueError(f"{name} must be at least {least}, got {shown(number)}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {shown(number)}")
    return number


def not_negative(name: str, value: object) -> float:
    """The value as a float, checked: TypeError for no number, ValueError below 0, or no end."""
    number = real(name, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be at least 0, got {number:g}")
    return number


def positive(name: str, value: object, *, endless: bool = False) -> float:
    """The value as a float, checked: TypeError for no number, ValueError for 0, less, or no end."""
    number = real(name, value)
    if not number > 0 or (number == math.inf and not endless):
        raise ValueError(f"{name} must be above 0, got {number:g}")
    return number


def fraction(name: str, value: object) -> float:
    """The value as a float, checked: TypeError for no number, ValueError outside 0 to 1."""
    number = real(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {number}")
    return number


def real(name: str, value: object) -> float:
    """The value as a float, also nan and inf; TypeError for no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:  # an int that no float holds
        raise ValueError(f"{name} must be a number that a float can hold") from None


def truth(name: str, value: object) -> bool:
    """The value as a Python bool; TypeError for anything but True and False."""
    # NumPy's has another name, and this file is imported where NumPy is not
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def one_of(name: str, value: object, known: Iterable[str]) -> str:
    """The value, a word of those that are known: TypeError for no str, ValueError for another."""
    known = list(known)
    if isinstance(value, str) and value in known:
        return value
    wrong = ValueError if isinstance(value, str) else TypeError
    raise wrong(f"{name} must be one of {', '.join(known)}, got {shown(value)}")


def each(name: str, values: object, words: str) -> list[Any]:
    """The values as a list; TypeError for none, and for a str: its letters are never meant."""
    try:
        if not isinstance(values, str | bytes):
            return list(values)  # type: ignore[call-overload,no-any-return]
    except TypeError:
        pass
    raise TypeError(f"{name} must be {words}, got {shown(values)}")


def some_of(name: str, values: object, known: Iterable[str]) -> list[str]:
    """Words of those that are known, as a list: TypeError for no words, ValueError for another."""
    known = list(known)
    words = each(name, values, f"some of {', '.join(known)}")
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"{name} must be some of {', '.join(known)}, got {shown(word)}")
        if word not in known:
            raise ValueError(f"{name} must be some of {', '.join(known)}, got {shown(word)}")
    return words


def instance(name: str, value: Value, kinds: Any, words: str) -> Value:
    """The value, of one of these classes; TypeError for another, `words` say what is wanted."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {words}, got {shown(value)}")
    return value


def function_or_none(name: str, value: object) -> Callable[..., Any] | None:
    """The value, a function or None; TypeError for anything else."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, got {shown(value)}")
    return value
