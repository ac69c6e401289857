"""Runs requests through a scheduler, step after step, on a clock that the cost function moves."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apclab.blocks import BlockPool, BlockPoolV0
from apclab.engine.config import EngineConfig
from apclab.engine.plan import StepPlan
from apclab.engine.request import Request
from apclab.engine.scheduler_v0 import SchedulerV0
from apclab.engine.scheduler_v1 import SchedulerV1
from apclab.metrics import latencies, summary, tpot_terms

Columns = dict[str, NDArray[Any]]
# steps between two looks at the cancel flag
_LOOK = 256


class StepWork(NamedTuple):
    """What a step computes and reads; a cost function turns it into seconds.

    Attributes:
        prefill_tokens: prompt tokens computed, recomputed ones included.
        decode_tokens: requests that compute one generated token.
        table_entries: blocks in the tables of the step's requests.
        distinct_blocks: different ones among them.
        context_tokens: tokens that the step's requests read from the cache, each request's own.
        pairs: (query, key) pairs of attention.
        sampled: requests that get a token.
    """

    prefill_tokens: int
    decode_tokens: int
    table_entries: int
    distinct_blocks: int
    context_tokens: int
    pairs: int
    sampled: int


StepCost = Callable[[StepWork], float]
_INTEGERS = (*StepWork._fields, "preempted", "waiting", "running", "free_blocks")


class Stuck(RuntimeError):  # noqa: N818 - a state of the workload, not of the program
    """A request can never be finished; the message says which one and why."""


@dataclass(eq=False)
class Run:
    """What an engine did.

    Attributes:
        config: its settings.
        requests: those that it finished or aborted, as they came.
        steps: a column an entry: "start_s", "duration_s" (float64), "kind" ("prefill", "decode",
            "mixed"), the fields of `StepWork`, "preempted", "waiting", "running", "free_blocks".
        pool: the blocks afterwards.
        stopped: whether it was cancelled before all were finished.
    """

    config: EngineConfig
    requests: list[Request]
    steps: Columns
    pool: BlockPool | BlockPoolV0
    stopped: bool = False
    _times: dict[str, Any] = field(default_factory=dict)

    @property
    def end_s(self) -> NDArray[np.float64]:
        """The end of each step, float64 [steps], seconds."""
        ends: NDArray[np.float64] = self.steps["start_s"] + self.steps["duration_s"]
        return ends

    def finished(self) -> list[Request]:
        """Requests that got all their tokens."""
        return [request for request in self.requests if request.finish == "length"]

    def latencies(self) -> dict[str, NDArray[np.float64]]:
        """TTFT, TPOT, E2E of the finished requests, and all their ITLs; see `metrics`."""
        ends, done = self.end_s, self.finished()
        arrivals = np.array([request.arrival_s for request in done])
        return latencies(arrivals, [ends[np.array(request.token_steps)] for request in done])

    def summary(self) -> dict[str, float]:
        """Mean, median and p99 of the latencies, rates, and what the cache did."""
        done = self.finished()
        prompts = sum(request.num_prompt_tokens for request in done)
        hits = sum(max(0, request.first_hit_tokens) for request in done)
        total_s = float(self.end_s[-1]) if len(self.end_s) else 0.0
        outputs = sum(request.num_output_tokens for request in done)
        return {
            **summary(self.latencies()),
            "requests": float(len(done)),
            "steps": float(len(self.steps["start_s"])),
            "prompt_tokens": float(prompts),
            "output_tokens": float(outputs),
            "hit_rate": hits / prompts if prompts else 0.0,
            "preemptions": float(self.steps["preempted"].sum()),
            "total_s": total_s,
            "requests_per_s": len(done) / total_s if total_s else float("nan"),
            "output_tokens_per_s": outputs / total_s if total_s else float("nan"),
        }

    def tpot_terms(self) -> Columns:
        """What each finished request waited for between its tokens; see `metrics.tpot_terms`.

        With "request", "tokens" (gaps, output tokens - 1), "total_s" = E2E - TTFT, and "residual_s"
        = total_s less the sum of its terms: 0 but for the rounding of sums.
        """
        done, ends = self.finished(), self.end_s
        firsts = [request.token_steps[0] for request in done]
        lasts = [request.token_steps[-1] for request in done]
        terms = tpot_terms(
            self.steps["duration_s"], self.steps["kind"].tolist(),
            zip(firsts, lasts, [request.pauses for request in done], strict=True),
        )  # fmt: skip
        total = ends[np.array(lasts, np.int64)] - ends[np.array(firsts, np.int64)]
        explained = sum(terms[f"{name}_s"] for name in ("decode", "prefill", "mixed", "preemption"))
        return {
            "request": np.array([str(request.request_id) for request in done]),
            "tokens": np.array([request.num_output_tokens - 1 for request in done]),
            **terms,
            "total_s": total,
            "residual_s": total - explained,
        }


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
    queue = sorted(requests, key=lambda request: request.arrival_s)
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
