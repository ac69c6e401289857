"""Measured comparisons: real pool -> block tables -> checked launches -> timed -> records.

No kernel and no clock lives here, no formula of a model.
"""

from apclab.bench.bound import WrongResult
from apclab.bench.buffers import release
from apclab.bench.calibrate import calibrate, rates_of
from apclab.bench.compare import compare_decode, compare_tables
from apclab.bench.correct import Check, check_kernel, checks
from apclab.bench.here import describe, device_answers
from apclab.bench.how import CASES, How
from apclab.bench.memory import OutOfMemory
from apclab.bench.numbers import check_backends, run_backends, step_arrays
from apclab.bench.once import PROFILED_CASES, launch_once
from apclab.bench.probes import Ladder, measure_ladder
from apclab.bench.splits import compare_splits
from apclab.bench.step import Step, decode_step, tables_step

__all__ = [
    "CASES",
    "PROFILED_CASES",
    "Check",
    "How",
    "Ladder",
    "OutOfMemory",
    "Step",
    "WrongResult",
    "calibrate",
    "check_backends",
    "check_kernel",
    "checks",
    "compare_decode",
    "compare_splits",
    "compare_tables",
    "decode_step",
    "describe",
    "device_answers",
    "launch_once",
    "measure_ladder",
    "rates_of",
    "release",
    "run_backends",
    "step_arrays",
    "tables_step",
]
