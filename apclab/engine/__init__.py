"""The step engine: requests in, steps and their times out. What a step costs comes in as a function.

No clock is read and no kernel runs: time is what the cost function says.
"""

from apclab.engine.config import EngineConfig
from apclab.engine.plan import StepPlan
from apclab.engine.request import Request
from apclab.engine.scheduler_v1 import SchedulerV1

__all__ = ["EngineConfig", "Request", "SchedulerV1", "StepPlan"]
