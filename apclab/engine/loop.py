"""Runs requests through a scheduler, step after step, on a clock that the cost function moves."""

from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from apclab.blocks import BlockPool, BlockPoolV0
from apclab.engine.config import EngineConfig
from apclab.engine.outcome import Columns, Run, StepWork
from apclab.engine.plan import StepPlan
from apclab.engine.request import Request
from apclab.engine.scheduler_v0 import SchedulerV0
from apclab.engine.scheduler_v1 import SchedulerV1

# steps between two looks at the cancel flag
_LOOK = 256

StepCost = Callable[[StepWork], float]
_INTEGERS = (*StepWork._fields, "preempted", "waiting", "running", "free_blocks")


class Stuck(RuntimeError):  # noqa: N818 - a state of the workload, not of the program
    """A request can never be finished; the message says which one and why."""


def run(
    requests: Iterable[Request],
    config: EngineConfig,
    pool: BlockPool | BlockPoolV0,
    step_cost: StepCost,
    *,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Run:
    """Run requests to their end.

    Args:
        requests: in any order; each is used up, so a second run needs new ones.
        config: settings; policy "v0" needs a `BlockPoolV0`.
        pool: the blocks, perhaps with something cached.
        step_cost: seconds of a step, above 0.
        cancelled: asked now and then; true stops.
        progress: told the part of the requests that is finished, 0 to 1, and where the run is.

    Returns:
        The steps, and the requests with the steps of their tokens.

    Raises:
        Stuck: a request can never be finished.
        TypeError: pool and policy do not go together.
        ValueError: a request is wrong, two have one name, or the cost is no time.
    """
    if isinstance(pool, BlockPoolV0) != (config.policy == "v0"):
        raise TypeError(f"policy {config.policy} does not go with a {type(pool).__name__}")
    scheduler: SchedulerV1 | SchedulerV0
    if isinstance(pool, BlockPoolV0):
        scheduler = SchedulerV0(config, pool)
    else:
        scheduler = SchedulerV1(config, pool)
    queue = []
    for number, request in enumerate(requests, start=1):
        queue.append(request)
        # reading a trace takes its time, too
        if number % _LOOK == 0 and cancelled and cancelled():
            break
    queue.sort(key=lambda request: request.arrival_s)
    return _Loop(scheduler, config, pool, step_cost, queue).run(cancelled, progress)


class _Loop:
    """One run under way."""

    def __init__(
        self,
        scheduler: SchedulerV1 | SchedulerV0,
        config: EngineConfig,
        pool: BlockPool | BlockPoolV0,
        step_cost: StepCost,
        queue: Sequence[Request],
    ) -> None:
        self.scheduler, self.config, self.pool = scheduler, config, pool
        self.step_cost, self.queue = step_cost, queue
        self.starts, self.durations = array("d"), array("d")
        self.kinds: list[str] = []
        self.columns = {name: array("q") for name in _INTEGERS}
        self.paused: list[Request] = []  # preempted, and not yet where they were

    def run(
        self,
        cancelled: Callable[[], bool] | None,
        progress: Callable[[float, str], None] | None,
    ) -> Run:
        now, step, arrived, done = 0.0, 0, 0, 0
        scheduler, queue = self.scheduler, self.queue
        stopped = False
        idle = 0
        while arrived < len(queue) or scheduler.running or scheduler.waiting:
            if step % _LOOK == 0:
                if cancelled and cancelled():
                    stopped = True
                    break
                if progress:
                    progress(done / len(queue), f"{now:.1f} s, {done} of {len(queue)} requests")
            if not scheduler.running and not scheduler.waiting:
                now = max(now, queue[arrived].arrival_s)
            while arrived < len(queue) and queue[arrived].arrival_s <= now:
                scheduler.add(queue[arrived])
                arrived += 1
            plan = scheduler.schedule()
            if not plan.scheduled:
                idle += 1
                if idle > 2:
                    raise Stuck(self._why())
                self._pause(plan, step)
                continue
            idle = 0
            work = self._work(plan)
            duration = self.step_cost(work)
            if not 0 < duration < float("inf"):
                raise ValueError(
                    f"step_cost must return seconds above 0, got {duration!r} for {work}"
                )
            self._note(now, duration, work, plan)
            for request in plan.admitted:
                if request.first_step < 0:
                    request.first_step = step
            self._pause(plan, step)
            done += len(scheduler.update(plan, step))
            if self.paused:
                self._resume(step)
            now += duration
            step += 1
        return Run(self.config, list(queue[:arrived]), self._columns(), self.pool, stopped)

    def _work(self, plan: StepPlan) -> StepWork:
        prefill = prompts = prompts_done = entries = context = pairs = 0
        scheduled = plan.scheduled
        for request, n in scheduled:
            record = request.pool
            computed = record.num_computed_tokens
            entries += len(record.block_ids)
            context += computed
            if n > 1 or not request.num_output_tokens:
                prefill += n
                prompts += 1
                prompts_done += computed == record.num_tokens
                # beyond one pair a cached token: the last of n new tokens sees all, others less
                pairs += (n - 1) * computed - n * (n - 1) // 2
        decode = len(scheduled) - prompts
        if len(plan.scheduled) == len(self.scheduler.running):
            distinct = self.pool.num_blocks - 1 - self.pool.num_free
        else:
            distinct = len({b for request, _ in plan.scheduled for b in request.pool.block_ids})
        return StepWork(
            prefill, decode, entries, distinct, context, context + pairs, decode + prompts_done
        )

    def _note(self, now: float, duration: float, work: StepWork, plan: StepPlan) -> None:
        self.starts.append(now)
        self.durations.append(duration)
        if not work.prefill_tokens:
            self.kinds.append("decode")
        else:
            self.kinds.append("mixed" if work.decode_tokens else "prefill")
        more = (
            len(plan.preempted), len(self.scheduler.waiting), len(self.scheduler.running),
            self.pool.num_free,
        )  # fmt: skip
        for column, value in zip(self.columns.values(), (*work, *more), strict=True):
            column.append(value)

    def _pause(self, plan: StepPlan, step: int) -> None:
        for request in plan.preempted:
            if request not in self.paused:
                request.pauses.append([step, step])
                self.paused.append(request)

    def _resume(self, step: int) -> None:
        """Whoever has a token again is where it was; until then each step is part of its pause."""
        still = []
        for request in self.paused:
            request.pauses[-1][1] = step
            if not request.token_steps or request.token_steps[-1] != step:
                still.append(request)
        self.paused = still

    def _why(self) -> str:
        waiting = self.scheduler.waiting
        request = (self.scheduler.running or list(waiting))[0]
        needed = -(-request.pool.num_tokens // self.pool.block_size)
        return (
            f"request {request.request_id!r} cannot go on: its {request.pool.num_tokens} tokens "
            f"need {needed} blocks of {self.pool.block_size}, the pool has "
            f"{self.pool.num_blocks - 1}, {self.pool.num_free} of them free"
        )

    def _columns(self) -> Columns:
        return {
            "start_s": np.array(self.starts, np.float64),
            "duration_s": np.array(self.durations, np.float64),
            "kind": np.array(self.kinds, dtype=object),
            **{name: np.array(column, np.int64) for name, column in self.columns.items()},
        }
