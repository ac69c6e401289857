"""The block pool: allocation, prefix hits, LRU reuse. No scheduling, no timing, no KV data.

Its results follow vLLM 0.33 to the block id; other versions keep the free queue differently.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from apclab.blocks.invariants import check_pool
from apclab.blocks.keys import TOKEN_BYTES, PrefixKeys, TokenIds, tokens_to_bytes
from apclab.blocks.table import BlockTable, whole_number


class Hit(NamedTuple):
    """The longest cached prefix of a prompt."""

    block_ids: list[int]
    num_tokens: int  # a multiple of the block size, below the prompt's number of tokens


@dataclass(slots=True)
class _Request:
    """A live request: its table, and what is needed to give its next full block a key."""

    block_ids: list[int]
    keys: list[int]  # of its full blocks, in table order; empty with caching off
    num_prompt_tokens: int
    num_cached_tokens: int
    num_tokens: int
    tail: bytes = b""  # tokens behind the last full block, int32; empty with caching off
    checked_ids: list[int] = field(default_factory=list)  # its table at the last check()


class BlockPool:
    """Fixed number of KV cache blocks with exact prefix caching, in vLLM 0.33's order.

    Only full blocks are cached, from the moment they have slots; generated tokens count. Of equal
    blocks the first one published answers lookups, the others stay as they are. A freed request
    gives its blocks back last one first: those without a key to the front of the free queue,
    those with a key to its end, where they can be hit until they are reused from the front.

    Args:
        num_blocks: blocks, the null block 0 included, so num_blocks - 1 can be used.
        block_size: tokens per block.
        enable_prefix_caching: False: nothing is ever found, nothing gets a key.

    Raises:
        TypeError: a count is no int.
        ValueError: block_size below 1, num_blocks below 2.

    Source: vLLM 0.33.0, vllm/v1/core: block_pool.py, kv_cache_manager.py.
    """

    def __init__(
        self, num_blocks: int, *, block_size: int = 16, enable_prefix_caching: bool = True
    ) -> None:
        self.num_blocks = whole_number("num_blocks", num_blocks, 2)
        self.block_size = whole_number("block_size", block_size, 1)
        self.enable_prefix_caching = bool(enable_prefix_caching)
        self._block_bytes = self.block_size * TOKEN_BYTES
        self._ref_cnt = [0] * self.num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, self.num_blocks))
        self._keys = PrefixKeys()
        self._key: list[int | None] = [None] * self.num_blocks
        # key -> the blocks that carry it, first published first
        self._cached: dict[int, dict[int, None]] = {}
        self._requests: dict[Hashable, _Request] = {}

    @property
    def num_free(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Fraction of the usable blocks that requests hold, 0 to 1; cached alone is not used."""
        return 1 - len(self._free) / (self.num_blocks - 1)

    @property
    def num_cached(self) -> int:
        """Blocks that carry a key, held by a request or free."""
        return sum(len(blocks) for blocks in self._cached.values())

    def free_queue(self) -> list[int]:
        """Free block ids, next to be handed out first."""
        return list(self._free)

    def cached_blocks(self) -> list[int]:
        """Ids of the blocks that carry a key, ascending."""
        return [block for block, key in enumerate(self._key) if key is not None]

    def ref_cnt(self, block_id: int) -> int:
        """Number of live requests whose table holds the block; ValueError if there is none."""
        return self._ref_cnt[self._usable(block_id)]

    def block_ids(self, request_id: Hashable) -> list[int]:
        """The block table of a live request; ValueError for any other."""
        return list(self._request(request_id).block_ids)

    def num_tokens(self, request_id: Hashable) -> int:
        """Tokens of a live request that have a slot; ValueError for any other."""
        return self._request(request_id).num_tokens

    def get_computed_blocks(self, token_ids: TokenIds) -> Hit:
        """Find the longest cached prefix of a prompt; changes nothing.

        At most num_tokens - 1 tokens are found: the last must be computed to get a next one.

        Args:
            token_ids: [num_tokens] ints, at least one, 0 to 2**31 - 1.

        Raises:
            TypeError: token_ids are no ints.
            ValueError: token_ids are empty, nested or out of range.
        """
        return self._hit(self._lookup(tokens_to_bytes(token_ids, least=1)))

    def allocate_slots(self, request_id: Hashable, token_ids: TokenIds) -> Hit | None:
        """Admit a request: look its prompt up and hold blocks for all of it, or change nothing.

        Args:
            request_id: any hashable name that no live request has.
            token_ids: [num_tokens] ints, at least one, 0 to 2**31 - 1.

        Returns:
            What was found in the cache, or None when too few blocks are free. A found block that
            lies in the free queue takes one of the free blocks too.

        Raises:
            TypeError: token_ids are no ints.
            ValueError: the request is live already, or token_ids are empty or out of range.
        """
        if request_id in self._requests:
            raise ValueError(f"request_id must be new, {request_id!r} is live already")
        tokens = tokens_to_bytes(token_ids, least=1)
        num_tokens = len(tokens) // TOKEN_BYTES
        keys = self._lookup(tokens)
        hit = self._hit(keys)
        num_new = -(-num_tokens // self.block_size) - len(keys)
        if num_new + sum(block in self._free for block in hit.block_ids) > len(self._free):
            return None

        for block in hit.block_ids:
            if self._ref_cnt[block] == 0:
                del self._free[block]
            self._ref_cnt[block] += 1
        request = _Request(
            block_ids=list(hit.block_ids),
            keys=keys,
            num_prompt_tokens=num_tokens,
            num_cached_tokens=hit.num_tokens,
            num_tokens=hit.num_tokens,
        )
        self._requests[request_id] = request
        self._take(request, num_new)
        self._publish(request, tokens[hit.num_tokens * TOKEN_BYTES :])
        return hit

    def append_tokens(self, request_id: Hashable, token_ids: TokenIds) -> list[int] | None:
        """Give slots to generated tokens, and keys to the blocks that they fill.

        Args:
            request_id: a live request.
            token_ids: [n] ints, 0 to 2**31 - 1; may be empty.

        Returns:
            Ids of the blocks that were added, [] when the last block had room, or None when too
            few blocks are free; then nothing has changed.

        Raises:
            TypeError: token_ids are no ints.
            ValueError: the request is not live, or token_ids are nested or out of range.
        """
        request = self._request(request_id)
        tokens = tokens_to_bytes(token_ids)
        num_tokens = request.num_tokens + len(tokens) // TOKEN_BYTES
        num_new = -(-num_tokens // self.block_size) - len(request.block_ids)
        if num_new > len(self._free):
            return None
        self._take(request, num_new)
        self._publish(request, tokens)
        return request.block_ids[len(request.block_ids) - num_new :]

    def free(self, request_id: Hashable) -> None:
        """End a request; blocks that nobody else holds become free. ValueError if not live."""
        self._request(request_id)
        unkeyed = []
        for block in reversed(self._requests.pop(request_id).block_ids):
            self._ref_cnt[block] -= 1
            if self._ref_cnt[block] > 0:
                continue
            if self._key[block] is None:
                unkeyed.append(block)
            else:
                self._free[block] = None
        # as one group, so that the request's last block is the next to be handed out
        for block in reversed(unkeyed):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def evict(self, block_ids: Iterable[int]) -> None:
        """Drop the keys of these blocks; they stay where they are. ValueError: no such block."""
        for block in [self._usable(block_id) for block_id in block_ids]:
            self._drop_key(block)

    def reset(self) -> bool:
        """Forget everything cached; False, and no change, while a request is live.

        The free queue keeps its order.
        """
        if self._requests:
            return False
        self._key = [None] * self.num_blocks
        self._cached.clear()
        self._keys = PrefixKeys()
        return True

    def block_table(self, request_ids: Iterable[Hashable] | None = None) -> BlockTable:
        """What a decode step of these requests sees; all live ones as they were admitted if None.

        Raises:
            ValueError: no request at all, one that is not live, or one named twice.
        """
        ids = list(self._requests if request_ids is None else request_ids)
        if not ids:
            raise ValueError("request_ids must name at least one live request, got none")
        if len(set(ids)) < len(ids):
            raise ValueError(f"request_ids must name a request once, got {ids}")
        rows = [self._request(request_id) for request_id in ids]
        return BlockTable.from_rows(
            [row.block_ids for row in rows], [row.num_tokens for row in rows], self.block_size
        )

    def check(self) -> None:
        """Raise RuntimeError naming the first invariant of `invariants.py` that does not hold."""
        check_pool(self)

    def _request(self, request_id: Hashable) -> _Request:
        if request_id not in (live := self._requests):
            raise ValueError(f"request_id must be one of {len(live)} live, got {request_id!r}")
        return live[request_id]

    def _usable(self, block_id: int) -> int:
        if not (last := self.num_blocks - 1) >= block_id >= 1:
            raise ValueError(f"block_id must be between 1 and {last}, got {block_id}")
        return block_id

    def _lookup(self, tokens: bytes) -> list[int]:
        """Keys of the longest run of cached blocks from the start of a prompt."""
        keys: list[int] = []
        if not self.enable_prefix_caching:
            return keys
        parent, step = PrefixKeys.ROOT, self._block_bytes
        # the range ends before the block that holds the last token
        for start in range(0, (len(tokens) - TOKEN_BYTES) // step * step, step):
            key = self._keys.find(parent, tokens[start : start + step])
            if key is None or key not in self._cached:
                break
            keys.append(key)
            parent = key
        return keys

    def _hit(self, keys: list[int]) -> Hit:
        blocks = [next(iter(self._cached[key])) for key in keys]
        return Hit(blocks, len(blocks) * self.block_size)

    def _take(self, request: _Request, count: int) -> None:
        """Move blocks from the front of the free queue into a request's table."""
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._drop_key(block)
            self._ref_cnt[block] = 1
            request.block_ids.append(block)

    def _drop_key(self, block: int) -> None:
        if (key := self._key[block]) is None:
            return
        self._key[block] = None
        del self._cached[key][block]
        if not self._cached[key]:
            del self._cached[key]

    def _publish(self, request: _Request, tokens: bytes) -> None:
        """Count new tokens and give a key to each block that they fill."""
        request.num_tokens += len(tokens) // TOKEN_BYTES
        if not self.enable_prefix_caching:
            return
        tokens, step = request.tail + tokens, self._block_bytes
        full = len(tokens) // step * step
        key = request.keys[-1] if request.keys else PrefixKeys.ROOT
        for start in range(0, full, step):
            key = self._keys.intern(key, tokens[start : start + step])
            block = request.block_ids[len(request.keys)]
            request.keys.append(key)
            self._key[block] = key
            self._cached.setdefault(key, {})[block] = None
        request.tail = tokens[full:]
