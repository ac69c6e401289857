"""Measured comparisons: real pool -> block tables -> checked launches -> timed -> records.

No kernel and no clock lives here, no formula of a model.
"""

from apclab.bench.bound import WrongResult
from apclab.bench.calibrate import calibrate, calibrate_rates, rates_of
from apclab.bench.compare import compare_decode, compare_tables, measure_touch
from apclab.bench.memory import OutOfMemory
from apclab.bench.numbers import check_backends, run_backends, step_arrays
from apclab.bench.probes import measure_ladder
from apclab.bench.step import Step, decode_step, tables_step

__all__ = [
    "OutOfMemory",
    "Step",
    "WrongResult",
    "calibrate",
    "calibrate_rates",
    "check_backends",
    "compare_decode",
    "compare_tables",
    "decode_step",
    "measure_ladder",
    "measure_touch",
    "rates_of",
    "run_backends",
    "step_arrays",
    "tables_step",
]
