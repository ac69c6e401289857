"""What must hold in a `BlockPool` after every operation. Reads the pool, never changes a block.

Two rules are about a change, not about a state. I6 is checked against the tables of the last
check. I8, a refused allocation changes nothing, is checked by tests that compare the states.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from apclab.blocks.keys import PrefixKeys

if TYPE_CHECKING:
    from apclab.blocks.pool import BlockPool


def check_pool(pool: "BlockPool") -> None:
    """Check I1 to I7 and I14.

    I1: every block but the null block is either in the free queue or referenced.
    I2: ref_cnt is the number of live tables that hold the block.
    I3: free and referenced blocks together are num_blocks - 1.
    I4: a block carries a key exactly if the key names the block.
    I5: only full blocks carry a key, and it is chained to the key of the block before.
    I6: a table covers its tokens, and only grows while its request lives.
    I7: a hit is a multiple of the block size and below the prompt's tokens.
    I14: distinct blocks are at most the table entries, as many with caching off.

    Raises:
        RuntimeError: the first broken invariant, its number first.
    """
    for problem in _problems(pool):
        raise RuntimeError(problem)
    for request in pool._requests.values():
        request.checked_ids = list(request.block_ids)


def _problems(pool: "BlockPool") -> Iterator[str]:
    yield from _ownership(pool)
    yield from _keys(pool)
    yield from _requests(pool)


def _ownership(pool: "BlockPool") -> Iterator[str]:
    holders = Counter(block for r in pool._requests.values() for block in r.block_ids)
    for block in range(1, pool.num_blocks):
        if (block in pool._free) == (pool._ref_cnt[block] > 0):
            yield f"I1: block {block} must be free or referenced, not both, not neither"
        if pool._ref_cnt[block] != holders[block]:
            yield (
                f"I2: block {block} has ref_cnt {pool._ref_cnt[block]} and {holders[block]} tables"
            )
    held = sum(count > 0 for count in pool._ref_cnt)
    if len(pool._free) + held != pool.num_blocks - 1:
        yield f"I3: {len(pool._free)} free and {held} referenced of {pool.num_blocks - 1} blocks"
    if 0 in pool._free or holders[0] or pool._key[0] is not None:
        yield "I3: the null block 0 must stay unused"
    entries = holders.total()
    if len(holders) > entries or (not pool.enable_prefix_caching and len(holders) < entries):
        yield f"I14: {len(holders)} distinct blocks in {entries} table entries"


def _keys(pool: "BlockPool") -> Iterator[str]:
    for block, key in enumerate(pool._key):
        if key is not None and block not in pool._cached.get(key, {}):
            yield f"I4: block {block} carries key {key}, which does not name it"
    for key, blocks in pool._cached.items():
        if not blocks:
            yield f"I4: key {key} names no block"
        for block in blocks:
            if pool._key[block] != key:
                yield f"I4: key {key} names block {block}, which carries {pool._key[block]}"


def _requests(pool: "BlockPool") -> Iterator[str]:
    size = pool.block_size
    for name, request in pool._requests.items():
        if len(request.block_ids) != -(-request.num_tokens // size):
            yield (
                f"I6: request {name!r} holds {len(request.block_ids)} blocks "
                f"for {request.num_tokens} tokens"
            )
        if request.block_ids[: len(request.checked_ids)] != request.checked_ids:
            yield f"I6: the table of request {name!r} was {request.checked_ids} before"
        full = request.num_tokens // size if pool.enable_prefix_caching else 0
        if len(request.keys) != full:
            yield f"I5: request {name!r} has {full} full blocks and {len(request.keys)} keys"
        parent = PrefixKeys.ROOT
        for key in request.keys:
            if pool._keys.parent(key) != parent:
                yield f"I5: request {name!r} has key {key} behind {parent}, not its parent"
            parent = key
        for i, block in enumerate(request.block_ids):
            # a key that was evicted by hand is missing, and nothing else may stand there
            expected = request.keys[i] if i < len(request.keys) else None
            if pool._key[block] not in (None, expected):
                yield f"I5: block {block} of request {name!r} carries {pool._key[block]}"
        cached = request.num_cached_tokens
        if cached % size or not 0 <= cached < request.num_prompt_tokens:
            yield f"I7: request {name!r} hit {cached} of {request.num_prompt_tokens} tokens"
