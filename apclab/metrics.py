"""Latencies from time stamps, and where the time between tokens went. No engine, no model.

Definitions are those of `vllm bench serve`: TTFT = first token - arrival, E2E = last token -
arrival, TPOT = (E2E - TTFT) / (output tokens - 1) for requests of more than one token, a mean over
*requests*; ITL = gaps between tokens, pooled over all *tokens*. So mean TPOT and mean ITL differ
where lengths do.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

PERCENTILES = (50, 99)
METRICS = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
# what a step is to a request that waits for its next token
TERMS = ("decode", "prefill", "mixed", "preemption")


def latencies(arrival_s: Float64, token_times_s: Sequence[Float64]) -> dict[str, Float64]:
    """TTFT, TPOT and E2E of each request, ITL of each gap.

    Args:
        arrival_s: float64 [requests], seconds.
        token_times_s: the times of each request's tokens, float64 [tokens] each, at least one.

    Returns:
        ttft_s, tpot_s (NaN for one token) and e2e_s float64 [requests], itl_s float64 [gaps].

    Raises:
        ValueError: a request has no token, or one before its arrival.
    """
    for number, times in enumerate(token_times_s):
        if len(times) == 0:
            raise ValueError(
                f"token_times_s must hold at least one time each, got none of {number}"
            )
        if times[0] < arrival_s[number]:
            raise ValueError(
                f"token_times_s[{number}] starts at {times[0]:g} s, before the arrival at "
                f"{arrival_s[number]:g} s"
            )
    first = np.array([times[0] for times in token_times_s], np.float64)
    last = np.array([times[-1] for times in token_times_s], np.float64)
    counts = np.array([len(times) for times in token_times_s])
    gaps = [np.diff(times) for times in token_times_s]
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(counts > 1, (last - first) / (counts - 1), np.nan)
    return {
        "ttft_s": first - arrival_s,
        "tpot_s": tpot,
        "itl_s": np.concatenate([*gaps, np.empty(0)]),
        "e2e_s": last - arrival_s,
    }


def summary(found: Mapping[str, Float64]) -> dict[str, float]:
    """Mean, median and 99th percentile of each latency, NaN where there is none.

    Args:
        found: what `latencies` returns.

    Returns:
        "ttft_s_mean", "ttft_s_p50", "ttft_s_p99" and so on, in seconds.
    """
    rows: dict[str, float] = {}
    for name in METRICS:
        values = found[name][np.isfinite(found[name])]
        rows[f"{name}_mean"] = float(values.mean()) if len(values) else float("nan")
        for percent in PERCENTILES:
            value = float(np.percentile(values, percent)) if len(values) else float("nan")
            rows[f"{name}_p{percent}"] = value
    return rows


def tpot_terms(
    step_s: Float64, kinds: Sequence[str], spans: Iterable[tuple[int, int, Sequence[Sequence[int]]]]
) -> dict[str, NDArray[Any]]:
    """The identity of issue 4860, term by term: what each request waited for between its tokens.

    (output tokens - 1) * TPOT = decode steps + prefill pauses + mixed steps + preemption. A
    mixed step computes prompts and tokens together, so its time is neither; while a request is
    preempted, and until it has computed again what it lost, all steps count as preemption.

    Args:
        step_s: float64 [steps], duration of each step.
        kinds: [steps], "decode", "prefill" or "mixed".
        spans: of each request the step of its first and of its last token, and the steps
            [from, to] in which it was preempted.

    Returns:
        Of each request "steps_decode" and so on, int64 counts, and "decode_s" and so on, seconds.
    """
    names = {kind: code for code, kind in enumerate(TERMS[:3])}
    code = np.array([names[kind] for kind in kinds], np.int64)
    # [kind, steps + 1]: time and number of steps of a kind before a step
    one_hot = (code[None, :] == np.arange(3)[:, None]).astype(np.int64)
    counted = np.concatenate([np.zeros((3, 1), np.int64), np.cumsum(one_hot, 1)], 1)
    rows: list[list[Any]] = []
    for first, last, pauses in spans:
        counts = counted[:, last + 1] - counted[:, first + 1]
        times = [float(step_s[first + 1 : last + 1][code[first + 1 : last + 1] == k].sum())
                 for k in range(3)]  # fmt: skip
        lost, lost_s = 0, 0.0
        for start, end in pauses:
            start, end = max(start, first + 1), min(end, last)
            if end < start:
                continue
            lost += end - start + 1
            lost_s += float(step_s[start : end + 1].sum())
            counts = counts - (counted[:, end + 1] - counted[:, start])
            for k in range(3):
                times[k] -= float(step_s[start : end + 1][code[start : end + 1] == k].sum())
        rows.append([*counts.tolist(), lost, *times, lost_s])
    table = np.array(rows, np.float64).reshape(-1, 8)
    steps = {f"steps_{name}": table[:, i].astype(np.int64) for i, name in enumerate(TERMS)}
    return {**steps, **{f"{name}_s": table[:, 4 + i] for i, name in enumerate(TERMS)}}
