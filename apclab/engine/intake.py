"""Requests for the engine, made from a workload or a trace."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np

from apclab.arguments import instance, positive, whole_number
from apclab.engine.request import Request
from apclab.workload import VOCABULARY, Workload

# of a request through a run, of a key of it, in the pool, too, and of a generated token: all held
REQUEST_BYTES, KEY_BYTES, TOKEN_BYTES = 1500, 60, 8
MOST_BYTES = 2**33


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
    requests: Iterable[tuple[Hashable, Any]],
    block_size: int,
    trace_block_size: int | None,
    *,
    most_bytes: int = MOST_BYTES,
) -> Iterator[Request]:
    """A trace's requests, with its ids as keys; outputs are never asked for again.

    Args:
        requests: a name each, such as the place in the file (`traces.Trace.located`), and what has
            arrival_s, input_len, output_len and hash_ids, as `traces.TraceRequest`.
        block_size: tokens of a block of the pool.
        trace_block_size: tokens of a block that an id names; None: the trace names none, so nothing
            is shared. A multiple of block_size: each id stands for several blocks of the pool.
        most_bytes: memory that all of them may take; a run holds them to its end.

    Raises:
        TypeError: block_size is no int.
        ValueError: block_size is below 1, the sizes do not go together, or the requests take too
            much memory.
    """
    whole_number("block_size", block_size, 1)
    parts = 1
    if trace_block_size is not None:
        parts, rest = divmod(trace_block_size, block_size)
        if rest or not parts:
            raise ValueError(
                f"block_size must divide the trace's, {trace_block_size}, got {block_size}"
            )
    held = 0
    for number, (name, request) in enumerate(requests, start=1):
        held += REQUEST_BYTES + KEY_BYTES * parts * len(request.hash_ids)
        held += TOKEN_BYTES * request.output_len
        if held > most_bytes:
            raise ValueError(
                f"{name}: the {number:,} requests up to here take {held / 1e9:.3g} GB "
                f"({REQUEST_BYTES} bytes each, {KEY_BYTES} a block of {block_size}, {TOKEN_BYTES} "
                f"a generated token), "
                f"{most_bytes / 1e9:.3g} may be taken: read fewer requests (limit, --limit)"
            )
        ids = request.hash_ids
        keys = ids if parts == 1 else [i * parts + part for i in ids for part in range(parts)]
        # a key names a full block of the prompt; the partial last one is nobody else's
        yield Request(
            name, request.arrival_s, max(1, request.output_len),
            num_prompt_tokens=request.input_len, keys=keys[: request.input_len // block_size],
        )  # fmt: skip
