"""The block manager of vLLM in May 2024, the weeks of issue 4860. Bookkeeping only.

It differs from `BlockPool` where the issue's run could feel it. A block is shared from the moment a
second prompt names it, also between prompts of one step, whether or not anybody has computed it;
only blocks marked as computed are skipped by a later prompt. Marks leave out the last full block.
The partial last block of a prompt is shared, too, and copied when its first owner writes on.

Source: vLLM at 00a456f, vllm/core/block_manager_v1.py and evictor_v1.py, as read for the lab; there
is no recording of it. One fault of that version is not kept: an evicted block lost its key but not
its mark (vLLM pull request 5364).
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from apclab.arguments import INT32_MOST, fraction, truth, whole_number
from apclab.blocks.keys import TOKEN_BYTES, ExtraKeys, Key, TokenIds
from apclab.blocks.request import Hit, Request
from apclab.blocks.requests import Requests
from apclab.blocks.table import BlockTable


@dataclass(slots=True)
class _Block:
    ref_cnt: int = 0
    key: Hashable = None
    depth: int = 0  # blocks that its key stands for
    last_accessed: float = -1
    computed_at: float = math.inf


class BlockPoolV0:
    """Fixed number of KV cache blocks, shared at once, skipped when computed.

    An engine asks of it what it asks of a `BlockPool`, but for what May 2024 did not have: no
    chunks, no requests that do not read the cache.

    Args:
        num_blocks: blocks; block 0 is not used, as in `BlockPool`.
        block_size: tokens per block.
        enable_prefix_caching: False: nothing is ever shared.
        watermark: fraction of the blocks that an admission leaves free.

    Attributes:
        now: the step or any clock, set by the caller: who was used longest ago loses its block, and
            what a step computes is skipped by prompts of later ones.
        num_copied: blocks that were copied because their owner wrote on.

    Raises:
        TypeError: a number is none.
        ValueError: block_size below 1, num_blocks below 2, watermark out of range.
    """

    policy: ClassVar[Literal["v0"]] = "v0"  # of the engine that goes with it

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        watermark: float = 0.01,
    ) -> None:
        self.num_blocks = whole_number("num_blocks", num_blocks, 2, INT32_MOST)
        self.block_size = whole_number("block_size", block_size, 1, INT32_MOST)
        self.enable_prefix_caching = truth("enable_prefix_caching", enable_prefix_caching)
        self.now = 0.0
        self.num_copied = 0  # blocks that were copied because their owner wrote on
        self._watermark = int(fraction("watermark", watermark) * (self.num_blocks - 1))
        self._requests = Requests(
            self.num_blocks, self.block_size, "exact", caching=self.enable_prefix_caching,
            keep_tokens=True, remember=0,
        )  # fmt: skip
        self._blocks = [_Block() for _ in range(self.num_blocks)]
        self._unused = list(range(self.num_blocks - 1, 0, -1))
        self._held: dict[Hashable, int] = {}  # key -> block in use
        self._evictable: dict[Hashable, int] = {}  # key -> block that nobody holds, oldest first
        self._nameless = 0

    @property
    def num_free(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return len(self._unused) + len(self._evictable)

    def block_table(self, request_ids: Iterable[Hashable] | None = None) -> BlockTable:
        """As `BlockPool.block_table`."""
        return self._requests.block_table(request_ids)

    def add_request(
        self,
        request_id: Hashable,
        token_ids: TokenIds,
        *,
        output_token_ids: TokenIds = (),
        extra: ExtraKeys | None = None,
        skip_reading_prefix_cache: bool = False,
    ) -> Request:
        """As `BlockPool.add_request`; ValueError for skip_reading_prefix_cache."""
        self._must_read(skip_reading_prefix_cache)
        return self._requests.add(request_id, token_ids, output_token_ids, extra, blind=False)

    def add_hashed_request(
        self,
        request_id: Hashable,
        keys: Sequence[Key],
        num_tokens: int,
        *,
        skip_reading_prefix_cache: bool = False,
    ) -> Request:
        """As `BlockPool.add_hashed_request`; a key of the partial last block is used, too."""
        self._must_read(skip_reading_prefix_cache)
        return self._requests.add_hashed(request_id, keys, num_tokens, blind=False)

    def generate(self, request_id: Hashable, num_tokens: int = 1) -> None:
        """As `BlockPool.generate`."""
        self._requests.generate(request_id, num_tokens)

    def admit(
        self,
        request_id: Hashable,
        num_new_tokens: int | None = None,
        *,
        full_sequence_must_fit: bool = False,  # noqa: ARG002 - it must anyhow
    ) -> Hit | None:
        """Hold blocks for all tokens of a waiting request, sharing those that others hold.

        Args:
            request_id: a known request that holds no blocks.
            num_new_tokens: None; there are no chunks.
            full_sequence_must_fit: it must in any case.

        Returns:
            The blocks that are computed already, or None, and no change, when too few blocks are
            free; shared ones are not credited.

        Raises:
            ValueError: the request is not known or holds blocks, or a chunk is asked for.
        """
        request = self._requests.waiting(request_id)
        if num_new_tokens is not None:
            raise ValueError(f"num_new_tokens must be None for policy v0, got {num_new_tokens}")
        count = -(-request.num_tokens // self.block_size)
        if self.num_free - count < self._watermark:
            return None
        self._requests.admit(request)
        request.block_ids = [self._take(self._key_of(request, i), i + 1) for i in range(count)]
        computed: list[int] = []
        # the table's last entry is never skipped
        for block in request.block_ids[:-1]:
            if self._blocks[block].computed_at >= self.now:
                break
            computed.append(block)
        hit = Hit(computed, len(computed) * self.block_size)
        request.num_cached_tokens = hit.num_tokens
        self._use(request)
        return hit

    def compute(self, request_id: Hashable, num_new_tokens: int = 1) -> list[int] | None:
        """A slot for the newest token of a live request, which is known but not computed.

        The last block is copied if others read it, renamed if the token fills it, or followed by
        a new one if it is full.

        Returns:
            The id of the block that was added, [] when the last one, or its copy, had room, or None
            when no block is free, needed or not; then nothing has changed.

        Raises:
            ValueError: the request is not live, or it is not one token that has no slot.
        """
        request = self._requests.alive(request_id)
        missing = request.num_tokens - request.num_computed_tokens
        if num_new_tokens != 1 or missing != 1:
            raise ValueError(
                f"num_new_tokens must be 1 and all that {request_id!r} has without a slot, "
                f"got {num_new_tokens} of {missing}"
            )
        if self.num_free < 1:
            return None
        blocks = -(-request.num_tokens // self.block_size)
        full = request.num_tokens % self.block_size == 0
        name = self._key_of(request, blocks - 1) if full else None
        added: list[int] = []
        if len(request.block_ids) < blocks:
            added.append(self._take(name, blocks))
            request.block_ids += added
        else:
            last = request.block_ids[-1]
            if self._blocks[last].ref_cnt > 1:
                request.block_ids[-1] = self._take(name, blocks)
                self._give_back([last])
                self.num_copied += 1
            else:
                request.block_ids[-1] = self._rename(last, name, blocks)
        self._use(request)
        return added

    def preempt(self, request_id: Hashable) -> None:
        """The request loses its blocks; it computes prompt and output again when it comes back."""
        self._give_back(self._requests.preempt(request_id))

    def free(self, request_id: Hashable) -> None:
        """End a request."""
        self._give_back(self._requests.end(request_id))

    def check(self) -> None:
        """Raise RuntimeError if counts, keys and tables disagree."""
        counts = [0] * self.num_blocks
        for request in self._requests.known.values():
            for block in request.block_ids:
                counts[block] += 1
        for block, record in enumerate(self._blocks):
            if record.ref_cnt != counts[block]:
                raise RuntimeError(
                    f"block {block} has ref_cnt {record.ref_cnt}, tables hold it {counts[block]} "
                    f"times"
                )
        held = sum(count > 0 for count in counts)
        if held + self.num_free != self.num_blocks - 1:
            raise RuntimeError(f"{held} held and {self.num_free} free of {self.num_blocks - 1}")
        for name, where in (("held", self._held), ("evictable", self._evictable)):
            for key, block in where.items():
                if self._blocks[block].key != key or (counts[block] > 0) != (name == "held"):
                    raise RuntimeError(f"block {block} is listed as {name} under a wrong key")

    def _must_read(self, skip_reading_prefix_cache: bool) -> None:
        if skip_reading_prefix_cache:
            raise ValueError("policy v0 has no skip_reading_prefix_cache")

    def _use(self, request: Request) -> None:
        """All its tokens have slots; its full blocks but the last count as computed."""
        request.num_computed_tokens = request.num_tokens
        for block in request.block_ids:
            self._blocks[block].last_accessed = self.now
        for i in range(request.num_tokens // self.block_size - 2, -1, -1):
            record = self._blocks[request.block_ids[i]]
            if record.computed_at < math.inf:
                return
            record.computed_at = self.now

    def _key_of(self, request: Request, index: int) -> Hashable:
        """Identity of a block of a request as it stands; None if nothing names it."""
        full = request.num_tokens // self.block_size
        if index < len(request.keys) and (index < full or request.tokens is None):
            return request.keys[index]
        if request.tokens is None or not self.enable_prefix_caching:
            return None
        start, end = index * self.block_size, request.num_tokens
        parent = request.keys[index - 1] if index else None
        return ("partial", parent, request.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])

    def _take(self, key: Hashable, depth: int) -> int:
        """Hold the block of that name, found or new; None makes a name that nobody shares."""
        if key is None:
            self._nameless += 1
            key = ("nameless", self._nameless)
        block = self._held.get(key)
        if block is None:
            block = self._evictable.pop(key, None)
            if block is None:
                block = self._new_block()
                self._blocks[block] = _Block(key=key, depth=depth)
            self._held[key] = block
        self._blocks[block].ref_cnt += 1
        return block

    def _new_block(self) -> int:
        if self._unused:
            return self._unused.pop()
        # of those unused for longest, the one deepest in its prompt
        key, block = min(
            self._evictable.items(),
            key=lambda item: (self._blocks[item[1]].last_accessed, -self._blocks[item[1]].depth),
        )
        del self._evictable[key]
        return block

    def _rename(self, block: int, key: Hashable, depth: int) -> int:
        """A block that its only owner fills gets its full name, or gives way to one that has it."""
        if key is None:
            return block
        if key in self._held or key in self._evictable:
            self._give_back([block])
            return self._take(key, depth)
        record = self._blocks[block]
        del self._held[record.key]
        record.key, record.depth = key, depth
        self._held[key] = block
        return block

    def _give_back(self, block_ids: list[int]) -> None:
        """One reference less, last block first."""
        for block in reversed(block_ids):
            record = self._blocks[block]
            record.ref_cnt -= 1
            if record.ref_cnt == 0:
                del self._held[record.key]
                self._evictable[record.key] = block
