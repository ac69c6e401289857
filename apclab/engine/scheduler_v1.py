"""Scheduling as vLLM 0.33 does: one token budget, running requests first. No time, no cost.

Held to recorded behaviour of the real scheduler, step by step; see tests/test_engine_golden.py.
"""

from bisect import insort
from collections import deque

from apclab.blocks import BlockPool
from apclab.engine.config import EngineConfig
from apclab.engine.plan import StepPlan, sample
from apclab.engine.request import Request, make_known


class SchedulerV1:
    """Decides step by step who computes how many tokens, and gives them their blocks.

    Args:
        config: settings; its policy is "v1".
        pool: the blocks.

    Attributes:
        running: requests that hold blocks, by admission.
        waiting: requests that do not, next one first.
    """

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self.config = config
        self.pool = pool
        self.running: list[Request] = []
        self.waiting: deque[Request] | list[Request] = [] if config.queue == "priority" else deque()
        self._seats = config.max_num_active_seqs or config.max_num_seqs
        # for prefill_schedule_interval
        self._executed = 0
        self._last_prefill: int | None = None
        self._drained = True
        self._prompting: set[Request] = set()  # those with prompt left after their last step
        self._arrivals = 0

    def add(self, request: Request) -> None:
        """Queue a request; the pool hashes its tokens. ValueError if it can never run."""
        make_known(self.pool, request, self._arrivals)
        if request.arrival_order is None:
            request.arrival_order = float(self._arrivals)
        self._arrivals += 1
        self._enqueue(request)

    def schedule(self) -> StepPlan:
        """Decide one step: its requests have their blocks and count as computed."""
        plan = StepPlan()
        config = self.config
        held = config.prefill_schedule_interval > 1 and self._is_held()
        # both limits look at the requests that were there when the step began
        cap = self._cap()
        budget = self._run(plan, cap, held)
        if not plan.preempted:
            self._admit(plan, cap, held, budget)
        if config.prefill_schedule_interval > 1:
            self._remember(plan, held)
        return plan

    def update(self, plan: StepPlan, step: int) -> list[Request]:
        """End a step: requests without tokens to compute get one; finished ones leave.

        Args:
            plan: what `schedule` returned last.
            step: its number, noted with each token.

        Returns:
            The finished requests, in the order of the plan.
        """
        finished = sample(plan, self.pool, step, self.config.max_model_len)
        if finished:
            self.running = [request for request in self.running if not request.finish]
        return finished

    def abort(self, request: Request) -> None:
        """End a request at once."""
        request.finish = "abort"
        self._prompting.discard(request)
        self.pool.free(request.request_id)
        (self.running if request in self.running else self.waiting).remove(request)

    def reset(self, *, preempt_running: bool = False) -> tuple[bool, list[Request]]:
        """Forget everything cached.

        Args:
            preempt_running: take the blocks of all running requests first, the last one first, so
                that they keep their order.

        Returns:
            Whether it was done (never while requests hold blocks), and who was preempted.
        """
        preempted = []
        while preempt_running and self.running:
            preempted.append(self.running[-1])
            self._preempt(self.running[-1])
        return self.pool.reset(), preempted

    def _cap(self) -> int:
        """Most tokens that one request may have in this step."""
        config, there = self.config, len(self.running) + len(self.waiting)
        most = config.max_num_batched_tokens
        threshold = config.long_prefill_token_threshold
        if not threshold or there < 2:
            return most
        if config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, most // there)
        return min(most, threshold)

    def _run(self, plan: StepPlan, cap: int, held: bool) -> int:
        """Schedule running requests in order; the budget that is left."""
        budget = self.config.max_num_batched_tokens
        compute, scheduled = self.pool.compute, plan.scheduled
        i = 0
        while i < len(self.running) and budget > 0:
            request = self.running[i]
            record = request.pool
            missing = record.num_tokens - record.num_computed_tokens
            if held and request in self._prompting:
                i += 1
                continue
            n = min(missing, cap, budget)
            while compute(request.request_id, n) is None:
                victim = self._victim()
                plan.preempted.append(victim)
                i -= self.running.index(victim) < i
                for place, (other, tokens) in enumerate(scheduled):
                    if other is victim:
                        budget += tokens
                        del scheduled[place]
                        break
                self._preempt(victim)
                if victim is request:
                    break
            else:
                scheduled.append((request, n))
                budget -= n
                i += 1
        return budget

    def _victim(self) -> Request:
        if self.config.queue != "priority":
            return self.running[-1]
        return max(self.running, key=lambda r: (r.priority, r.arrival_order))

    def _preempt(self, request: Request) -> None:
        self.pool.preempt(request.request_id)
        request.num_preemptions += 1
        self._prompting.discard(request)
        self.running.remove(request)
        if isinstance(self.waiting, deque):
            self.waiting.appendleft(request)
        else:
            self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        if isinstance(self.waiting, deque):
            self.waiting.append(request)
        else:
            insort(self.waiting, request, key=_rank)

    def _admit(self, plan: StepPlan, cap: int, held: bool, budget: int) -> None:
        """Admit from the queue while budget, seats and blocks last; nobody is skipped."""
        config, pool = self.config, self.pool
        looks_first = held or not config.enable_chunked_prefill
        while self.waiting and budget > 0 and len(self.running) < self._seats:
            request = self._next()
            record = request.pool
            most = min(cap, budget)
            if looks_first:
                missing = record.num_tokens - pool.lookup(request.request_id).num_tokens
                if held and missing > 1:
                    return
                if not config.enable_chunked_prefill:
                    if min(missing, cap) > budget:
                        return
                    most = cap
            hit = pool.admit(
                request.request_id, most, full_sequence_must_fit=config.scheduler_reserve_full_isl
            )
            if hit is None:
                return
            n = record.num_computed_tokens - hit.num_tokens
            if request.first_hit_tokens < 0:
                request.first_hit_tokens = hit.num_tokens
            self.waiting.remove(request) if self.config.queue == "lpm" else _pop(self.waiting)
            self.running.append(request)
            plan.admitted.append(request)
            plan.scheduled.append((request, n))
            budget -= n

    def _next(self) -> Request:
        if self.config.queue != "lpm":
            return self.waiting[0]
        lookup = self.pool.lookup
        # the first of the longest: as they came among equals
        return max(self.waiting, key=lambda request: lookup(request.request_id).num_tokens)

    def _is_held(self) -> bool:
        if self._last_prefill is None or not self._drained:
            return False
        if self._executed - self._last_prefill >= self.config.prefill_schedule_interval:
            return False
        return any(request not in self._prompting for request in self.running)

    def _remember(self, plan: StepPlan, held: bool) -> None:
        if not plan.scheduled:
            return
        before = self._prompting
        left = {request for request, _ in plan.scheduled if _missing(request) > 0}
        # the last chunk of a prompt may be one token; an admission that lacks one is no prefill
        if any(n > 1 or request in before or request in left for request, n in plan.scheduled):
            self._last_prefill = self._executed
        self._prompting = left | before.difference(request for request, _ in plan.scheduled)
        if not held and not plan.preempted:
            self._drained = not self.waiting
        self._executed += 1


def _rank(request: Request) -> tuple[object, ...]:
    return (request.priority, request.arrival_order, request.request_id)


def _missing(request: Request) -> int:
    return request.pool.num_tokens - request.pool.num_computed_tokens


def _pop(waiting: "deque[Request] | list[Request]") -> None:
    waiting.popleft() if isinstance(waiting, deque) else waiting.pop(0)
