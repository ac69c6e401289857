"""How fast the panel answers: a slider, the first point, a cancel."""

import subprocess
import sys
import time

import pytest

from apclab import DecodeLab
from tests.marks.conftest import Mark, Measured, measured

FIRST_POINT = """
import time
from apclab import DecodeLab
lab = DecodeLab(batch=32, budget_s=1.0)
start = time.perf_counter()
lab.run()
while not lab.records:
    time.sleep(0.005)
print(time.perf_counter() - start)
lab.cancel()
lab.wait(10)
"""


@pytest.mark.mark
def test_slider_handler(mark: Mark) -> None:
    lab = DecodeLab()

    def handler() -> Measured:
        times = []
        for batch in range(80, 100):
            start = time.perf_counter()
            lab.change(batch=batch)
            times.append(time.perf_counter() - start)
        return measured(times)

    mark("slider handler, median of 20", handler, 0.1, "s", most=True)


def first_point() -> float:
    """Seconds from Run to the first records in a fresh process, kernels compiled on disk."""
    return float(subprocess.check_output([sys.executable, "-c", FIRST_POINT], text=True))


@pytest.mark.mark
def test_first_point(mark: Mark) -> None:
    first_point()  # compiles the kernels
    mark("first point after Run, batch 32", lambda: measured([first_point() for _ in range(3)]),
         3.0, "s", most=True)  # fmt: skip


@pytest.mark.mark
@pytest.mark.parametrize("after", [0.02, 0.3, 0.7, 1.1, 2.0, 3.5])
def test_cancel(after: float, mark: Mark) -> None:
    # the issue at its full size, stopped in the ladder, the filling, the check and the timing
    lab = DecodeLab("issue 4860", budget_s=30.0)

    def cancel() -> Measured:
        lab.run()
        time.sleep(after)
        start = time.perf_counter()
        lab.cancel()
        assert lab.wait(30)
        return Measured(time.perf_counter() - start, 1.0)  # the worst case counts, not the usual

    mark(f"cancel {after} s after Run", cancel, 0.5, "s", most=True)
