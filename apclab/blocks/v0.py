"""The block manager of vLLM in May 2024, the weeks of issue 4860. Bookkeeping only.

It differs from `BlockPool` where the issue's run could feel it. A block is shared from the moment a
second prompt names it, also between prompts of one step, whether or not anybody has computed it;
only blocks marked as computed are skipped by a later prompt. Marks leave out the last full block.
The partial last block of a prompt is shared, too, and copied when its first owner writes on.

Source: vLLM at 00a456f, vllm/core/block_manager_v1.py and evictor_v1.py, as read for the lab; there
is no recording of it. One fault of that version is not kept: an evicted block lost its key but not
its mark (vLLM pull request 5364).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from apclab.arguments import INT32_MOST, fraction, truth, whole_number
from apclab.blocks.keys import TOKEN_BYTES, ExactKeys, ExtraKeys, Key, TokenIds, tokens_to_bytes
from apclab.blocks.request import Request
from apclab.blocks.table import BlockTable


@dataclass(slots=True)
class _Block:
    ref_cnt: int = 0
    key: Hashable = None
    depth: int = 0  # blocks that its key stands for
    last_accessed: int = -1
    computed: bool = False


class BlockPoolV0:
    """Fixed number of KV cache blocks, shared at once, skipped when computed.

    Args:
        num_blocks: blocks; block 0 is not used, as in `BlockPool`.
        block_size: tokens per block.
        enable_prefix_caching: False: nothing is ever shared.
        watermark: fraction of the blocks that an admission leaves free.

    Raises:
        TypeError: a number is none.
        ValueError: block_size below 1, num_blocks below 2, watermark out of range.
    """

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
        self.num_copied = 0  # blocks that were copied because their owner wrote on
        self._watermark = int(fraction("watermark", watermark) * (self.num_blocks - 1))
        self._keys = ExactKeys(self.block_size)
        self._blocks = [_Block() for _ in range(self.num_blocks)]
        self._unused = list(range(self.num_blocks - 1, 0, -1))
        self._held: dict[Hashable, int] = {}  # key -> block in use
        self._evictable: dict[Hashable, int] = {}  # key -> block that nobody holds, oldest first
        self._requests: dict[Hashable, Request] = {}
        self._nameless = 0

    @property
    def num_free(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return len(self._unused) + len(self._evictable)

    def add_request(
        self,
        request_id: Hashable,
        token_ids: TokenIds,
        *,
        output_token_ids: TokenIds = (),
        extra: ExtraKeys | None = None,
        skip_reading_prefix_cache: bool = False,
    ) -> Request:
        """As `BlockPool.add_request`."""
        if skip_reading_prefix_cache:
            raise ValueError("policy v0 has no skip_reading_prefix_cache")
        tokens = tokens_to_bytes(token_ids, least=1)
        given = tokens + tokens_to_bytes(output_token_ids)
        keys: list[Key] = []
        self._keys.extend(keys, given, extra)
        return self._know(request_id, len(tokens) // TOKEN_BYTES, keys, given)

    def add_hashed_request(
        self,
        request_id: Hashable,
        keys: Sequence[Key],
        num_tokens: int,
        *,
        skip_reading_prefix_cache: bool = False,
    ) -> Request:
        """As `BlockPool.add_hashed_request`; a key of the partial last block is used, too."""
        if skip_reading_prefix_cache:
            raise ValueError("policy v0 has no skip_reading_prefix_cache")
        return self._know(request_id, whole_number("num_tokens", num_tokens, 1), list(keys), None)

    def _know(
        self, request_id: Hashable, num_tokens: int, keys: list[Key], tokens: bytes | None
    ) -> Request:
        if request_id in self._requests:
            raise ValueError(f"request_id must be new, {request_id!r} is known already")
        request = Request(request_id, num_tokens, num_tokens, None, keys, tokens=tokens)
        self._requests[request_id] = request
        return request

    def admit(self, request_id: Hashable, now: int) -> bool:
        """Hold blocks for all tokens of a waiting request, sharing those that others hold.

        Args:
            request_id: a known request that holds no blocks.
            now: number of the step, the time of its blocks' last use.

        Returns:
            False, and no change, when too few blocks are free; shared ones are not credited.
        """
        request = self._requests[request_id]
        count = -(-request.num_tokens // self.block_size)
        if self.num_free - count < self._watermark:
            return False
        request.block_ids = [self._take(self._key_of(request, i), i + 1) for i in range(count)]
        computed = 0
        # the table's last entry is never skipped
        for block in request.block_ids[:-1]:
            if not self._blocks[block].computed:
                break
            computed += 1
        request.num_cached_tokens = computed * self.block_size
        request.num_computed_tokens = request.num_tokens
        self.access(request_id, now)
        return True

    def can_append(self) -> bool:
        """Whether a block is free for a next token, should it need one."""
        return self.num_free >= 1

    def append(self, request_id: Hashable, now: int) -> None:
        """A slot for the newest token of a request, which is known but not computed.

        The last block is copied if others read it, renamed if the token fills it, or followed by
        a new one if it is full.
        """
        request = self._requests[request_id]
        blocks = -(-request.num_tokens // self.block_size)
        full = request.num_tokens % self.block_size == 0
        name = self._key_of(request, blocks - 1) if full else None
        if len(request.block_ids) < blocks:
            request.block_ids.append(self._take(name, blocks))
        else:
            last = request.block_ids[-1]
            if self._blocks[last].ref_cnt > 1:
                request.block_ids[-1] = self._take(name, blocks)
                self._give_back(last)
                self.num_copied += 1
            elif full and self.enable_prefix_caching:
                request.block_ids[-1] = self._rename(last, name, blocks)
        request.num_computed_tokens = request.num_tokens
        self.access(request_id, now)

    def mark_computed(self, request_id: Hashable) -> None:
        """After scheduling: the full blocks but the last one count as computed from now on."""
        request = self._requests[request_id]
        for i in range(request.num_tokens // self.block_size - 2, -1, -1):
            block = self._blocks[request.block_ids[i]]
            if block.computed:
                return
            block.computed = True

    def access(self, request_id: Hashable, now: int) -> None:
        """Note the time of use of all blocks of a request."""
        for block in self._requests[request_id].block_ids:
            self._blocks[block].last_accessed = now

    def generate(self, request_id: Hashable, num_tokens: int = 1) -> None:
        """The next tokens become known."""
        self._requests[request_id].num_tokens += num_tokens

    def preempt(self, request_id: Hashable) -> None:
        """The request loses its blocks; it computes prompt and output again when it comes back."""
        request = self._requests[request_id]
        self._free_blocks(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1

    def free(self, request_id: Hashable) -> None:
        """End a request."""
        self._free_blocks(self._requests.pop(request_id))

    def block_table(self, request_ids: Sequence[Hashable]) -> BlockTable:
        """What a decode step of these requests sees."""
        rows = [self._requests[request_id] for request_id in request_ids]
        return BlockTable.from_rows(
            [row.block_ids for row in rows], [row.num_computed_tokens for row in rows],
            self.block_size,
        )  # fmt: skip

    def check(self) -> None:
        """Raise RuntimeError if counts, keys and tables disagree."""
        counts = [0] * self.num_blocks
        for request in self._requests.values():
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

    def _key_of(self, request: Request, index: int) -> Hashable:
        """Identity of a block of a request as it stands; None if nothing names it."""
        full = request.num_tokens // self.block_size
        if index < len(request.keys) and (index < full or request.tokens is None):
            return request.keys[index]
        if request.tokens is None:
            return None
        start, end = index * self.block_size, request.num_tokens
        parent = request.keys[index - 1] if index else None
        return ("partial", parent, request.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])

    def _take(self, key: Hashable, depth: int) -> int:
        """Hold the block of that name, found or new; None makes a name that nobody shares."""
        if key is None or not self.enable_prefix_caching:
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
            self._give_back(block)
            return self._take(key, depth)
        record = self._blocks[block]
        del self._held[record.key]
        record.key, record.depth = key, depth
        self._held[key] = block
        return block

    def _give_back(self, block: int) -> None:
        record = self._blocks[block]
        record.ref_cnt -= 1
        if record.ref_cnt == 0:
            del self._held[record.key]
            self._evictable[record.key] = block

    def _free_blocks(self, request: Request) -> None:
        for block in reversed(request.block_ids):
            self._give_back(block)
        request.block_ids = []
