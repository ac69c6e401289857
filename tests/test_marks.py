"""The marks' own judgement: a busy machine's samples are an invalid run, neither met nor missed."""

import pytest

from tests.marks.conftest import Measured, judge, ratio, wrong_with

ANY = (0.0, float("inf"))
GOOD, SLOW = Measured(0.5, 1.1), Measured(0.3, 1.1)
# a baseline that suffered, and samples that jump
NONSENSE, UNSTEADY = Measured(0.005, 1.0), Measured(0.9, 3.0)


@pytest.mark.parametrize(
    ("tries", "verdict", "best"),
    [
        ([GOOD], "met", GOOD),
        ([SLOW], "MISSED", SLOW),
        ([SLOW, UNSTEADY], "MISSED", SLOW),
        ([UNSTEADY, GOOD], "met", GOOD),
        ([UNSTEADY], "INVALID", UNSTEADY),
    ],
)
def test_unsteady_tries_do_not_count(tries: list[Measured], verdict: str, best: Measured) -> None:
    assert judge(tries, 0.4, most=False, possible=ANY) == (verdict, best)


def test_an_impossible_ratio_meets_no_mark() -> None:
    assert judge([NONSENSE], 1.3, most=True, possible=(0.5, 9.0)) == ("INVALID", NONSENSE)
    assert judge([NONSENSE, GOOD], 1.3, most=True, possible=(0.5, 9.0)) == ("met", GOOD)
    assert wrong_with(NONSENSE, 0.5, 9.0) == "0.005 is impossible"
    assert wrong_with(UNSTEADY, *ANY) == "unsteady: p80 / p20 of its samples is 3.00"


def test_a_ratio_is_as_unsteady_as_its_baseline() -> None:
    steady, jumpy = [1.0, 1.01, 1.02, 1.0, 1.01], [1.0, 2.0, 4.0, 1.0, 8.0]
    assert ratio(steady, jumpy).spread == ratio(jumpy, steady).spread > 2
    assert ratio(steady, steady).spread < 1.1
