"""What a pool tells whoever watches it: hits in tokens, events of keys, lifetimes of blocks.

The pool names what happened, once; here it is counted, written down and timed, as far as asked.
Times are the pool's `now`, seconds.
"""

from apclab.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from apclab.blocks.keys import TOKEN_BYTES, Key
from apclab.blocks.request import Request
from apclab.blocks.stats import Lifetimes, PrefixCacheStats


class Observer:
    """Statistics, events and lifetimes of one pool.

    Args:
        block_size: tokens per block.
        record_events: keep what happens to keys for `take_events`.
        lifetimes: follows blocks from hand-out to hand-out.

    Attributes:
        stats: what was asked for and found, in tokens.
        num_evicted: keys dropped because their block was handed out again, or by hand.
        events: since the last `take_events`; None: not recorded.
    """

    def __init__(
        self, block_size: int, *, record_events: bool, lifetimes: Lifetimes | None
    ) -> None:
        self.block_size = block_size
        self.stats = PrefixCacheStats()
        self.events: list[Event] | None = [] if record_events else None
        self.lifetimes = lifetimes
        self.num_evicted = 0

    def admitted(self, request: Request, found: list[int], now: float, *, reads: bool) -> None:
        """A request was admitted with these blocks of the cache; whether it looked for them."""
        if self.lifetimes is not None:
            self.lifetimes.hit(found, now)
        if reads:
            again = request.num_preemptions > 0
            self.stats.count(request.num_tokens, request.num_cached_tokens, preempted=again)

    def taken(self, block_ids: list[int], dropped: list[Key], now: float) -> None:
        """Blocks were handed out, and lost these keys."""
        if dropped:
            self._removed(dropped)
        if self.lifetimes is not None:
            self.lifetimes.taken(block_ids, now)

    def evicted(self, block_ids: list[int], dropped: list[Key], now: float) -> None:
        """Blocks lost these keys by hand."""
        self._removed(dropped)
        if self.lifetimes is not None:
            for block in block_ids:
                self.lifetimes.ended(block, now)

    def published(self, request: Request, start: int, keys: list[Key]) -> None:
        """Blocks of a request carry these keys from now on, the first one is number `start`."""
        if self.events is None or not keys:
            return
        step = self.block_size * TOKEN_BYTES
        token_ids = None
        if request.tokens is not None:
            stored = request.tokens[start * step : (start + len(keys)) * step]
            token_ids = memoryview(stored).cast("i").tolist()
        parent = request.keys[start - 1] if start else None
        self.events.append(BlockStored(keys, parent, token_ids, self.block_size))

    def cleared(self) -> None:
        """No block carries a key any more; the sums stay."""
        self.stats.newest.clear()
        if self.lifetimes is not None:
            self.lifetimes.reset()
        if self.events is not None:
            self.events.append(AllBlocksCleared())

    def take_events(self) -> list[Event]:
        """Events since the last call, oldest first; ValueError if they are not recorded."""
        if self.events is None:
            raise ValueError("record_events must be True to take events, it was False")
        events, self.events = self.events, []
        return events

    def _removed(self, keys: list[Key]) -> None:
        self.num_evicted += len(keys)
        if self.events is not None:
            self.events += map(BlockRemoved, keys)
