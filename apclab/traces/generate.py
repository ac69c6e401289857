"""Synthetic traffic with a target hit rate, and traces written in Mooncake's format."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from apclab.arguments import fraction, positive, real, whole_number
from apclab.traces.request import TraceRequest


def generate(
    requests: int,
    *,
    cache_hit: float = 0.5,
    groups: int = 100,
    zipf: float = 1.0,
    input_len: int = 2048,
    output_len: int = 128,
    rate_per_s: float = 10.0,
    block_size: int = 16,
    seed: int = 0,
) -> Iterator[TraceRequest]:
    """Requests whose prompts share prefixes with their group, so that a chosen part of all is hit.

    Groups are drawn by Zipf's law, the k-th with weight 1 / k**zipf. Lengths are geometric around
    the given means, arrivals Poisson. A request's shared prefix is as long as the trace's hit rate
    so far asks for: longer below the target, shorter above it. A group's first request finds
    nothing, so a high target is met later, and never where too few requests share a group.

    Args:
        requests: how many.
        cache_hit: hit tokens / prompt tokens of the whole trace in a cache without limit, 0 to 1.
        groups: different prefixes.
        zipf: exponent, 0 makes all groups equally likely.
        input_len: mean prompt tokens, at least a block.
        output_len: mean generated tokens, at least 1.
        rate_per_s: mean arrivals a second.
        block_size: tokens of a block.
        seed: of the random numbers.

    Raises:
        TypeError, ValueError: an argument is of another type, or out of range.
    """
    asked = (
        requests, cache_hit, groups, zipf, input_len, output_len, rate_per_s, block_size, seed,
    )  # fmt: skip
    _check(*asked)
    return _requests(*asked)


def _check(
    requests: int, cache_hit: float, groups: int, zipf: float, input_len: int, output_len: int,
    rate_per_s: float, block_size: int, seed: int,
) -> None:  # fmt: skip
    counts = {
        "requests": requests, "groups": groups, "input_len": input_len, "output_len": output_len,
        "block_size": block_size,
    }  # fmt: skip
    for name, value in counts.items():
        whole_number(name, value, 1)
    whole_number("seed", seed, 0)
    if input_len < block_size:
        raise ValueError(f"input_len must be at least block_size, {block_size}, got {input_len}")
    fraction("cache_hit", cache_hit)
    if not 0 <= real("zipf", zipf) <= 10:
        raise ValueError(f"zipf must be between 0 and 10, got {zipf}")
    positive("rate_per_s", rate_per_s)


def _requests(
    requests: int, cache_hit: float, groups: int, zipf: float, input_len: int, output_len: int,
    rate_per_s: float, block_size: int, seed: int,
) -> Iterator[TraceRequest]:  # fmt: skip
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, groups + 1) ** zipf
    cumulative = np.cumsum(weights / weights.sum())
    chains: list[list[int]] = [[] for _ in range(groups)]  # ids of each group's prefix
    next_id, arrival_s, tokens, hit_tokens = 0, 0.0, 0, 0
    for _ in range(requests):
        arrival_s += rng.exponential(1 / rate_per_s)
        chain = chains[min(int(np.searchsorted(cumulative, rng.random())), groups - 1)]
        length = max(block_size, int(rng.geometric(1 / input_len)))
        full, blocks = length // block_size, -(-length // block_size)
        tokens += length
        wanted = round((cache_hit * tokens - hit_tokens) / block_size)
        shared = min(max(wanted, 0), full, len(chain))
        own = range(next_id, next_id + blocks - shared)
        next_id += len(own)
        if shared == len(chain):  # the group knows all of its prefix: this prompt makes it longer
            chain.extend(own[: full - shared])
        hit_tokens += shared * block_size
        yield TraceRequest(
            arrival_s, length, int(rng.geometric(1 / output_len)), (*chain[:shared], *own)
        )


def write_trace(path: Path | str, requests: Iterable[TraceRequest], block_size: int) -> int:
    """Write requests as Mooncake's JSON Lines, with the block size in each line.

    Returns:
        How many.

    Raises:
        OSError: the file cannot be written.
    """
    count = 0
    with Path(path).open("w", encoding="utf-8") as file:
        for request in requests:
            line = {
                "timestamp": round(request.arrival_s * 1e3, 3),
                "input_length": request.input_len,
                "output_length": request.output_len,
                "block_size": block_size,
                "hash_ids": request.hash_ids,
            }
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            count += 1
    return count
