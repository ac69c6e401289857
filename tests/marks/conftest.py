"""Performance marks: each is tried up to three times, all are printed as one table at the end.

A busy machine makes some marks missed and others met with nonsense, where it was the baseline that
suffered. So a measurement says how steady its own samples were; an unsteady or impossible one is an
invalid run, neither met nor missed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from apclab.clock import cpu

# samples whose 80th percentile is further than this from the 20th are no measurement
UNSTEADY = 1.5


class Measured(NamedTuple):
    """A number, and how steady the samples were that it comes from."""

    value: float
    spread: float  # 80th percentile / 20th of the unsteadiest samples; 1 for what is counted


def measured(samples: Sequence[float]) -> Measured:
    """The median of samples."""
    p20, p50, p80 = np.percentile(samples, [20, 50, 80])
    return Measured(float(p50), float(p80 / p20))


def ratio(top: Sequence[float], bottom: Sequence[float]) -> Measured:
    """The median of some samples over that of others; each of them may be unsteady."""
    one, other = measured(top), measured(bottom)
    return Measured(one.value / other.value, max(one.spread, other.spread))


class Row(NamedTuple):
    """One mark of the table."""

    what: str
    value: str
    bar: str
    verdict: str
    machine: str


_ROWS: list[Row] = []

Mark = Callable[..., None]


def wrong_with(found: Measured, least: float, most: float) -> str:
    """Why a measurement is invalid; "" if it is not."""
    if found.spread > UNSTEADY:
        return f"unsteady: p80 / p20 of its samples is {found.spread:.2f}"
    if not least <= found.value <= most:
        return f"{found.value:.3g} is impossible"
    return ""


def judge(
    tries: Sequence[Measured], bar: float, *, most: bool, possible: tuple[float, float]
) -> tuple[str, Measured]:
    """What some tries say of a mark: "met", "MISSED" or "INVALID", and the try that says it."""
    valid = [found for found in tries if not wrong_with(found, *possible)]
    best = (min if most else max)(valid or tries)
    if not valid:
        return "INVALID", best
    return ("met" if (best.value <= bar if most else best.value >= bar) else "MISSED"), best


def machine_words() -> str:
    """The machine in a few words."""
    here = cpu()
    return f"{here['name'][:24]}, {here['cores']} cores, {here['llc_bytes'] >> 20} MiB"


@pytest.fixture
def mark() -> Mark:
    """Call `mark(what, measure, bar, unit)`: a measurement against a bar, three tries.

    `most` turns the bar round; `possible` is the range outside which something else was measured.
    """

    def check(
        what: str,
        measure: Callable[[], Measured],
        bar: float,
        unit: str = "",
        *,
        most: bool = False,
        possible: tuple[float, float] = (0.0, float("inf")),
    ) -> None:
        tries: list[Measured] = []
        verdict = ""
        while verdict != "met" and len(tries) < 3:
            tries.append(measure())
            verdict, best = judge(tries, bar, most=most, possible=possible)
        sign = "<=" if most else ">="
        _ROWS.append(Row(what, f"{best.value:.3g} {unit}", f"{sign} {bar:g} {unit}", verdict,
                         machine_words()))  # fmt: skip
        if verdict == "INVALID":
            pytest.skip(f"invalid run, {what}: {wrong_with(best, *possible)}")
        values = ", ".join(f"{found.value:.3g}" for found in tries)
        assert verdict == "met", f"{what}: {values} {unit}, the bar is {bar:g}"

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    if not _ROWS:
        return
    terminalreporter.section("performance marks")
    width = max(len(row.what) for row in _ROWS)
    for row in _ROWS:
        terminalreporter.write_line(
            f"{row.what:{width}}  {row.value:>12}  {row.bar:>12}  {row.verdict:7}  {row.machine}"
        )
