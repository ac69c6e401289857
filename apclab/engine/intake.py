"""Requests for the engine, made from a workload or a trace."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from apclab.arguments import instance, positive, whole_number
from apclab.engine.request import Request
from apclab.workload import VOCABULARY, Workload


def workload_requests(
    workload: Workload, *, rate_per_s: float = float("inf"), samples: int = 1
) -> list[Request]:
    """A workload's requests; its primers are none of them, see `prime`.

    Args:
        workload: what is asked.
        rate_per_s: mean arrivals a second (Poisson, by the workload's seed); inf: all at the start.
        samples: answers to each prompt, at most 32,000: each is a request of its own that hits the
            prompt of the first, as vLLM does it.

    Raises:
        TypeError: an argument is of another type.
        ValueError: rate_per_s or samples out of range.
    """
    instance("workload", workload, Workload, "a Workload")
    samples = whole_number("samples", samples, 1, VOCABULARY)
    rate_per_s = positive("rate_per_s", rate_per_s, endless=True)
    gaps = np.random.default_rng(workload.seed).exponential(1 / rate_per_s, workload.batch)
    arrivals = np.cumsum(gaps) if rate_per_s < float("inf") else np.zeros(workload.batch)
    found = []
    for number, (prompt, output) in enumerate(
        zip(workload.prompts(), workload.generated(), strict=True)
    ):
        for sample in range(samples):
            # a sample's tokens are its own
            own = output if samples == 1 else (output.astype(np.int64) + 7919 * sample) % VOCABULARY
            name = number if samples == 1 else (number, sample)
            found.append(Request(name, float(arrivals[number]), workload.output_len, prompt, own))
    return found


def trace_requests(
    requests: Iterable[Any], block_size: int, trace_block_size: int | None
) -> Iterator[Request]:
    """A trace's requests, with its ids as keys; outputs are never asked for again.

    Args:
        requests: with arrival_s, input_len, output_len and hash_ids, as `traces.TraceRequest`.
        block_size: tokens of a block of the pool.
        trace_block_size: tokens of a block that an id names; None: the trace names none, so nothing
            is shared. A multiple of block_size: each id stands for several blocks of the pool.

    Raises:
        TypeError: block_size is no int.
        ValueError: block_size is below 1, or the sizes do not go together.
    """
    whole_number("block_size", block_size, 1)
    parts = 1
    if trace_block_size is not None:
        parts, rest = divmod(trace_block_size, block_size)
        if rest or not parts:
            raise ValueError(
                f"block_size must divide the trace's, {trace_block_size}, got {block_size}"
            )
    for number, request in enumerate(requests):
        ids = request.hash_ids
        keys = ids if parts == 1 else [i * parts + part for i in ids for part in range(parts)]
        # a key names a full block of the prompt; the partial last one is nobody else's
        yield Request(
            number, request.arrival_s, max(1, request.output_len),
            num_prompt_tokens=request.input_len, keys=keys[: request.input_len // block_size],
        )  # fmt: skip
