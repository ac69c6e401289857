"""What a scheduler decided for one step. No decision is made here."""

from dataclasses import dataclass, field

from apclab.engine.request import Request


@dataclass(slots=True)
class StepPlan:
    """One step.

    Attributes:
        scheduled: requests and their tokens, in order.
        admitted: requests that left the queue in this step, in order.
        preempted: requests that lost their blocks while it was scheduled, in order.
    """

    scheduled: list[tuple[Request, int]] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
