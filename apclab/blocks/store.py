"""Blocks without requests: who is free, who carries which key, in what order they are reused.

The inner loops of the pool. They touch flat lists and two dictionaries and nothing else.
"""

from collections.abc import Iterable
from typing import Literal

from apclab.arguments import INT32_MOST, instance, one_of, truth, whole_number
from apclab.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from apclab.blocks.keys import TOKEN_BYTES, Key
from apclab.blocks.queues import CachedBlocks, FreeQueue
from apclab.blocks.request import Request
from apclab.blocks.stats import Lifetimes

Reuse = Literal["front", "tail"]


class BlockStore:
    """Blocks, their reference counts, their keys and the queue of the free ones.

    Args:
        num_blocks: blocks, the null block 0 included, so num_blocks - 1 can be used.
        block_size: tokens per block.
        reuse: "front": freed blocks without a key go to the front of the free queue, those with a
            key to its end (vLLM from 2026 on, 0.33 too); "tail": all go to its end (vLLM before).
        record_events: keep what happens to keys for `take_events`.
        lifetimes: follows blocks from hand-out to hand-out, by `now`.

    Attributes:
        now: seconds, set by the caller before an operation; only lifetimes look at it.
        num_evicted: keys dropped because their block was handed out again, or by `evict`.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int,
        reuse: Reuse,
        record_events: bool,
        lifetimes: Lifetimes | None,
    ) -> None:
        self.num_blocks = whole_number("num_blocks", num_blocks, 2, INT32_MOST)
        self.block_size = whole_number("block_size", block_size, 1, INT32_MOST)
        one_of("reuse", reuse, ("front", "tail"))
        self.reuse = reuse
        if lifetimes is not None:
            instance("lifetimes", lifetimes, Lifetimes, "Lifetimes or None")
        self.lifetimes = lifetimes
        self.now = 0.0
        self.num_evicted = 0
        self._ref_cnt = [0] * self.num_blocks
        self._key: list[Key | None] = [None] * self.num_blocks
        self._queue = FreeQueue(self.num_blocks, first=1)
        self._cached = CachedBlocks()
        self._events: list[Event] | None = [] if truth("record_events", record_events) else None

    @property
    def num_free(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return self._queue.count

    @property
    def usage(self) -> float:
        """Fraction of the usable blocks that requests hold, 0 to 1; cached alone is not used."""
        return 1 - self._queue.count / (self.num_blocks - 1)

    @property
    def num_cached(self) -> int:
        """Blocks that carry a key, held by a request or free."""
        return len(self._cached) + sum(map(len, self._cached.others.values()))

    @property
    def num_keys(self) -> int:
        """Different keys that blocks carry; fewer than `num_cached` if some hold the same."""
        return len(self._cached)

    @property
    def records_events(self) -> bool:
        """Whether `take_events` may be asked."""
        return self._events is not None

    def free_queue(self) -> list[int]:
        """Free block ids, next to be handed out first."""
        return self._queue.ids()

    def cached_blocks(self) -> list[int]:
        """Ids of the blocks that carry a key, ascending."""
        return [block for block, key in enumerate(self._key) if key is not None]

    def ref_cnt(self, block_id: int) -> int:
        """Number of live requests whose table holds the block; ValueError if there is none."""
        return self._ref_cnt[self._usable(block_id)]

    def ref_cnts(self) -> list[int]:
        """`ref_cnt` of every block by its id; the null block 0 has none."""
        return self._ref_cnt.copy()

    def evict(self, block_ids: Iterable[int]) -> None:
        """Drop the keys of these blocks; they stay where they are. ValueError: no such block."""
        for block in [self._usable(block_id) for block_id in block_ids]:
            if self.lifetimes is not None:
                self.lifetimes.ended(block, self.now)
            if (key := self._key[block]) is None:
                continue
            self._key[block] = None
            self._cached.pop(key, block)
            self.num_evicted += 1
            if self._events is not None:
                self._events.append(BlockRemoved(key))

    def take_events(self) -> list[Event]:
        """What happened to keys since the last call, oldest first.

        Raises:
            ValueError: the pool was made without record_events.
        """
        if self._events is None:
            raise ValueError("record_events must be True to take events, it was False")
        events, self._events = self._events, []
        return events

    def _usable(self, block_id: int) -> int:
        number = whole_number("block_id", block_id, 0)
        if not (last := self.num_blocks - 1) >= number >= 1:
            raise ValueError(f"block_id must be between 1 and {last}, got {number}")
        return number

    def _find(self, keys: list[Key], limit: int) -> list[int]:
        """Blocks of the longest cached run of leading keys, at most `limit` of them."""
        found: list[int] = []
        # extend keeps what came before the first missing key, and looks no further; no suppress()
        # here: it costs as much as ten blocks
        try:  # noqa: SIM105
            found.extend(
                map(self._cached.first.__getitem__, keys if len(keys) <= limit else keys[:limit])
            )
        except KeyError:
            pass
        return found

    def _touch(self, block_ids: list[int]) -> None:
        """One more reference to each; those that were free leave the queue."""
        ref_cnt = self._ref_cnt
        if idle := [block for block in block_ids if not ref_cnt[block]]:
            self._queue.remove_n(idle)
        for block in block_ids:
            ref_cnt[block] += 1
        if self.lifetimes is not None:
            self.lifetimes.hit(block_ids, self.now)

    def _take(self, block_ids: list[int], count: int) -> None:
        """Move blocks from the front of the free queue to the end of a table."""
        ref_cnt, key_of, cached, events = self._ref_cnt, self._key, self._cached, self._events
        first, others = cached.first, cached.others
        taken = self._queue.popleft_n(count)
        for block in taken:
            key = key_of[block]
            if key is not None:
                key_of[block] = None
                self.num_evicted += 1
                if others:
                    cached.pop(key, block)
                else:
                    del first[key]
                if events is not None:
                    events.append(BlockRemoved(key))
            ref_cnt[block] = 1
        block_ids += taken
        if self.lifetimes is not None:
            self.lifetimes.taken(taken, self.now)

    def _publish(self, request: Request, start: int, end: int) -> None:
        """Give their keys to blocks start to end - 1 of a request, as far as it has keys."""
        keys = request.keys[start:end]
        key_of, first, cached = self._key, self._cached.first, self._cached
        for block, key in zip(request.block_ids[start:end], keys, strict=False):
            key_of[block] = key
            if first.setdefault(key, block) != block:
                cached.insert(key, block)
        if end > request.num_published:
            request.num_published = end
        if self._events is not None and keys:
            self._record_stored(self._events, request, start, keys)

    def _record_stored(
        self, events: list[Event], request: Request, start: int, keys: list[Key]
    ) -> None:
        step = self.block_size * TOKEN_BYTES
        token_ids = None
        if request.tokens is not None:
            stored = request.tokens[start * step : (start + len(keys)) * step]
            token_ids = memoryview(stored).cast("i").tolist()
        parent = request.keys[start - 1] if start else None
        events.append(BlockStored(keys, parent, token_ids, self.block_size))

    def _release(self, block_ids: list[int]) -> None:
        """One reference less, last block first; what nobody holds becomes free."""
        ref_cnt, key_of = self._ref_cnt, self._key
        to_front = self.reuse == "front"
        unkeyed: list[int] = []
        to_end: list[int] = []
        for block in reversed(block_ids):
            ref_cnt[block] = count = ref_cnt[block] - 1
            if count:
                continue
            if to_front and key_of[block] is None:
                unkeyed.append(block)
            else:
                to_end.append(block)
        # as one group, so that the request's last block is the next to be handed out
        if unkeyed:
            self._queue.prepend_n(unkeyed)
        if to_end:
            self._queue.append_n(to_end)

    def _forget_keys(self) -> None:
        self._key = [None] * self.num_blocks
        self._cached.clear()
        if self.lifetimes is not None:
            self.lifetimes.reset()
        if self._events is not None:
            self._events.append(AllBlocksCleared())
