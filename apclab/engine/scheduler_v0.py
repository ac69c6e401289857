"""Scheduling as vLLM did in May 2024, the weeks of issue 4860. No time, no cost.

Steps are of one kind: as many whole prompts as fit, else one token for each running request. All
tokens of a prompt count against the budget, cached ones too. Source: vLLM at 00a456f,
vllm/core/scheduler.py, as read for the lab; there is no recording of it.
"""

from collections import deque

from apclab.blocks import BlockPoolV0
from apclab.engine.config import EngineConfig
from apclab.engine.plan import StepPlan, sample
from apclab.engine.request import Request, make_known


class SchedulerV0:
    """Decides step by step, prefill first.

    Args:
        config: settings; its policy is "v0".
        pool: the blocks.

    Attributes:
        running: requests that hold blocks, as they came.
        waiting: requests that do not, next one first.
    """

    def __init__(self, config: EngineConfig, pool: BlockPoolV0) -> None:
        self.config = config
        self.pool = pool
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._arrivals = 0

    def add(self, request: Request) -> None:
        """Queue a request. ValueError if its prompt exceeds the budget or the pool."""
        if request.num_prompt_tokens > self.config.max_num_batched_tokens:
            raise ValueError(
                f"policy v0 takes whole prompts: {request.num_prompt_tokens} tokens exceed "
                f"max_num_batched_tokens {self.config.max_num_batched_tokens} "
                f"(request {request.request_id!r})"
            )
        make_known(self.pool, request, self._arrivals)
        request.arrival_order = float(self._arrivals)
        self._arrivals += 1
        self.waiting.append(request)

    def schedule(self) -> StepPlan:
        """Decide one step: its requests have their blocks and count as computed."""
        plan = StepPlan()
        self.pool.now += 1
        self._prefill(plan)
        if not plan.scheduled:
            self._decode(plan)
        return plan

    def _prefill(self, plan: StepPlan) -> None:
        budget = self.config.max_num_batched_tokens
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            tokens = request.pool.num_tokens
            hit = None if tokens > budget else self.pool.admit(request.request_id)
            if hit is None:
                return
            budget -= tokens
            self.waiting.popleft()
            self.running.append(request)
            if request.first_hit_tokens < 0:
                request.first_hit_tokens = hit.num_tokens
            plan.admitted.append(request)
            plan.scheduled.append((request, tokens - hit.num_tokens))

    def _decode(self, plan: StepPlan) -> None:
        for request in list(self.running):
            if request in plan.preempted:
                break
            while self.pool.compute(request.request_id) is None:
                victim = self.running[-1]
                self._preempt(victim)
                plan.preempted.append(victim)
                if victim is request:
                    return
            plan.scheduled.append((request, 1))

    def _preempt(self, request: Request) -> None:
        self.pool.preempt(request.request_id)
        request.num_preemptions += 1
        self.running.remove(request)
        self.waiting.appendleft(request)

    def update(self, plan: StepPlan, step: int) -> list[Request]:
        """End a step; as `SchedulerV1.update`."""
        finished = sample(plan, self.pool, step, self.config.max_model_len)
        if finished:
            self.running = [request for request in self.running if not request.finish]
        return finished

    def abort(self, request: Request) -> None:
        """End a request at once."""
        request.finish = "abort"
        self.pool.free(request.request_id)
        (self.running if request in self.running else self.waiting).remove(request)
