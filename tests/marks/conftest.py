"""Performance marks: each is tried up to three times, all are printed as one table at the end."""

from collections.abc import Callable
from typing import NamedTuple

import pytest


class Row(NamedTuple):
    """One mark of the table."""

    what: str
    value: str
    bar: str
    met: bool


_ROWS: list[Row] = []

Mark = Callable[..., None]


@pytest.fixture
def mark() -> Mark:
    """Call `mark(what, measure, bar, unit)`: a measured median against a bar, three tries."""

    def check(
        what: str, measure: Callable[[], float], bar: float, unit: str = "", *, most: bool = False
    ) -> None:
        values = []
        for _ in range(3):
            values.append(measure())
            if (values[-1] <= bar) if most else (values[-1] >= bar):
                break
        value = min(values) if most else max(values)
        met = value <= bar if most else value >= bar
        sign = "<=" if most else ">="
        _ROWS.append(Row(what, f"{value:.3g} {unit}", f"{sign} {bar:g} {unit}", met))
        assert met, f"{what}: {', '.join(f'{v:.3g}' for v in values)} {unit}, the bar is {bar:g}"

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    if not _ROWS:
        return
    terminalreporter.section("performance marks")
    width = max(len(row.what) for row in _ROWS)
    for row in _ROWS:
        verdict = "met" if row.met else "MISSED"
        terminalreporter.write_line(
            f"{row.what:{width}}  {row.value:>12}  {row.bar:>12}  {verdict}"
        )
