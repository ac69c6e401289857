"""The free queue and the map of cached blocks, as vLLM 0.33 keeps them. No requests, no tokens.

The pool's inner loops reach into `CachedBlocks.first` directly; the methods are the same acts one
by one, and what the recorded unit cases are replayed on.
"""

from collections.abc import Iterable

from apclab.blocks.keys import Key

_OUT = -1  # instead of a next id: not in the queue


class FreeQueue:
    """Free block ids in the order of their reuse, a list linked both ways; O(1) a block.

    Two flat lists of ints take a tenth of the memory of an OrderedDict and are as fast.

    Args:
        num_ids: ids are below this.
        first: the queue begins with this id and goes on to num_ids - 1.
    """

    __slots__ = ("_end", "_next", "_previous", "count")

    def __init__(self, num_ids: int, first: int = 0) -> None:
        self._end = num_ids  # stands before the first id and behind the last
        self._next = [_OUT] * first + list(range(first + 1, num_ids + 1)) + [first]
        self._previous = [_OUT] * first + [num_ids, *range(first, num_ids)]
        self.count = num_ids - first

    def ids(self) -> list[int]:
        """Ids from front to back; RuntimeError if the links are broken."""
        ids: list[int] = []
        previous, block = self._end, self._next[self._end]
        while block != self._end:
            if block == _OUT or self._previous[block] != previous or len(ids) > self.count:
                raise RuntimeError(f"the free queue is broken behind {previous}")
            ids.append(block)
            previous, block = block, self._next[block]
        if self._previous[self._end] != previous:
            raise RuntimeError(f"the free queue does not end with {previous}")
        return ids

    def popleft_n(self, count: int) -> list[int]:
        """Take the next ids to be reused; ValueError, and no change, when there are fewer."""
        if count > self.count:
            raise ValueError(f"count must be at most {self.count} free blocks, got {count}")
        following, end = self._next, self._end
        taken: list[int] = []
        block = following[end]
        for _ in range(count):
            taken.append(block)
            after = following[block]
            following[block] = _OUT
            block = after
        following[end] = block
        self._previous[block] = end
        self.count -= count
        return taken

    def append_n(self, block_ids: Iterable[int]) -> None:
        """Put ids at the end, in their order."""
        self._insert(block_ids, self._previous[self._end], self._end)

    def prepend_n(self, block_ids: Iterable[int]) -> None:
        """Put ids at the front, in their order: the first of them is the next to be reused."""
        self._insert(block_ids, self._end, self._next[self._end])

    def _insert(self, block_ids: Iterable[int], last: int, front: int) -> None:
        """Put ids between two that follow each other."""
        following, previous, count = self._next, self._previous, 0
        for block in block_ids:
            following[last] = block
            previous[block] = last
            last = block
            count += 1
        following[last] = front
        previous[front] = last
        self.count += count

    def remove_n(self, block_ids: Iterable[int]) -> None:
        """Take ids out, wherever they are; ValueError at the first that is not free."""
        following, previous = self._next, self._previous
        for block in block_ids:
            after = following[block]
            if after == _OUT:
                raise ValueError(f"block_id must be free, got {block}")
            before = previous[block]
            following[before] = after
            previous[after] = before
            following[block] = _OUT
            self.count -= 1


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
