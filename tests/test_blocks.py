"""The block pool: hand-computed cases, refusals that change nothing, invariants that speak up."""

import copy
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from apclab.blocks import BlockPool, BlockTable, ExactKeys, Hit, Key
from apclab.workload import ISSUE_4860, OWN_HISTORY, Workload


def admit_all(pool: BlockPool, workload: Workload, step: str = "mid") -> list[Hit]:
    """Prime the pool, admit the batch, generate up to the step; nothing may be refused."""
    for i, prefix in enumerate(workload.primers()):
        assert pool.allocate_slots(f"primer {i}", prefix) is not None
        pool.free(f"primer {i}")
    hits = [pool.allocate_slots(i, prompt) for i, prompt in enumerate(workload.prompts())]
    count = workload.seq_len(step) - workload.input_len
    for i, generated in enumerate(workload.generated()):
        assert pool.append_tokens(i, generated[:count]) is not None
    pool.check()
    return [hit for hit in hits if hit is not None]


def test_issue_4860_by_hand() -> None:
    # 300 tokens: 18 full blocks of 16 are shared (288 tokens); behind them 22 own tokens at 310,
    # in 2 blocks a request: 18 + 200 blocks, and not one more
    pool = BlockPool(1 + 18 + 200)
    hits = admit_all(pool, ISSUE_4860)
    assert {hit.num_tokens for hit in hits} == {288}
    assert (pool.num_free, pool.usage) == (0, 1.0)
    table = pool.block_table()
    assert table.block_tables.shape == (100, 20)
    assert set(table.seq_lens.tolist()) == {310}
    sharing = table.sharing()
    assert (sharing.table_entries, sharing.distinct_blocks) == (2000, 218)
    assert sharing.readers_mean == 2000 / 218
    assert sharing.readers[:, :18].tolist() == [[100] * 18] * 100
    assert sharing.readers[:, 18:].tolist() == [[1, 1]] * 100
    assert (sharing.logical_tokens, sharing.distinct_tokens) == (31_000, 288 + 100 * 22)
    # llama-13b in bfloat16: 2 * 40 heads * 128 * 2 bytes = 20,480 bytes a token and layer
    assert sharing.logical_bytes(20_480) == 634_880_000
    assert sharing.distinct_bytes(20_480) == 50_954_240


def test_issue_4860_needs_every_block() -> None:
    pool = BlockPool(18 + 200)
    with pytest.raises(AssertionError):
        admit_all(pool, ISSUE_4860)
    assert pool.append_tokens(99, [1] * 10) is None
    pool.check()


def test_issue_4860_first_step_and_unprimed() -> None:
    # at 301 tokens the 19th block holds 12 + 1: 18 shared and 100 own blocks
    pool = BlockPool(1000)
    admit_all(pool, ISSUE_4860, "first")
    assert pool.block_table().sharing().distinct_blocks == 118
    # unprimed, the first request computes what the other 99 hit
    pool = BlockPool(1000)
    hits = admit_all(pool, Workload(primed=False))
    assert [hit.num_tokens for hit in hits] == [0] + [288] * 99
    assert pool.block_table().sharing().distinct_blocks == 218


def test_own_history_hits_and_shares_nothing() -> None:
    # 270 of 300 tokens are known: 16 full blocks, 256 tokens; 20 blocks a request at 310
    pool = BlockPool(1 + 100 * 20)
    hits = admit_all(pool, OWN_HISTORY)
    assert sum(hit.num_tokens for hit in hits) / (100 * 300) == 256 / 300
    sharing = pool.block_table().sharing()
    assert (sharing.table_entries, sharing.distinct_blocks) == (2000, 2000)
    assert sharing.readers_mean == 1.0


def test_no_sharing() -> None:
    pool = BlockPool(3000)
    hits = admit_all(pool, Workload(cache_hit=0.0))
    assert {hit.num_tokens for hit in hits} == {0}
    assert pool.block_table().sharing().readers_mean == 1.0


@pytest.mark.parametrize(("groups", "shared"), [(1, 18), (4, 72), (100, 1800)])
def test_prefix_groups(groups: int, shared: int) -> None:
    pool = BlockPool(4500)
    hits = admit_all(pool, Workload(prefix_groups=groups))
    assert {hit.num_tokens for hit in hits} == {288}
    assert pool.block_table().sharing().distinct_blocks == shared + 200


