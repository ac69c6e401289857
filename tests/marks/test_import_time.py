"""`import apclab` costs less than 0.3 s."""

import subprocess
import sys

import pytest

from tests.marks.conftest import Mark, Measured, measured

CODE = "from time import perf_counter as now; t = now(); import apclab; print(now() - t)"


def seconds() -> Measured:
    """Of five fresh processes."""
    said = [subprocess.check_output([sys.executable, "-c", CODE], text=True) for _ in range(5)]
    return measured([float(text) for text in said])


@pytest.mark.mark
def test_import(mark: Mark) -> None:
    mark("import apclab", seconds, 0.3, "s", most=True)
