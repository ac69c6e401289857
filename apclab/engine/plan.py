"""What a scheduler decided for one step, and how the step ends. No decision is made here."""

from dataclasses import dataclass, field

from apclab.blocks import BlockPool, BlockPoolV0
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


def sample(
    plan: StepPlan, pool: BlockPool | BlockPoolV0, step: int, longest: int | None
) -> list[Request]:
    """End a step: whoever has all its tokens computed gets one more, and may be done with it.

    Args:
        plan: the step.
        pool: finished requests give their blocks back to it, in the order of the plan.
        step: its number, noted with each token.
        longest: tokens at which a request ends in any case.

    Returns:
        The finished requests. Their last token gets no slot.
    """
    finished = []
    generate = pool.generate
    for request, _ in plan.scheduled:
        record = request.pool
        if record.num_computed_tokens < record.num_tokens:
            continue
        request.num_output_tokens += 1
        request.token_steps.append(step)
        if request.num_output_tokens == request.max_tokens or (
            longest is not None and record.num_tokens + 1 >= longest
        ):
            request.finish = "length"
            finished.append(request)
        else:
            generate(request.request_id)
    for request in finished:
        pool.free(request.request_id)
    return finished
