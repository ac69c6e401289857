"""Checks of plain numbers that callers pass. Nothing about blocks."""

import math
import operator

import numpy as np


def whole_number(name: str, value: object, least: int) -> int:
    """The value as a Python int, checked: TypeError for no int, ValueError below `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if (number := operator.index(value)) < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def fraction(name: str, value: object) -> float:
    """The value as a float, checked: TypeError for no number, ValueError outside 0 to 1."""
    numeric = isinstance(value, int | float | np.integer | np.floating)
    if isinstance(value, bool) or not numeric:
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)  # type: ignore[arg-type]
    if math.isnan(number) or not 0 <= number <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {number}")
    return number
