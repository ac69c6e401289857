"""The step engine: requests in, steps and their times out.

No clock is read and no kernel runs: time is what the cost function that comes in says.
"""

from apclab.engine.config import EngineConfig
from apclab.engine.loop import StepCost, Stuck, run
from apclab.engine.outcome import Run, StepWork
from apclab.engine.plan import StepPlan
from apclab.engine.request import Request, TooFewBlocks
from apclab.engine.scheduler_v0 import SchedulerV0
from apclab.engine.scheduler_v1 import SchedulerV1

__all__ = [
    "EngineConfig",
    "Request",
    "Run",
    "SchedulerV0",
    "SchedulerV1",
    "StepCost",
    "StepPlan",
    "StepWork",
    "Stuck",
    "TooFewBlocks",
    "run",
]
