"""The block pool: who holds which blocks, what is cached. No scheduling, no KV data.

Its results follow vLLM 0.33 to the block id; other versions keep the free queue differently.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import ClassVar, Literal

from apclab.arguments import INT32_MOST, fraction, instance, truth, whole_number
from apclab.blocks.events import Event
from apclab.blocks.invariants import check_pool
from apclab.blocks.keys import TOKEN_BYTES, ExtraKeys, Key, KeyKind, TokenIds, tokens_to_bytes
from apclab.blocks.observer import Observer
from apclab.blocks.request import Hit, Request
from apclab.blocks.requests import Requests
from apclab.blocks.stats import Lifetimes
from apclab.blocks.store import BlockStore, Reuse
from apclab.blocks.table import BlockTable


class BlockPool:
    """Fixed number of KV cache blocks with prefix caching, in vLLM 0.33's order.

    Only full blocks are cached, from the moment they have slots; generated tokens count. Of equal
    blocks the first one published answers lookups, the others stay as they are. A freed request
    gives its blocks back last one first: those without a key to the front of the free queue,
    those with a key to its end, where they can be hit until they are reused from the front.

    A scheduler makes requests known (`add_request`), gives them blocks (`admit`, `compute`) and
    takes them (`preempt`, `free`). By hand, `allocate_slots` and `append_tokens` do a prompt and
    its output in one act each. A refusal (None) changes nothing, and each attempt looks up anew:
    no hit is ever stale.

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
        now: seconds, set by the caller before an operation; only `lifetimes` looks at it.

    Raises:
        TypeError: a number is none.
        ValueError: block_size below 1, num_blocks below 2, or another value out of range.

    Source: vLLM 0.33.0, vllm/v1/core: block_pool.py, kv_cache_manager.py.
    """

    policy: ClassVar[Literal["v1"]] = "v1"  # of the engine that goes with it

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        keys: KeyKind = "exact",
        reuse: Reuse = "front",
        watermark: float = 0.0,
        force_miss: bool = False,
        drop_last_block: bool = False,
        record_events: bool = False,
        lifetimes: Lifetimes | None = None,
        remember: int = 64,
    ) -> None:
        self.block_size = whole_number("block_size", block_size, 1, INT32_MOST)
        self.enable_prefix_caching = truth("enable_prefix_caching", enable_prefix_caching)
        self.force_miss = truth("force_miss", force_miss)
        self.drop_last_block = truth("drop_last_block", drop_last_block)
        truth("record_events", record_events)
        if lifetimes is not None:
            instance("lifetimes", lifetimes, Lifetimes, "Lifetimes or None")
        self._store = BlockStore(num_blocks, reuse)
        self.num_blocks, self.reuse = self._store.num_blocks, self._store.reuse
        self._watermark = int(fraction("watermark", watermark) * self.num_blocks)
        self._observer = Observer(self.block_size, record_events=record_events, lifetimes=lifetimes)
        self.stats = self._observer.stats
        self.now = 0.0
        self._requests = Requests(
            self.num_blocks, self.block_size, keys, caching=self.enable_prefix_caching,
            keep_tokens=record_events, remember=remember,
        )  # fmt: skip

    @property
    def num_free(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return self._store.queue.count

    @property
    def usage(self) -> float:
        """Fraction of the usable blocks that requests hold, 0 to 1; cached alone is not used."""
        return 1 - self.num_free / (self.num_blocks - 1)

    @property
    def slot_usage(self) -> float:
        """Fraction of all usable token slots that hold a token of a request, 0 to 1.

        Below `usage` by the empty ends of last blocks.
        """
        held = self.num_blocks - 1 - self.num_free
        # a block that is not full has one owner
        live = self._requests.live.values()
        empty = sum(-request.num_computed_tokens % self.block_size for request in live)
        return (held * self.block_size - empty) / ((self.num_blocks - 1) * self.block_size)

    @property
    def num_cached(self) -> int:
        """Blocks that carry a key, held by a request or free."""
        cached = self._store.cached
        return len(cached) + sum(map(len, cached.others.values()))

    @property
    def num_keys(self) -> int:
        """Different keys that blocks carry; fewer than `num_cached` if some hold the same."""
        return len(self._store.cached)

    @property
    def num_evicted(self) -> int:
        """Keys dropped because their block was handed out again, or by `evict`."""
        return self._observer.num_evicted

    @property
    def lifetimes(self) -> Lifetimes | None:
        """What follows the blocks from hand-out to hand-out, as it was given."""
        return self._observer.lifetimes

    @property
    def records_events(self) -> bool:
        """Whether `take_events` may be asked."""
        return self._observer.events is not None

    def take_events(self) -> list[Event]:
        """What happened to keys since the last call, oldest first; ValueError if not recorded."""
        return self._observer.take_events()

    def free_queue(self) -> list[int]:
        """Free block ids, next to be handed out first."""
        return self._store.queue.ids()

    def cached_blocks(self) -> list[int]:
        """Ids of the blocks that carry a key, ascending."""
        return [block for block, key in enumerate(self._store.key_of) if key is not None]

    def ref_cnt(self, block_id: int) -> int:
        """Number of live requests whose table holds the block; ValueError if there is none."""
        return self._store.ref_cnt[self._store.usable(block_id)]

    def ref_cnts(self) -> list[int]:
        """`ref_cnt` of every block by its id; the null block 0 has none."""
        return self._store.ref_cnt.copy()

    def request(self, request_id: Hashable) -> Request:
        """The record of a known request, to read; ValueError for any other."""
        return self._requests.get(request_id)

    def live_requests(self) -> list[Hashable]:
        """Names of the requests that hold blocks, as they were admitted."""
        return list(self._requests.live)

    def block_ids(self, request_id: Hashable) -> list[int]:
        """The block table of a request, [] while it waits; ValueError if it is not known."""
        return list(self._requests.get(request_id).block_ids)

    def num_tokens(self, request_id: Hashable) -> int:
        """Tokens of a request that have a slot, 0 while it waits; ValueError if not known."""
        return self._requests.get(request_id).num_computed_tokens

    def block_table(self, request_ids: Iterable[Hashable] | None = None) -> BlockTable:
        """What a decode step of these requests sees; all live ones as they were admitted if None.

        Raises:
            ValueError: no request at all, one that is not live, or one named twice.
        """
        return self._requests.block_table(request_ids)

    def get_computed_blocks(self, token_ids: TokenIds, *, extra: ExtraKeys | None = None) -> Hit:
        """Find the longest cached prefix of a prompt, given as to `add_request`; changes nothing.

        At most num_tokens - 1 tokens are found: the last must be computed to get a next one.
        """
        tokens = tokens_to_bytes(token_ids, least=1)
        if not self.enable_prefix_caching or self.force_miss:
            return Hit([], 0)
        return self._hit(self._requests.keys.find(tokens, extra), len(tokens) // TOKEN_BYTES)

    def explain_hit(self, request_id: Hashable) -> str:
        """Why a request found what it found, or would find it now while it waits; in words.

        It is compared with the newest prompts, see `remember`. ValueError if it is not known.
        """
        request = self._requests.get(request_id)
        hit = request.num_cached_tokens if request.block_ids else self.lookup(request_id).num_tokens
        if not self.enable_prefix_caching:
            return "prefix caching is off"
        if request.skip_reading_prefix_cache:
            return "the request does not read the cache (skip_reading_prefix_cache)"
        if self.force_miss:
            return "every lookup is made to miss (force_miss)"
        if self.drop_last_block:
            return f"{hit} tokens found: the last block found is not used (drop_last_block)"
        return self._requests.memory.explain(request, hit, self.block_size)

    def add_request(
        self,
        request_id: Hashable,
        token_ids: TokenIds,
        *,
        output_token_ids: TokenIds = (),
        extra: ExtraKeys | None = None,
        skip_reading_prefix_cache: bool = False,
    ) -> Request:
        """Make a request known: its full blocks are hashed, once. It waits for `admit`.

        Args:
            request_id: any hashable name that no known request has.
            token_ids: [num_tokens] ints, at least one, 0 to 2**31 - 1.
            output_token_ids: [n] ints, what it will generate, if that is known: hashed now, and
                known to the request one by one as `generate` says so.
            extra: salt, adapter, images.
            skip_reading_prefix_cache: it publishes its blocks and finds none, as a request for
                the log probabilities of its prompt does.

        Returns:
            The pool's record of it, to be read.

        Raises:
            TypeError: token_ids are no ints, extra is no ExtraKeys.
            ValueError: the request is known already, or token_ids are empty or out of range.
        """
        return self._requests.add(
            request_id, token_ids, output_token_ids, extra, blind=skip_reading_prefix_cache
        )

    def add_hashed_request(
        self,
        request_id: Hashable,
        keys: Sequence[Key],
        num_tokens: int,
        *,
        skip_reading_prefix_cache: bool = False,
    ) -> Request:
        """Make a request known by the identities of its blocks, as a trace's hash_ids give them.

        Args:
            request_id: any hashable name that no known request has.
            keys: of its blocks from the first on, each standing for all before it too: ints or
                strings, as bytes are ours. Blocks behind them never get a key; a key of a block
                that never fills is not used.
            num_tokens: of the prompt, at least one. `generate` adds to them without limit.
            skip_reading_prefix_cache: it publishes its blocks and finds none.

        Raises:
            TypeError: num_tokens is no int.
            ValueError: the request is known already, num_tokens below 1, or a key comes twice.
        """
        return self._requests.add_hashed(
            request_id, keys, num_tokens, blind=skip_reading_prefix_cache
        )

    def add_tokens(self, request_id: Hashable, token_ids: TokenIds) -> None:
        """Generated tokens become known; slots come with `compute` or `admit`.

        Raises:
            TypeError: token_ids are no ints.
            ValueError: the request is not known, has tokens given ahead of time or came with
                keys; token_ids are nested or out of range.
        """
        self._requests.extend(self._requests.get(request_id), tokens_to_bytes(token_ids))

    def generate(self, request_id: Hashable, num_tokens: int = 1) -> None:
        """The next tokens that were given ahead of time become known.

        Raises:
            TypeError: num_tokens is no int.
            ValueError: the request is not known, num_tokens below 1, or fewer were given.
        """
        self._requests.generate(request_id, num_tokens)

    def lookup(self, request_id: Hashable) -> Hit:
        """What `admit` would find now; changes nothing. ValueError if it is not known."""
        return self._hit_of(self._requests.get(request_id))

    def admit(
        self,
        request_id: Hashable,
        num_new_tokens: int | None = None,
        *,
        full_sequence_must_fit: bool = False,
    ) -> Hit | None:
        """Look a waiting request up, hold what is found and slots for new tokens.

        Args:
            request_id: a known request that holds no blocks: new, refused before or preempted.
            num_new_tokens: tokens behind the hit that get slots, at most; None: all known ones.
            full_sequence_must_fit: refuse unless blocks for all its known tokens are free.

        Returns:
            What was found, or None when too few blocks are free. A found block that lies in the
            free queue takes one of the free blocks too; the watermark counts if anybody is live.

        Raises:
            TypeError: num_new_tokens is no int.
            ValueError: the request is not known or holds blocks, num_new_tokens below 1.
        """
        request = self._requests.waiting(request_id)
        if num_new_tokens is not None:
            num_new_tokens = whole_number("num_new_tokens", num_new_tokens, 1)
        hit = self._hit_of(request)
        store, cached, size = self._store, hit.block_ids, self.block_size
        num_known = num_computed = request.num_tokens
        if num_new_tokens is not None:
            num_computed = min(num_known, hit.num_tokens + num_new_tokens)
        num_new = -(-num_computed // size) - len(cached)
        wanted = -(-num_known // size) - len(cached) if full_sequence_must_fit else num_new
        room = store.queue.count - (self._watermark if self._requests.live else 0)
        # most admissions fit anyhow: hits that lie in the queue are counted only if it matters
        if wanted + len(cached) > room:
            ref_cnt = store.ref_cnt
            if wanted + sum(not ref_cnt[block] for block in cached) > room:
                return None
        if cached:
            store.touch(cached)
        self._requests.admit(request)
        request.num_cached_tokens = hit.num_tokens
        request.num_computed_tokens = num_computed
        taken, dropped = store.take(num_new)
        request.block_ids = cached + taken
        self._observer.taken(taken, dropped, self.now)
        self._publish(request, len(cached), num_computed // size)
        reads = self.enable_prefix_caching and not request.skip_reading_prefix_cache
        self._observer.admitted(request, cached, self.now, reads=reads)
        return hit

    def compute(self, request_id: Hashable, num_new_tokens: int = 1) -> list[int] | None:
        """Give slots to the next known tokens of a live request, and keys to blocks they fill.

        Args:
            request_id: a live request.
            num_new_tokens: at least 1, at most its known tokens without a slot.

        Returns:
            Ids of the blocks that were added, [] when the last block had room, or None when too
            few blocks are free; then nothing has changed.

        Raises:
            TypeError: num_new_tokens is no int.
            ValueError: the request is not live, or num_new_tokens out of range.
        """
        request = self._requests.live.get(request_id) or self._requests.alive(request_id)
        before = request.num_computed_tokens
        # a decode step's one token is not worth a call
        if num_new_tokens != 1:
            num_new_tokens = whole_number("num_new_tokens", num_new_tokens, 0)
        after = before + num_new_tokens
        if num_new_tokens < 1 or after > request.num_tokens:
            most = request.num_tokens - before
            raise ValueError(
                f"num_new_tokens must be between 1 and {most}, the known tokens of "
                f"{request_id!r} without a slot, got {num_new_tokens}"
            )
        size = self.block_size
        added: list[int] = []
        # most decode steps write to a block that stays partial: nothing to take, nothing to publish
        if num_new_tokens >= -before % size:
            num_new = -(-after // size) - len(request.block_ids)
            if num_new > self._store.queue.count:
                return None
            if num_new:
                added, dropped = self._store.take(num_new)
                request.block_ids += added
                self._observer.taken(added, dropped, self.now)
            if (full := after // size) * size > before:
                self._publish(request, before // size, full)
        request.num_computed_tokens = after
        return added

    def preempt(self, request_id: Hashable) -> None:
        """A live request loses its blocks and waits, its tokens stay. ValueError if not live."""
        self._store.release(self._requests.preempt(request_id))

    def free(self, request_id: Hashable) -> None:
        """End a request; blocks that nobody else holds become free. ValueError if not known."""
        self._store.release(self._requests.end(request_id))

    def allocate_slots(
        self,
        request_id: Hashable,
        token_ids: TokenIds,
        *,
        extra: ExtraKeys | None = None,
        skip_reading_prefix_cache: bool = False,
    ) -> Hit | None:
        """Admit a new request with all of its prompt, or forget it again.

        Arguments and errors are those of `add_request`, the answer is that of `admit`.
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
            self._requests.memory.drop(request)
        return hit

    def append_tokens(self, request_id: Hashable, token_ids: TokenIds) -> list[int] | None:
        """Give slots to generated tokens: `add_tokens` and `compute`, or neither.

        The tokens may be none. The answer is that of `compute`, errors are those of both.
        """
        request = self._requests.alive(request_id)
        tokens = tokens_to_bytes(token_ids)
        after = request.num_tokens + len(tokens) // TOKEN_BYTES
        missing = after - request.num_computed_tokens
        if -(-after // self.block_size) - len(request.block_ids) > self.num_free:
            return None
        self._requests.extend(request, tokens)
        return self.compute(request_id, missing) if missing else []

    def evict(self, block_ids: Iterable[int]) -> None:
        """Drop the keys of these blocks; they stay where they are. ValueError: no such block."""
        blocks = [self._store.usable(block_id) for block_id in block_ids]
        self._observer.evicted(blocks, self._store.drop_keys(blocks), self.now)

    def reset(self) -> bool:
        """Forget everything cached; False, and no change, while a request holds blocks.

        The free queue keeps its order, the statistics their sums; the recent hit rate starts anew.
        """
        if self._requests.live:
            return False
        self._store.forget_keys()
        self._requests.memory.forget(self._requests.admissions)
        self._observer.cleared()
        return True

    def check(self) -> None:
        """Raise RuntimeError naming the first invariant of `invariants.py` that does not hold."""
        check_pool(self)

    def _hit_of(self, request: Request) -> Hit:
        if self.force_miss or request.skip_reading_prefix_cache:
            return Hit([], 0)
        return self._hit(request.keys, request.num_tokens)

    def _hit(self, keys: list[Key], num_tokens: int) -> Hit:
        # the last token must be computed to get a next one, so its block is not looked for
        cached = self._store.find(keys, (num_tokens - 1) // self.block_size)
        if self.drop_last_block and cached:
            cached.pop()
        return Hit(cached, len(cached) * self.block_size)

    def _publish(self, request: Request, start: int, end: int) -> None:
        """Give their keys to blocks start to end - 1 of a request, as far as it has keys."""
        keys = request.keys[start:end]
        self._store.publish(request.block_ids[start:end], keys)
        if end > request.num_published:
            request.num_published = end
        self._observer.published(request, start, keys)
