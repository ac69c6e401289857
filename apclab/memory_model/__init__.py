"""What memory asks of a kernel and of a step, in formulas. Nothing is measured or compiled here."""

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
    "roofline_step",
]
