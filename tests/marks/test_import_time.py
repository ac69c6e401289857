"""`import apclab` takes less than 0.3 s."""

import statistics
import subprocess
import sys

import pytest

CODE = "from time import perf_counter as now; t = now(); import apclab; print(now() - t)"


@pytest.mark.mark
def test_import_takes_less_than_three_tenths_of_a_second() -> None:
    times = [
        float(subprocess.check_output([sys.executable, "-c", CODE], text=True)) for _ in range(3)
    ]
    median = statistics.median(times)
    print(f"\nimport apclab: {median:.3f} s (bar 0.300 s)")
    assert median < 0.3
