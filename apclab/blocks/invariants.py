"""What must hold in a `BlockPool` after every operation. Reads the pool, never changes a block.

Two rules are about a change, not about a state. I6 is checked against the tables of the last
check. I8, a refused allocation changes nothing, is checked by tests that compare the states.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from apclab.blocks.keys import ExactKeys
from apclab.blocks.request import Request

if TYPE_CHECKING:
    from apclab.blocks.pool import BlockPool


def check_pool(pool: "BlockPool") -> None:
    """Check I1 to I7, I9 and I14.

    I1: every block but the null block is either in the free queue or referenced.
    I2: ref_cnt is the number of live tables that hold the block, none of them twice.
    I3: free and referenced blocks together are num_blocks - 1.
    I4: a block carries a key exactly if the key names the block.
    I5: only full blocks carry a key, and it is chained to the key of the block before.
    I6: a table covers its computed tokens, and only grows while its request lives.
    I7: a hit is a multiple of the block size and below the request's tokens.
    I9: usage is 0 exactly if no request holds blocks; a live request is a known one.
    I14: distinct blocks are at most the table entries, as many with caching off.

    Raises:
        RuntimeError: the first broken invariant, its number first.
    """
    for problem in _problems(pool):
        raise RuntimeError(problem)
    for request in pool._requests.live.values():
        request.checked_ids = list(request.block_ids)


def _problems(pool: "BlockPool") -> Iterator[str]:
    yield from _ownership(pool)
    yield from _keys(pool)
    for request in pool._requests.live.values():
        yield from _table(pool, request)
        yield from _chain(pool, request)


def _ownership(pool: "BlockPool") -> Iterator[str]:
    store, live = pool._store, pool._requests.live
    holders = Counter(block for r in live.values() for block in r.block_ids)
    try:
        queue = store.queue.ids()
    except RuntimeError as error:
        yield f"I1: {error}"
        return
    free = set(queue)
    for block in range(1, pool.num_blocks):
        if (block in free) == (store.ref_cnt[block] > 0):
            yield f"I1: block {block} must be free or referenced, not both, not neither"
        if store.ref_cnt[block] != holders[block]:
            yield (
                f"I2: block {block} has ref_cnt {store.ref_cnt[block]} and {holders[block]} tables"
            )
    held = sum(count > 0 for count in store.ref_cnt)
    if not len(free) == len(queue) == pool.num_free == pool.num_blocks - 1 - held:
        yield f"I3: {pool.num_free} free and {held} referenced of {pool.num_blocks - 1} blocks"
    if 0 in free or holders[0] or store.key_of[0] is not None:
        yield "I3: the null block 0 must stay unused"
    for name, request in pool._requests.known.items():
        if bool(request.block_ids) != (name in live):
            yield f"I9: request {name!r} must hold blocks exactly while it is live"
    if len(live) != sum(bool(r.block_ids) for r in pool._requests.known.values()):
        yield "I9: a live request must be known"
    entries = holders.total()
    if len(holders) > entries or (not pool.enable_prefix_caching and len(holders) < entries):
        yield f"I14: {len(holders)} distinct blocks in {entries} table entries"


def _keys(pool: "BlockPool") -> Iterator[str]:
    key_of, cached = pool._store.key_of, pool._store.cached
    for block, key in enumerate(key_of):
        if key is not None and block not in cached.blocks(key):
            yield f"I4: block {block} carries key {key!r}, which does not name it"
    for key in (*cached.first, *cached.others):
        if not (blocks := cached.blocks(key)):
            yield f"I4: key {key!r} names no first block"
        if len(set(blocks)) < len(blocks) or cached.others.get(key) == {}:
            yield f"I4: key {key!r} names blocks {blocks}, one twice, or keeps an empty rest"
        for block in blocks:
            if key_of[block] != key:
                yield f"I4: key {key!r} names block {block}, which carries {key_of[block]!r}"


def _table(pool: "BlockPool", request: Request) -> Iterator[str]:
    name, size = request.request_id, pool.block_size
    if len(request.block_ids) != -(-request.num_computed_tokens // size):
        yield (
            f"I6: request {name!r} holds {len(request.block_ids)} blocks "
            f"for {request.num_computed_tokens} tokens"
        )
    if request.num_computed_tokens > request.num_tokens:
        yield (
            f"I6: request {name!r} has slots for {request.num_computed_tokens} "
            f"of {request.num_tokens} tokens"
        )
    if len(set(request.block_ids)) < len(request.block_ids):
        yield f"I2: request {name!r} holds a block twice: {request.block_ids}"
    if request.block_ids[: len(request.checked_ids)] != request.checked_ids:
        yield f"I6: the table of request {name!r} was {request.checked_ids} before"
    cached = request.num_cached_tokens
    if cached % size or not 0 <= cached < request.num_tokens:
        yield f"I7: request {name!r} hit {cached} of {request.num_tokens} tokens"


def _chain(pool: "BlockPool", request: Request) -> Iterator[str]:
    name, keys, key_of = request.request_id, request.keys, pool._store.key_of
    full = request.num_computed_tokens // pool.block_size
    for i, block in enumerate(request.block_ids):
        # a key that was evicted by hand is missing, and nothing else may stand there
        expected = keys[i] if i < min(full, len(keys)) else None
        if key_of[block] not in (None, expected):
            yield f"I5: block {block} of request {name!r} carries {key_of[block]!r}"
    if request.num_given_tokens is None:
        return
    given = request.num_given_tokens // pool.block_size if pool.enable_prefix_caching else 0
    if len(keys) != given:
        yield f"I5: request {name!r} has {given} full blocks and {len(keys)} keys"
    if isinstance(made := pool._requests.keys, ExactKeys):
        for parent, key in zip([ExactKeys.ROOT, *keys], keys, strict=False):
            if made.parent(key) != parent:
                yield f"I5: request {name!r} has key {key!r} behind {parent!r}, not its parent"
