"""The free queue and the map of cached blocks, as vLLM 0.33 keeps them. No requests, no tokens.

The pool's inner loops reach into `FreeQueue.ids` and `CachedBlocks.first` directly; the methods
are the same acts one by one, and what the recorded unit cases are replayed on.
"""

from collections import OrderedDict
from collections.abc import Iterable

from apclab.blocks.keys import Key


class FreeQueue:
    """Free block ids in the order of their reuse; every act is O(1) a block."""

    __slots__ = ("ids",)

    def __init__(self, block_ids: Iterable[int]) -> None:
        self.ids: OrderedDict[int, None] = OrderedDict.fromkeys(block_ids)

    def __len__(self) -> int:
        return len(self.ids)

    def popleft_n(self, count: int) -> list[int]:
        """Take the next ids to be reused; ValueError, and no change, when there are fewer."""
        if count > len(self.ids):
            raise ValueError(f"count must be at most {len(self.ids)} free blocks, got {count}")
        pop = self.ids.popitem
        return [pop(last=False)[0] for _ in range(count)]

    def append_n(self, block_ids: Iterable[int]) -> None:
        """Put ids at the end, in their order."""
        self.ids.update(dict.fromkeys(block_ids))

    def prepend_n(self, block_ids: list[int]) -> None:
        """Put ids at the front, in their order: the first of them is the next to be reused."""
        for block in reversed(block_ids):
            self.ids[block] = None
            self.ids.move_to_end(block, last=False)

    def remove(self, block_id: int) -> None:
        """Take one id out, wherever it is; ValueError if it is not free."""
        if block_id not in self.ids:
            raise ValueError(f"block_id must be free, got {block_id}")
        del self.ids[block_id]


class CachedBlocks:
    """Which blocks carry a key. Of several, the first that was published answers lookups."""

    __slots__ = ("first", "others")

    def __init__(self) -> None:
        self.first: dict[Key, int] = {}
        # the rest of the blocks under a key, oldest first; few keys have any
        self.others: dict[Key, dict[int, None]] = {}

    def __len__(self) -> int:
        """Number of different keys."""
        return len(self.first)

    def blocks(self, key: Key) -> list[int]:
        """All blocks that carry the key, first published first."""
        return [self.first[key], *self.others.get(key, ())] if key in self.first else []

    def insert(self, key: Key, block_id: int) -> None:
        """The block carries the key from now on."""
        if self.first.setdefault(key, block_id) != block_id:
            self.others.setdefault(key, {})[block_id] = None

    def pop(self, key: Key, block_id: int) -> int | None:
        """The block does not carry the key any more; None, and no change, if it never did."""
        others = self.others.get(key)
        if others is None:
            if self.first.get(key) != block_id:
                return None
            del self.first[key]
            return block_id
        if self.first[key] == block_id:
            self.first[key] = next(iter(others))
            del others[self.first[key]]
        elif block_id in others:
            del others[block_id]
        else:
            return None
        if not others:
            del self.others[key]
        return block_id

    def clear(self) -> None:
        """No block carries a key any more."""
        self.first.clear()
        self.others.clear()
