"""The requests that a pool knows: tokens become known and are hashed, once. No block changes."""

from collections.abc import Hashable, Iterable, Sequence

from apclab.arguments import INT32_MOST, whole_number
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
from apclab.blocks.table import BlockTable


class Requests:
    """The requests of one pool by name: known ones wait for blocks, live ones hold some.

    Args:
        num_blocks: of the pool; so much of earlier prompts is kept, to hash the next ones faster.
        block_size: tokens per block.
        keys: "exact", "sha256" or "xxh3", see `BlockPool`.
        caching: False: nothing gets a key.
        keep_tokens: each request's record keeps its tokens.
        remember: the newest prompts that `memory` keeps.

    Attributes:
        known: all of them.
        live: those that hold blocks, as they were admitted.
        admissions: how many there have been.
        keys: what makes the keys of blocks; also what a prompt that is not known would have.
        memory: the newest prompts, ended ones too.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        keys: KeyKind,
        *,
        caching: bool,
        keep_tokens: bool,
        remember: int,
    ) -> None:
        self.known: dict[Hashable, Request] = {}
        self.live: dict[Hashable, Request] = {}
        self.admissions = 0
        self.keys = make_keys(keys, block_size)
        self.memory = PromptMemory(whole_number("remember", remember, 0, INT32_MOST))
        self._prompts = PromptKeys(self.keys, block_size, num_blocks)
        self._block_size, self._caching, self._keep_tokens = block_size, caching, keep_tokens

    def add(
        self,
        request_id: Hashable,
        token_ids: TokenIds,
        output_token_ids: TokenIds,
        extra: ExtraKeys | None,
        *,
        blind: bool,
    ) -> Request:
        """As `BlockPool.add_request`; blind: it does not read the cache."""
        self._must_be_new(request_id)
        if extra is not None and not isinstance(extra, ExtraKeys):
            raise TypeError(f"extra must be ExtraKeys or None, got {extra!r}")
        prompt = given = tokens_to_bytes(token_ids, least=1)
        if len(output_token_ids):
            given = prompt + tokens_to_bytes(output_token_ids)
        keys: list[Key] = []
        tail = self._prompts.extend(keys, given, extra) if self._caching else b""
        count, tokens = len(prompt) // TOKEN_BYTES, given if self._keep_tokens else None
        request = Request(request_id, count, count, len(given) // TOKEN_BYTES, keys, tail, extra,
                          tokens, bool(blind))  # fmt: skip
        self.memory.add(request, prompt)
        self.known[request_id] = request
        return request

    def add_hashed(
        self, request_id: Hashable, keys: Sequence[Key], num_tokens: int, *, blind: bool
    ) -> Request:
        """As `BlockPool.add_hashed_request`."""
        self._must_be_new(request_id)
        num_tokens = whole_number("num_tokens", num_tokens, 1)
        own = list(keys) if self._caching else []
        if len(set(own)) < len(own):
            raise ValueError(f"keys must name each block once, got {own}")
        request = Request(request_id, num_tokens, num_tokens, None, own,
                          skip_reading_prefix_cache=bool(blind))  # fmt: skip
        self.memory.add(request, None)
        self.known[request_id] = request
        return request

    def extend(self, request: Request, tokens: bytes) -> None:
        """As `BlockPool.add_tokens`, with tokens that are checked."""
        if request.num_given_tokens != request.num_tokens:
            name = request.request_id
            raise ValueError(f"request_id must be one whose tokens come here, got {name!r}")
        if self._caching:
            tail = request.tail + tokens
            if len(tail) >= self._block_size * TOKEN_BYTES:
                tail = self.keys.extend(request.keys, tail, request.extra)
            request.tail = tail
        if request.tokens is not None:
            request.tokens += tokens
        request.num_tokens += len(tokens) // TOKEN_BYTES
        request.num_given_tokens = request.num_tokens

    def generate(self, request_id: Hashable, num_tokens: int) -> None:
        """As `BlockPool.generate`."""
        request = self.known.get(request_id) or self.get(request_id)
        if num_tokens != 1:
            num_tokens = whole_number("num_tokens", num_tokens, 1)
        known = request.num_tokens + num_tokens
        if request.num_given_tokens is not None and known > request.num_given_tokens:
            raise ValueError(
                f"num_tokens must be within the {request.num_given_tokens} given "
                f"to {request_id!r}, got {num_tokens} behind {request.num_tokens}"
            )
        request.num_tokens = known

    def get(self, request_id: Hashable) -> Request:
        """A known request; ValueError if it is not."""
        request = self.known.get(request_id)
        if request is None:
            known = len(self.known)
            raise ValueError(f"request_id must be one of {known} known, got {request_id!r}")
        return request

    def alive(self, request_id: Hashable) -> Request:
        """A live request; ValueError if it is not."""
        request = self.live.get(request_id)
        if request is None:
            live = len(self.live)
            raise ValueError(f"request_id must be one of {live} live, got {request_id!r}")
        return request

    def waiting(self, request_id: Hashable) -> Request:
        """A known request that holds no blocks; ValueError if it is not."""
        request = self.known.get(request_id) or self.get(request_id)
        if request.block_ids:
            raise ValueError(f"request_id must be waiting, {request_id!r} holds blocks already")
        return request

    def admit(self, request: Request) -> None:
        """A waiting request is live from now on."""
        self.admissions += 1
        request.admitted = self.admissions
        self.live[request.request_id] = request

    def preempt(self, request_id: Hashable) -> list[int]:
        """A live request waits again; the blocks that it held. ValueError if it is not live."""
        request = self.alive(request_id)
        del self.live[request_id]
        held, request.block_ids = request.block_ids, []
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.checked_ids = []
        return held

    def end(self, request_id: Hashable) -> list[int]:
        """A request is forgotten; the blocks that it held. ValueError if it is not known."""
        request = self.known.get(request_id) or self.get(request_id)
        del self.known[request_id]
        self.live.pop(request_id, None)
        held, request.block_ids = request.block_ids, []
        return held

    def block_table(self, request_ids: Iterable[Hashable] | None) -> BlockTable:
        """As `BlockPool.block_table`."""
        ids = list(self.live if request_ids is None else request_ids)
        if not ids:
            raise ValueError("request_ids must name at least one live request, got none")
        if len(set(ids)) < len(ids):
            raise ValueError(f"request_ids must name a request once, got {ids}")
        rows = [self.alive(request_id) for request_id in ids]
        lens = [row.num_computed_tokens for row in rows]
        return BlockTable.from_rows([row.block_ids for row in rows], lens, self._block_size)

    def _must_be_new(self, request_id: Hashable) -> None:
        if request_id in self.known:
            raise ValueError(f"request_id must be new, {request_id!r} is known already")