@pytest.mark.parametrize(
    ("block_size", "length", "same", "longer"),
    # facts of vLLM 0.33: tokens hit by the identical prompt, and by five more tokens
    [
        (16, 1, 0, 0),
        (16, 47, 32, 32),
        (16, 48, 32, 48),
        (16, 49, 48, 48),
        (16, 63, 48, 48),
        (1, 48, 47, 48),
        (32, 48, 32, 32),
        (16, 300, 288, 288),
        (256, 300, 256, 256),
    ],
)
def test_last_token_is_recomputed(block_size: int, length: int, same: int, longer: int) -> None:
    pool = BlockPool(400, block_size=block_size)
    prompt = list(range(length))
    pool.allocate_slots("a", prompt)
    assert pool.get_computed_blocks(prompt).num_tokens == same
    assert pool.get_computed_blocks(prompt + [7] * 5).num_tokens == longer


def test_order_of_the_free_queue() -> None:
    # facts 5 to 8 of vLLM 0.33: 55 and 53 tokens that share 48
    pool = BlockPool(11)
    common = list(range(48))
    assert pool.allocate_slots("a", [*common, *range(100, 107)]) == Hit([], 0)
    assert pool.block_ids("a") == [1, 2, 3, 4]
    assert pool.allocate_slots("b", [*common, *range(200, 205)]) == Hit([1, 2, 3], 48)
    assert (pool.block_ids("b"), pool.num_tokens("b")) == ([1, 2, 3, 5], 53)
    assert [pool.ref_cnt(block) for block in range(1, 6)] == [2, 2, 2, 1, 1]
    pool.free("a")
    pool.free("b")
    assert pool.free_queue() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert (pool.num_free, pool.usage, pool.num_cached) == (10, 0.0, 3)
    assert pool.allocate_slots("c", range(500, 660)) == Hit([], 0)
    assert pool.block_ids("c") == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert pool.get_computed_blocks([*common, 1]) == Hit([], 0)
    pool.check()


def test_generated_tokens_are_cached_when_a_block_fills() -> None:
    pool = BlockPool(11, block_size=4)
    pool.allocate_slots("a", [1, 2, 3])
    assert pool.append_tokens("a", [4]) == []
    assert pool.append_tokens("a", []) == []
    assert pool.append_tokens("a", np.array([5, 6, 7], dtype=np.int64)) == [2]
    assert pool.cached_blocks() == [1]
    assert pool.append_tokens("a", [8, 9]) == [3]
    assert pool.cached_blocks() == [1, 2]
    assert pool.get_computed_blocks([1, 2, 3, 4, 5, 6, 7, 8, 0]) == Hit([1, 2], 8)
    pool.check()


def test_first_of_equal_blocks_answers() -> None:
    # fact 17 of vLLM 0.33, at block size 2: b computes by generating what a was given
    pool = BlockPool(11, block_size=2)
    pool.allocate_slots("a", [1, 2, 3, 4, 5])
    pool.allocate_slots("b", [1, 2, 3])
    assert pool.append_tokens("b", [4]) == []
    assert pool.block_ids("b") == [1, 4]
    assert pool.cached_blocks() == [1, 2, 4]
    pool.free("a")
    assert pool.get_computed_blocks([1, 2, 3, 4, 9]).block_ids == [1, 2]
    pool.evict([2])
    assert pool.get_computed_blocks([1, 2, 3, 4, 9]).block_ids == [1, 4]
    pool.check()


def unreachable_blocks(pool: BlockPool) -> list[int]:
    """Blocks with an exact key whose parent no block carries: cached, and never found (I10).

    None where every block has one owner: a request's last block is reused first. Duplicates,
    requests that do not read the cache, and `evict` can leave some.
    """
    made, store = pool._requests.keys, pool._store
    assert isinstance(made, ExactKeys)
    # keys of a trace are no bytes, and their parents are not known
    keys = ((block, key) for block, key in enumerate(store.key_of) if isinstance(key, bytes))
    parents = ((block, made.parent(key)) for block, key in keys)
    return [b for b, key in parents if key != ExactKeys.ROOT and key not in store.cached.first]


