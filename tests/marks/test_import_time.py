"""`import apclab` costs less than 0.3 s."""

import statistics
import subprocess
import sys

import pytest

from tests.marks.conftest import Mark

CODE = "from time import perf_counter as now; t = now(); import apclab; print(now() - t)"


def seconds() -> float:
    """Median of three fresh processes."""
    return statistics.median(
        float(subprocess.check_output([sys.executable, "-c", CODE], text=True)) for _ in range(3)
    )


@pytest.mark.mark
def test_import(mark: Mark) -> None:
    mark("import apclab", seconds, 0.3, "s", most=True)
