"""Blocks without requests: who is free, who carries which key, in what order they are reused.

The inner loops of the pool. They touch flat lists and two dictionaries and nothing else.
"""

from collections.abc import Iterable
from typing import Literal

from apclab.arguments import INT32_MOST, one_of, whole_number
from apclab.blocks.keys import Key
from apclab.blocks.queues import CachedBlocks, FreeQueue

Reuse = Literal["front", "tail"]


class BlockStore:
    """Blocks, their reference counts, their keys and the queue of the free ones.

    Args:
        num_blocks: blocks, the null block 0 included.
        reuse: "front" or "tail", see `BlockPool`.

    Attributes:
        ref_cnt: of each block, the live tables that hold it.
        key_of: of each block.
        queue: the free blocks.
        cached: the blocks that carry a key, by it.
    """

    def __init__(self, num_blocks: int, reuse: Reuse) -> None:
        self.num_blocks = whole_number("num_blocks", num_blocks, 2, INT32_MOST)
        one_of("reuse", reuse, ("front", "tail"))
        self.reuse = reuse
        self.ref_cnt = [0] * self.num_blocks
        self.key_of: list[Key | None] = [None] * self.num_blocks
        self.queue = FreeQueue(self.num_blocks, first=1)
        self.cached = CachedBlocks()

    def usable(self, block_id: int) -> int:
        """The id of a block that requests can hold; TypeError for no int, ValueError for none."""
        number = whole_number("block_id", block_id, 0)
        if not (last := self.num_blocks - 1) >= number >= 1:
            raise ValueError(f"block_id must be between 1 and {last}, got {number}")
        return number

    def find(self, keys: list[Key], limit: int) -> list[int]:
        """Blocks of the longest cached run of leading keys, at most `limit` of them."""
        block_ids: list[int] = []
        # extend keeps what came before the first missing key, and looks no further; no suppress()
        # here: it costs as much as ten blocks
        try:  # noqa: SIM105
            block_ids.extend(
                map(self.cached.first.__getitem__, keys if len(keys) <= limit else keys[:limit])
            )
        except KeyError:
            pass
        return block_ids

    def touch(self, block_ids: list[int]) -> None:
        """One more reference to each; those that were free leave the queue."""
        ref_cnt = self.ref_cnt
        idle: list[int] = []
        for block in block_ids:
            if not (count := ref_cnt[block]):
                idle.append(block)
            ref_cnt[block] = count + 1
        if idle:
            self.queue.remove_n(idle)

    def take(self, count: int) -> tuple[list[int], list[Key]]:
        """Blocks from the front of the free queue, with one reference, and the keys they lost."""
        ref_cnt, key_of, cached = self.ref_cnt, self.key_of, self.cached
        first, others = cached.first, cached.others
        taken = self.queue.popleft_n(count)
        dropped: list[Key] = []
        for block in taken:
            key = key_of[block]
            if key is not None:
                key_of[block] = None
                dropped.append(key)
                if others:
                    cached.pop(key, block)
                else:
                    del first[key]
            ref_cnt[block] = 1
        return taken, dropped

    def publish(self, block_ids: list[int], keys: list[Key]) -> None:
        """The blocks carry these keys from now on, as far as there are any."""
        key_of, first, cached = self.key_of, self.cached.first, self.cached
        for block, key in zip(block_ids, keys, strict=False):
            key_of[block] = key
            if first.setdefault(key, block) != block:
                cached.insert(key, block)

    def release(self, block_ids: list[int]) -> None:
        """One reference less, last block first; what nobody holds becomes free."""
        ref_cnt, key_of = self.ref_cnt, self.key_of
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
            self.queue.prepend_n(unkeyed)
        if to_end:
            self.queue.append_n(to_end)

    def drop_keys(self, block_ids: Iterable[int]) -> list[Key]:
        """The keys that these blocks carried until now; the blocks stay where they are."""
        dropped: list[Key] = []
        for block in block_ids:
            if (key := self.key_of[block]) is not None:
                self.key_of[block] = None
                self.cached.pop(key, block)
                dropped.append(key)
        return dropped

    def forget_keys(self) -> None:
        """No block carries a key any more."""
        self.key_of = [None] * self.num_blocks
        self.cached.clear()