def vars_of(slotted: Any) -> dict[str, Any]:
    return {name: getattr(slotted, name) for name in type(slotted).__slots__}


def snapshot(pool: BlockPool) -> Any:
    """All that a refusal must leave alone; a prompt that was hashed once may stay hashed."""
    requests, store = pool._requests, pool._store
    state = vars(pool) | {
        "_store": vars(store) | {"queue": store.queue.ids(), "cached": vars_of(store.cached)},
        "_observer": vars(pool._observer) | {"stats": vars_of(pool.stats)},
        "stats": None,
        "_requests": [
            [(name, asdict(request)) for name, request in requests.known.items()],
            list(requests.live),
            requests.admissions,
            [request.request_id for request, _ in requests.memory._prompts],
        ],
    }
    return copy.deepcopy(state)


def test_refusals_change_nothing() -> None:
    # fact 15 of vLLM 0.33: 3 hits in use, 3 hits in the free queue and 3 new need 6 of 5 free
    pool = BlockPool(11)
    pool.allocate_slots("a", list(range(48)))
    assert pool.allocate_slots("b", list(range(96))) == Hit([1, 2, 3], 48)
    pool.free("b")
    pool.allocate_slots("c", list(range(1000, 1032)))
    assert pool.num_free == 5
    before = snapshot(pool)
    wanted = list(range(144))
    assert pool.get_computed_blocks(wanted).num_tokens == 96
    assert pool.allocate_slots("d", wanted) is None
    assert pool.append_tokens("c", [5] * 81) is None
    assert pool.reset() is False
    assert snapshot(pool) == before
    # one block less fits exactly
    assert pool.allocate_slots("d", wanted[:128]) == Hit([1, 2, 3, 4, 5, 6], 96)
    assert pool.num_free == 0
    pool.check()


def test_caching_off() -> None:
    pool = BlockPool(4, block_size=4, enable_prefix_caching=False)
    assert pool.allocate_slots("a", [1] * 10) == Hit([], 0)
    assert pool.get_computed_blocks([1] * 10) == Hit([], 0)
    assert pool.allocate_slots("b", [1] * 4) is None
    assert pool.append_tokens("a", [1, 1]) == []
    assert pool.num_cached == 0
    pool.check()
    pool.free("a")
    assert pool.free_queue() == [3, 2, 1]
    assert pool.reset() is True


def test_reset_keeps_the_order() -> None:
    pool = BlockPool(6, block_size=2)
    pool.allocate_slots("a", [1, 2, 3, 4, 5])
    assert pool.reset() is False
    assert pool.num_cached == 2
    pool.free("a")
    queue = pool.free_queue()
    assert pool.reset() is True
    assert (pool.num_cached, pool.free_queue()) == (0, queue)
    assert pool.get_computed_blocks([1, 2, 3]) == Hit([], 0)
    pool.check()


def test_a_key_knows_its_parent_and_every_token() -> None:
    keys = ExactKeys(block_size=1)
    chain: list[Key] = []
    assert keys.extend(chain, b"abcdabcd") == b""
    assert keys.find(b"abcdabcdabcd") == chain
    assert len({ExactKeys.ROOT, *chain}) == 3
    assert keys.extend(chain, b"abcdab") == b"ab"
    assert keys.find(b"abcdabcd") == chain[:2]
    assert [keys.parent(key) for key in chain] == [ExactKeys.ROOT, *chain[:2]]
    # 65 and 321 are equal in their lowest byte
    pool = BlockPool(4, block_size=1)
    pool.allocate_slots("a", [65])
    assert pool.get_computed_blocks([321, 1]).num_tokens == 0
    assert pool.get_computed_blocks([65, 1]).num_tokens == 1


def test_block_table_of_named_requests() -> None:
    pool = BlockPool(9, block_size=2)
    pool.allocate_slots("a", [1, 2, 3])
    pool.allocate_slots("b", [1, 2, 4, 5, 6])
    pool.allocate_slots("c", [7])
    assert pool.block_table().block_tables.tolist() == [[1, 2, 0], [1, 3, 4], [5, 0, 0]]
    table = pool.block_table(["c", "a"])
    assert isinstance(table, BlockTable)
    assert table.block_tables.tolist() == [[5, 0], [1, 2]]
    assert table.seq_lens.tolist() == [1, 3]
