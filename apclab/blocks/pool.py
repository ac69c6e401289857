"""The block pool: who holds which blocks, what is cached. No scheduling, no KV data.

Its results follow vLLM 0.33 to the block id; other versions keep the free queue differently.
By hand, `allocate_slots` and `append_tokens` do a prompt and its output in one act each; the acts
that a scheduler needs (chunks, preemption, retries) are those of `admission.py`.
"""

from collections.abc import Hashable, Iterable

from apclab.blocks.admission import AdmissionPool, Hit
from apclab.blocks.invariants import check_pool
from apclab.blocks.keys import TOKEN_BYTES, ExtraKeys, TokenIds, tokens_to_bytes
from apclab.blocks.request import Request
from apclab.blocks.table import BlockTable


class BlockPool(AdmissionPool):
    """Fixed number of KV cache blocks with prefix caching, in vLLM 0.33's order.

    Only full blocks are cached, from the moment they have slots; generated tokens count. Of equal
    blocks the first one published answers lookups, the others stay as they are. A freed request
    gives its blocks back last one first: those without a key to the front of the free queue,
    those with a key to its end, where they can be hit until they are reused from the front.

    Args:
        num_blocks: blocks, the null block 0 included, so num_blocks - 1 can be used.
        block_size: tokens per block.
        enable_prefix_caching: False: nothing is ever found, nothing gets a key.
        keys: "exact" (never collide; memory grows with every distinct block seen), or for long
            runs the digests "sha256" or "xxh3".
        reuse: "front" as vLLM 0.33; "tail" as before 2026: freed blocks without a key do not go
            first, but to the end like all others.
        watermark: fraction of num_blocks, rounded down to blocks, that an admission must leave
            free if any request holds blocks.
        force_miss: nothing is found while all else, publishing too, goes its way: the other side
            of a clean comparison. May be set at any time.
        drop_last_block: the last one of the blocks found is computed anew, as vLLM does with
            EAGLE and MTP: of n equal tokens before a prompt's last one,
            (n // block_size - 1) * block_size are found, never below 0.
        record_events: keep BlockStored, BlockRemoved and AllBlocksCleared for `take_events`.
        lifetimes: follows blocks from hand-out to hand-out; set `now` before each operation.
        remember: the newest prompts whose tokens are kept for `explain_hit`.

    Attributes:
        stats: what was asked for and found, in tokens.
        now: seconds, set by the caller; only `lifetimes` looks at it.
        num_evicted: keys dropped because their block was handed out again, or by `evict`.

    Raises:
        TypeError: a number is none.
        ValueError: block_size below 1, num_blocks below 2, or another value out of range.

    Source: vLLM 0.33.0, vllm/v1/core: block_pool.py, kv_cache_manager.py.
    """

    @property
    def slot_usage(self) -> float:
        """Fraction of all usable token slots that hold a token of a request, 0 to 1.

        Below `usage` by the empty ends of last blocks.
        """
        held = self.num_blocks - 1 - self._queue.count
        # a block that is not full has one owner
        empty = sum(-r.num_computed_tokens % self.block_size for r in self._live.values())
        return (held * self.block_size - empty) / ((self.num_blocks - 1) * self.block_size)

    def request(self, request_id: Hashable) -> Request:
        """The record of a known request, to read; ValueError for any other."""
        return self._request(request_id)

    def live_requests(self) -> list[Hashable]:
        """Names of the requests that hold blocks, as they were admitted."""
        return list(self._live)

    def block_ids(self, request_id: Hashable) -> list[int]:
        """The block table of a request, [] while it waits; ValueError if it is not known."""
        return list(self._request(request_id).block_ids)

    def num_tokens(self, request_id: Hashable) -> int:
        """Tokens of a request that have a slot, 0 while it waits; ValueError if not known."""
        return self._request(request_id).num_computed_tokens

    def get_computed_blocks(self, token_ids: TokenIds, *, extra: ExtraKeys | None = None) -> Hit:
        """Find the longest cached prefix of a prompt; changes nothing.

        At most num_tokens - 1 tokens are found: the last must be computed to get a next one.

        Args:
            token_ids: [num_tokens] ints, at least one, 0 to 2**31 - 1.
            extra: salt, adapter, images.

        Raises:
            TypeError: token_ids are no ints.
            ValueError: token_ids are empty, nested or out of range.
        """
        tokens = tokens_to_bytes(token_ids, least=1)
        if not self.enable_prefix_caching or self.force_miss:
            return Hit([], 0)
        return self._hit(self._keys.find(tokens, extra), len(tokens) // TOKEN_BYTES)

    def allocate_slots(
        self,
        request_id: Hashable,
        token_ids: TokenIds,
        *,
        extra: ExtraKeys | None = None,
        skip_reading_prefix_cache: bool = False,
    ) -> Hit | None:
        """Admit a new request with all of its prompt, or forget it again: add_request and admit.

        Args:
            request_id: any hashable name that no known request has.
            token_ids: [num_tokens] ints, at least one, 0 to 2**31 - 1.
            extra: salt, adapter, images.
            skip_reading_prefix_cache: it publishes its blocks and finds none.

        Returns:
            What was found in the cache, or None when too few blocks are free. A found block that
            lies in the free queue takes one of the free blocks too.

        Raises:
            TypeError: token_ids are no ints.
            ValueError: the request is known already, or token_ids are empty or out of range.
        """
        request = self.add_request(
            request_id,
            token_ids,
            extra=extra,
            skip_reading_prefix_cache=skip_reading_prefix_cache,
        )
        hit = self.admit(request_id)
        if hit is None:
            self.free(request_id)
            self._memory.drop(request)
        return hit

    def append_tokens(self, request_id: Hashable, token_ids: TokenIds) -> list[int] | None:
        """Give slots to generated tokens: add_tokens and compute, or neither.

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
        request = self._alive(request_id)
        tokens = tokens_to_bytes(token_ids)
        after = request.num_tokens + len(tokens) // TOKEN_BYTES
        missing = after - request.num_computed_tokens
        if -(-after // self.block_size) - len(request.block_ids) > self._queue.count:
            return None
        self._add(request, tokens)
        return self.compute(request_id, missing) if missing else []

    def reset(self) -> bool:
        """Forget everything cached; False, and no change, while a request holds blocks.

        The free queue keeps its order, the statistics their sums; the recent hit rate starts anew.
        """
        if self._live:
            return False
        self._forget_keys()
        self._memory.forget(self._admissions)
        self.stats.newest.clear()
        return True

    def explain_hit(self, request_id: Hashable) -> str:
        """Why a request found what it found, or would find it now while it waits; in words.

        It is compared with the newest prompts, see `remember`. ValueError if it is not known.
        """
        request = self._request(request_id)
        hit = request.num_cached_tokens if request.block_ids else self.lookup(request_id).num_tokens
        if not self.enable_prefix_caching:
            return "prefix caching is off"
        if request.skip_reading_prefix_cache:
            return "the request does not read the cache (skip_reading_prefix_cache)"
        if self.force_miss:
            return "every lookup is made to miss (force_miss)"
        if self.drop_last_block:
            return f"{hit} tokens found: the last block found is not used (drop_last_block)"
        return self._memory.explain(request, hit, self.block_size)

    def block_table(self, request_ids: Iterable[Hashable] | None = None) -> BlockTable:
        """What a decode step of these requests sees; all live ones as they were admitted if None.

        Raises:
            ValueError: no request at all, one that is not live, or one named twice.
        """
        ids = list(self._live if request_ids is None else request_ids)
        if not ids:
            raise ValueError("request_ids must name at least one live request, got none")
        if len(set(ids)) < len(ids):
            raise ValueError(f"request_ids must name a request once, got {ids}")
        rows = [self._alive(request_id) for request_id in ids]
        return BlockTable.from_rows(
            [row.block_ids for row in rows],
            [row.num_computed_tokens for row in rows],
            self.block_size,
        )

    def check(self) -> None:
        """Raise RuntimeError naming the first invariant of `invariants.py` that does not hold."""
        check_pool(self)
