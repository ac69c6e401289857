"""What memory asks of a kernel, a step and a pool, in formulas. Nothing is measured here."""

from apclab.memory_model.kernel import (
    LEAST_RATIO,
    Flight,
    Occupancy,
    bytes_needed,
    flight,
    kernel_frame,
    kernel_table,
    occupancy,
)
from apclab.memory_model.pool import pool_blocks, pool_gb
from apclab.memory_model.step import (
    StepRates,
    calibrated_rates,
    device_rates,
    roofline_step,
)

__all__ = [
    "LEAST_RATIO",
    "Flight",
    "Occupancy",
    "StepRates",
    "bytes_needed",
    "calibrated_rates",
    "device_rates",
    "flight",
    "kernel_frame",
    "kernel_table",
    "occupancy",
    "pool_blocks",
    "pool_gb",
    "roofline_step",
]
