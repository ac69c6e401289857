"""What a pool counts: hits in tokens, and how long blocks live. Nothing here reads a clock."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from apclab.arguments import fraction, whole_number


class HitRate:
    """Hits in tokens over the last requests.

    The oldest entries leave as soon as the others hold `window` requests, the newest always stays.

    Args:
        window: requests.

    Raises:
        TypeError: window is no int.
        ValueError: window is below 1.

    Source: CachingMetrics of vLLM 0.33.0, vllm/v1/metrics/stats.py.
    """

    __slots__ = ("_entries", "hits", "queries", "requests", "window")

    def __init__(self, window: int = 1000) -> None:
        self.window = whole_number("window", window, 1)
        self._entries: deque[tuple[int, int, int]] = deque()
        self.requests = 0
        self.queries = 0
        self.hits = 0

    def observe(self, requests: int, queries: int, hits: int) -> None:
        """Add requests that asked for `queries` tokens and found `hits`; none is no entry."""
        if not requests:
            return
        entries = self._entries
        entries.append((requests, queries, hits))
        self.requests += requests
        self.queries += queries
        self.hits += hits
        while self.requests > self.window and len(entries) > 1:
            old_requests, old_queries, old_hits = entries.popleft()
            self.requests -= old_requests
            self.queries -= old_queries
            self.hits -= old_hits

    def reset(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.requests = self.queries = self.hits = 0

    @property
    def rate(self) -> float:
        """Hit tokens / asked tokens, 0 to 1; 0.0 before the first request."""
        return self.hits / self.queries if self.queries else 0.0


@dataclass(slots=True)
class PrefixCacheStats:
    """Requests that were admitted, and their tokens that were asked for and found.

    A request counts once, when it is admitted: not when it is looked up, nor when it is refused,
    nor when it does not read the cache. One that was preempted before counts in `preempted_*`
    each time that it is admitted again, with its generated tokens, and not in the rates.
    """

    requests: int = 0
    queries: int = 0  # tokens
    hits: int = 0  # tokens
    preempted_requests: int = 0
    preempted_queries: int = 0  # tokens
    preempted_hits: int = 0  # tokens
    # queries and hits of the newest requests; summed up only when somebody asks
    newest: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=1000))

    @property
    def recent(self) -> HitRate:
        """Of the last 1000 requests, since the last reset of the pool."""
        rate = HitRate(self.newest.maxlen or 1)
        for queries, hits in self.newest:
            rate.observe(1, queries, hits)
        return rate

    @property
    def hit_rate(self) -> float:
        """Hit tokens / asked tokens since the pool was made, 0 to 1; 0.0 before any request."""
        return self.hits / self.queries if self.queries else 0.0

    def count(self, queries: int, hits: int, *, preempted: bool) -> None:
        """One admission of so many tokens."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += queries
            self.preempted_hits += hits
            return
        self.requests += 1
        self.queries += queries
        self.hits += hits
        self.newest.append((queries, hits))

    def counters(self) -> tuple[int, int, int, int, int, int]:
        """The six numbers, in the order of the fields."""
        return (
            *(self.requests, self.queries, self.hits),
            *(self.preempted_requests, self.preempted_queries, self.preempted_hits),
        )


class Residency(NamedTuple):
    """How a block was used between two times that it was handed out. Seconds."""

    lifetime: float  # since it was handed out
    idle: float  # since its last hit; since it was handed out if it had none
    reuse_gaps: list[float]  # between its last four hits


class Lifetimes:
    """Lifetimes of blocks; the pool's `now` tells the time.

    Args:
        sample: fraction of the blocks handed out that are followed, above 0, at most 1.
        seed: of the choice.
        keep: most residencies kept, the newest; None keeps all.

    Raises:
        TypeError: sample is no number, seed or keep no int.
        ValueError: sample is not in (0, 1], seed is negative, keep below 1.

    Source: KVCacheMetricsCollector of vLLM 0.33.0.
    """

    HISTORY = 4  # hits remembered of a block

    def __init__(self, sample: float = 1.0, *, seed: int = 0, keep: int | None = None) -> None:
        self.sample = fraction("sample", sample)
        if self.sample == 0:
            raise ValueError("sample must be above 0 and at most 1, got 0")
        self._random = random.Random(whole_number("seed", seed, 0))
        keep = None if keep is None else whole_number("keep", keep, 1)
        self.residencies: deque[Residency] = deque(maxlen=keep)
        # block -> when it was handed out, and its last hits
        self._followed: dict[int, tuple[float, deque[float]]] = {}

    def taken(self, block_ids: list[int], now: float) -> None:
        """Blocks were handed out: earlier residencies of theirs end."""
        for block in block_ids:
            self.ended(block, now)
            if self.sample == 1 or self._random.random() < self.sample:
                self._followed[block] = (now, deque(maxlen=self.HISTORY))

    def hit(self, block_ids: list[int], now: float) -> None:
        """Blocks were found by a request that was admitted."""
        for block in block_ids:
            if block in self._followed:
                self._followed[block][1].append(now)

    def ended(self, block_id: int, now: float) -> None:
        """A block lost its content."""
        if (followed := self._followed.pop(block_id, None)) is None:
            return
        born, hits = followed
        gaps = [late - early for early, late in zip(hits, list(hits)[1:], strict=False)]
        self.residencies.append(Residency(now - born, now - (hits[-1] if hits else born), gaps))

    def reset(self) -> None:
        """Forget the blocks that are followed; finished residencies stay."""
        self._followed.clear()
