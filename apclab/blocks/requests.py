"""The requests that a pool knows: tokens become known and are hashed, once. No block changes."""

from collections.abc import Hashable, Sequence

from apclab.arguments import INT32_MOST, fraction, truth, whole_number
from apclab.blocks.keys import (
    TOKEN_BYTES,
    ExtraKeys,
    Key,
    KeyKind,
    TokenIds,
    make_keys,
    tokens_to_bytes,
)
from apclab.blocks.misses import PromptMemory
from apclab.blocks.prompts import PromptKeys
from apclab.blocks.request import Request
from apclab.blocks.stats import Lifetimes, PrefixCacheStats
from apclab.blocks.store import BlockStore, Reuse


class RequestPool(BlockStore):
    """A store of blocks and the requests that may hold them. See `BlockPool` for the arguments."""

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
        super().__init__(
            num_blocks,
            block_size=block_size,
            reuse=reuse,
            record_events=record_events,
            lifetimes=lifetimes,
        )
        self.enable_prefix_caching = truth("enable_prefix_caching", enable_prefix_caching)
        self.force_miss = truth("force_miss", force_miss)
        self.drop_last_block = truth("drop_last_block", drop_last_block)
        self.stats = PrefixCacheStats()
        self._watermark = int(fraction("watermark", watermark) * self.num_blocks)
        self._keys = make_keys(keys, self.block_size)
        self._prompts = PromptKeys(self._keys, self.block_size, self.num_blocks)
        self._memory = PromptMemory(whole_number("remember", remember, 0, INT32_MOST))
        self._requests: dict[Hashable, Request] = {}  # all that are known
        self._live: dict[Hashable, Request] = {}  # those that hold blocks, as they were admitted
        self._admissions = 0

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

        Raises:
            TypeError: token_ids are no ints, extra is no ExtraKeys.
            ValueError: the request is known already, or token_ids are empty or out of range.
        """
        self._must_be_new(request_id)
        if extra is not None and not isinstance(extra, ExtraKeys):
            raise TypeError(f"extra must be ExtraKeys or None, got {extra!r}")
        prompt = given = tokens_to_bytes(token_ids, least=1)
        if len(output_token_ids):
            given = prompt + tokens_to_bytes(output_token_ids)
        keys: list[Key] = []
        tail = self._prompts.extend(keys, given, extra) if self.enable_prefix_caching else b""
        num_tokens = len(prompt) // TOKEN_BYTES
        request = Request(
            request_id,
            num_prompt_tokens=num_tokens,
            num_tokens=num_tokens,
            num_given_tokens=len(given) // TOKEN_BYTES,
            keys=keys,
            tail=tail,
            extra=extra,
            tokens=given if self._events is not None else None,
            skip_reading_prefix_cache=bool(skip_reading_prefix_cache),
        )
        self._memory.add(request, prompt)
        self._requests[request_id] = request
        return request

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
        self._must_be_new(request_id)
        num_tokens = whole_number("num_tokens", num_tokens, 1)
        own = list(keys) if self.enable_prefix_caching else []
        if len(set(own)) < len(own):
            raise ValueError(f"keys must name each block once, got {own}")
        request = Request(
            request_id,
            num_prompt_tokens=num_tokens,
            num_tokens=num_tokens,
            num_given_tokens=None,
            keys=own,
            skip_reading_prefix_cache=bool(skip_reading_prefix_cache),
        )
        self._memory.add(request, None)
        self._requests[request_id] = request
        return request

    def add_tokens(self, request_id: Hashable, token_ids: TokenIds) -> None:
        """Generated tokens become known; slots come with `compute` or `admit`.

        Raises:
            TypeError: token_ids are no ints.
            ValueError: the request is not known, has tokens given ahead of time or came with
                keys; token_ids are nested or out of range.
        """
        self._add(self._request(request_id), tokens_to_bytes(token_ids))

    def generate(self, request_id: Hashable, num_tokens: int = 1) -> None:
        """The next tokens that were given ahead of time become known.

        Raises:
            TypeError: num_tokens is no int.
            ValueError: the request is not known, num_tokens below 1, or fewer were given.
        """
        request = self._requests.get(request_id) or self._request(request_id)
        if num_tokens != 1:
            num_tokens = whole_number("num_tokens", num_tokens, 1)
        known = request.num_tokens + num_tokens
        if request.num_given_tokens is not None and known > request.num_given_tokens:
            raise ValueError(
                f"num_tokens must be within the {request.num_given_tokens} given "
                f"to {request_id!r}, got {num_tokens} behind {request.num_tokens}"
            )
        request.num_tokens = known

    def _add(self, request: Request, tokens: bytes) -> None:
        if request.num_given_tokens != request.num_tokens:
            name = request.request_id
            raise ValueError(f"request_id must be one whose tokens come here, got {name!r}")
        if self.enable_prefix_caching:
            tail = request.tail + tokens
            if len(tail) >= self.block_size * TOKEN_BYTES:
                tail = self._keys.extend(request.keys, tail, request.extra)
            request.tail = tail
        if request.tokens is not None:
            request.tokens += tokens
        request.num_tokens += len(tokens) // TOKEN_BYTES
        request.num_given_tokens = request.num_tokens

    def _request(self, request_id: Hashable) -> Request:
        request = self._requests.get(request_id)
        if request is None:
            known = len(self._requests)
            raise ValueError(f"request_id must be one of {known} known, got {request_id!r}")
        return request

    def _alive(self, request_id: Hashable) -> Request:
        request = self._live.get(request_id)
        if request is None:
            live = len(self._live)
            raise ValueError(f"request_id must be one of {live} live, got {request_id!r}")
        return request

    def _must_be_new(self, request_id: Hashable) -> None:
        if request_id in self._requests:
            raise ValueError(f"request_id must be new, {request_id!r} is known already")
