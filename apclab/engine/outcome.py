"""What an engine did: columns of steps, latencies, and what requests waited for. Runs nothing."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apclab.blocks import BlockPool, BlockPoolV0
from apclab.engine.config import EngineConfig
from apclab.engine.request import Request
from apclab.metrics import latencies, summary, tpot_terms

Columns = dict[str, NDArray[Any]]


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
        computed = self.steps["prefill_tokens"].sum() + self.steps["decode_tokens"].sum()
        # a last token needs no slot, so nobody computes it
        once = prompts - hits + outputs - len(done)
        return {
            **summary(self.latencies()),
            "requests": float(len(done)),
            "steps": float(len(self.steps["start_s"])),
            "prompt_tokens": float(prompts),
            "output_tokens": float(outputs),
            "hit_rate": hits / prompts if prompts else 0.0,
            "preemptions": float(self.steps["preempted"].sum()),
            # 0 where nobody was preempted or aborted
            "recomputed_tokens": float(computed - once),
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
