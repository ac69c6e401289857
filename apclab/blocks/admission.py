"""What a scheduler asks of a pool, act by act: known, admitted, computed, preempted, freed.

    add_request         tokens become known and are hashed, once; the request waits
    add_hashed_request  the same with keys from outside, such as a trace's hash_ids
    lookup              what `admit` would find now; changes nothing
    admit               look up, hold the hit and slots for some or all of the rest, or None
    compute             slots for more of the known tokens (a chunk, a decode step), or None
    add_tokens          generated tokens become known, without slots
    generate            the same for tokens that were given to `add_request` ahead of time
    preempt             the blocks go, the tokens stay: the request waits for `admit` again
    free                the request ends and is forgotten

A refusal (None) changes nothing, and each attempt looks up anew: no hit is ever stale. The record
that `add_request` returns, `Request`, is there to be read: num_tokens, num_computed_tokens,
num_cached_tokens, block_ids, num_preemptions.
"""

from collections.abc import Hashable
from typing import NamedTuple

from apclab.arguments import whole_number
from apclab.blocks.keys import Key
from apclab.blocks.request import Request
from apclab.blocks.requests import RequestPool


class Hit(NamedTuple):
    """The longest cached prefix of a prompt."""

    block_ids: list[int]
    num_tokens: int  # a multiple of the block size, below the prompt's number of tokens


class AdmissionPool(RequestPool):
    """The acts that give blocks to requests and take them. See `BlockPool` for the arguments."""

    def lookup(self, request_id: Hashable) -> Hit:
        """What `admit` would find now; changes nothing. ValueError if it is not known."""
        return self._hit_of(self._request(request_id))

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
        request = self._request(request_id)
        if request.block_ids:
            raise ValueError(f"request_id must be waiting, {request_id!r} holds blocks already")
        if num_new_tokens is not None:
            num_new_tokens = whole_number("num_new_tokens", num_new_tokens, 1)
        hit = self._hit_of(request)
        found, size = hit.block_ids, self.block_size
        num_known = num_computed = request.num_tokens
        if num_new_tokens is not None:
            num_computed = min(num_known, hit.num_tokens + num_new_tokens)
        num_new = -(-num_computed // size) - len(found)
        wanted = -(-num_known // size) - len(found) if full_sequence_must_fit else num_new
        room = self._queue.count - (self._watermark if self._live else 0)
        # most admissions fit anyhow: hits that lie in the queue are counted only if it matters
        if wanted + len(found) > room:
            ref_cnt = self._ref_cnt
            if wanted + sum(not ref_cnt[block] for block in found) > room:
                return None
        if found:
            self._touch(found)
        self._admissions += 1
        request.admitted = self._admissions
        request.block_ids = found.copy()
        request.num_cached_tokens = hit.num_tokens
        request.num_computed_tokens = num_computed
        self._live[request_id] = request
        self._take(request.block_ids, num_new)
        self._publish(request, len(found), num_computed // size)
        if self.enable_prefix_caching and not request.skip_reading_prefix_cache:
            self.stats.count(num_known, hit.num_tokens, preempted=request.num_preemptions > 0)
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
        request = self._live.get(request_id) or self._alive(request_id)
        size, block_ids = self.block_size, request.block_ids
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
        added: list[int] = []
        if after > len(block_ids) * size:
            num_new = -(-after // size) - len(block_ids)
            if num_new > self._queue.count:
                return None
            self._take(block_ids, num_new)
            added = block_ids[-num_new:]
        request.num_computed_tokens = after
        full = after // size
        if full * size > before:
            self._publish(request, before // size, full)
        return added

    def preempt(self, request_id: Hashable) -> None:
        """A live request loses its blocks and waits, its tokens stay. ValueError if not live."""
        request = self._alive(request_id)
        del self._live[request_id]
        self._release(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.checked_ids = []

    def free(self, request_id: Hashable) -> None:
        """End a request; blocks that nobody else holds become free. ValueError if not known."""
        request = self._request(request_id)
        del self._requests[request_id]
        if request.block_ids:
            del self._live[request_id]
            self._release(request.block_ids)
            request.block_ids = []

    def _hit_of(self, request: Request) -> Hit:
        if self.force_miss or request.skip_reading_prefix_cache:
            return Hit([], 0)
        return self._hit(request.keys, request.num_tokens)

    def _hit(self, keys: list[Key], num_tokens: int) -> Hit:
        # the last token must be computed to get a next one, so its block is not looked for
        found = self._find(keys, (num_tokens - 1) // self.block_size)
        if self.drop_last_block and found:
            found.pop()
        return Hit(found, len(found) * self.block_size)
