"""What users of prefix caching ran into, with the right values. Issues of vLLM unless named."""

import random
from typing import Any

import numpy as np
import pytest

from apclab.blocks import BlockPool, ExtraKeys, Hit
from apclab.blocks.invariants import unreachable_blocks


def prompt(group: int, length: int, start: int = 0) -> list[int]:
    """Tokens of a group at positions start to start + length - 1; groups share none."""
    return [group * 1000 + position for position in range(start, start + length)]


def test_issue_4860_in_one_step() -> None:
    # issues 4860, 9643: 100 identical prompts in one batch compute 300 + 99 * 12 = 1488 tokens,
    # not 30,000; 18 shared blocks and 100 own ones
    pool = BlockPool(2000)
    hits = [pool.allocate_slots(i, prompt(1, 300)) for i in range(100)]
    assert sum(300 - hit.num_tokens for hit in hits if hit) == 1488
    assert pool.block_table().sharing().distinct_blocks == 118
    # caching off: 19 blocks each
    pool = BlockPool(2000, enable_prefix_caching=False)
    for i in range(100):
        pool.allocate_slots(i, prompt(1, 300))
    assert pool.num_free == 1999 - 1900


@pytest.mark.parametrize(
    ("block_size", "hit", "words"),
    [
        (
            784,
            0,
            "0 tokens found: the shared prefix of 240 tokens is shorter than one block of 784",
        ),
        (16, 240, "240 tokens found: what follows was in none of the 1 prompts before"),
        (32, 224, "224 tokens found: the shared prefix has 240 tokens, and only full blocks of 32"),
    ],
)
def test_no_hit_has_a_reason(block_size: int, hit: int, words: str) -> None:
    # issues 54607, 53749: 240 shared tokens, and blocks of 784 in a hybrid model
    pool = BlockPool(100, block_size=block_size)
    pool.allocate_slots("a", prompt(1, 240) + prompt(2, 600))
    found = pool.allocate_slots("b", prompt(1, 240) + prompt(3, 600))
    assert found is not None
    assert found.num_tokens == hit
    assert pool.explain_hit("b").startswith(words)


def test_identical_prompt_at_block_784_and_16() -> None:
    # issues 54607, 53749: the identical prompt of 240 tokens
    for block_size, hit in ((784, 0), (16, 224)):
        pool = BlockPool(100, block_size=block_size)
        pool.allocate_slots("a", prompt(1, 240))
        assert pool.get_computed_blocks(prompt(1, 240)).num_tokens == hit


def test_preempted_requests_do_not_raise_the_rate() -> None:
    # issue 25780: prompts that share nothing, and preemption: the rate is 0, not 32 %
    pool = BlockPool(30)
    for i in range(10):
        name = f"r{i}"
        pool.allocate_slots(name, prompt(i, 100))
        pool.append_tokens(name, prompt(i, 4, 100))
        pool.preempt(name)
        assert pool.admit(name) == Hit(pool.block_ids(name)[:6], 96)
        pool.free(name)
    assert pool.stats.counters() == (10, 1000, 0, 10, 1040, 960)
    assert (pool.stats.hit_rate, pool.stats.recent.rate) == (0.0, 0.0)


def test_a_request_that_is_tried_again_counts_once() -> None:
    # issue 43736: refused in 50 steps, admitted in the 51st
    pool = BlockPool(8)
    pool.allocate_slots("a", prompt(1, 100))
    pool.add_request("b", prompt(2, 48))
    for _ in range(50):
        assert pool.lookup("b") == Hit([], 0)
        assert pool.admit("b") is None
    assert pool.stats.counters() == (1, 100, 0, 0, 0, 0)
    pool.free("a")
    assert pool.admit("b") == Hit([], 0)
    assert pool.stats.counters() == (2, 148, 0, 0, 0, 0)


@pytest.mark.parametrize(("reuse", "hit"), [("front", 16), ("tail", 0)])
def test_order_of_reuse_decides(reuse: str, hit: int) -> None:
    # pull request 42656, fact 21: 6 usable blocks of 4, one prompt of 17 tokens, ten of 3
    pool = BlockPool(7, block_size=4, reuse=reuse)  # type: ignore[arg-type]
    pool.allocate_slots("a", prompt(1, 17))
    pool.free("a")
    for i in range(10):
        pool.allocate_slots(i, prompt(2 + i, 3))
        pool.free(i)
    assert pool.get_computed_blocks(prompt(1, 17)).num_tokens == hit


def test_a_full_hit_computes_a_whole_block() -> None:
    # pull request 11186: 48 tokens at block size 16; the chain behind stays whole
    pool = BlockPool(20)
    pool.allocate_slots("a", prompt(1, 48))
    assert pool.allocate_slots("b", prompt(1, 48)) == Hit([1, 2], 32)
    pool.append_tokens("b", prompt(1, 16, 48))
    assert pool.get_computed_blocks(prompt(1, 65)) == Hit([1, 2, 3, 5], 64)
    pool.check()


def test_hits_in_the_queue_take_room() -> None:
    # issue 11562: 4 blocks wanted, 5 free of which 2 are the hits: 4 + 2 do not fit
    pool = BlockPool(11)
    pool.allocate_slots("other", prompt(2, 80))
    pool.allocate_slots("a", prompt(1, 32))
    pool.free("a")
    assert pool.num_free == 5
    queue = pool.free_queue()
    assert pool.allocate_slots("b", prompt(1, 32) + prompt(3, 64)) is None
    assert (pool.free_queue(), pool.num_free) == (queue, 5)
    assert pool.allocate_slots("b", prompt(1, 32) + prompt(3, 48)) is not None


def test_a_hit_is_never_stale() -> None:
    # issue 37076: look up a, look up and admit b, which takes a's free block, admit a
    pool = BlockPool(4)
    pool.allocate_slots("first", prompt(1, 17))
    pool.free("first")
    pool.add_request("a", prompt(1, 20))
    pool.add_request("b", prompt(2, 48))
    assert pool.lookup("a") == Hit([1], 16)
    assert pool.lookup("b") == Hit([], 0)
    assert pool.admit("b") == Hit([], 0)
    assert pool.admit("a") is None
    pool.free("b")
    # pull request 18957: nothing is remembered of the first attempt
    assert pool.admit("a") == Hit([], 0)
    pool.check()


def test_a_block_that_is_handed_out_has_no_key() -> None:
    # pull requests 4761, 5364; fact 12: two blocks, the full one is taken by a shorter prompt
    pool = BlockPool(2)
    pool.allocate_slots("a", prompt(1, 16))
    pool.free("a")
    assert pool.cached_blocks() == [1]
    pool.allocate_slots("b", prompt(2, 15))
    assert (pool.cached_blocks(), pool.num_evicted) == ([], 1)
    assert pool.get_computed_blocks(prompt(1, 17)) == Hit([], 0)


def test_a_hit_is_not_evicted_by_its_own_request() -> None:
    # fact 13: both cached blocks are free; the request hits the first and evicts the second
    pool = BlockPool(3)
    pool.allocate_slots("a", prompt(1, 32))
    pool.free("a")
    assert pool.allocate_slots("b", prompt(1, 16) + prompt(2, 10)) == Hit([1], 16)
    assert pool.block_ids("b") == [1, 2]
    assert pool.cached_blocks() == [1]


def test_usage_and_cached_are_two_numbers() -> None:
    # issues 5176, 20302, 6206: usage 0 after a request does not mean that the cache is lost
    pool = BlockPool(11)
    pool.allocate_slots("a", prompt(1, 55))
    assert pool.usage == pytest.approx(0.4)
    pool.free("a")
    assert (pool.usage, pool.num_cached) == (0.0, 3)
    assert pool.get_computed_blocks(prompt(1, 55)).num_tokens == 48


def test_usage_of_blocks_and_of_slots() -> None:
    # pull request 57336: prompts of 17 tokens at block size 16 fill 17 of 32 slots
    pool = BlockPool(31)
    for i in range(10):
        pool.allocate_slots(i, prompt(i, 17))
    assert pool.usage == pytest.approx(20 / 30)
    assert pool.slot_usage == pytest.approx(170 / 480)
    assert pool.slot_usage / pool.usage == pytest.approx(17 / 32)


def test_identical_prompts_and_nearly_identical_ones() -> None:
    # issue 8005: 130 tokens, of which 130 or 90 % are shared: 2 or 18 tokens to compute
    pool = BlockPool(100)
    pool.allocate_slots("a", prompt(1, 130))
    assert pool.get_computed_blocks(prompt(1, 130)).num_tokens == 128
    assert pool.get_computed_blocks(prompt(1, 117) + prompt(2, 13)).num_tokens == 112


def test_the_second_run_of_a_benchmark() -> None:
    # issues 52884, 54227: the same prompts on a warm server hit (L - 1) // 16 * 16 of L
    pool = BlockPool(500)
    lengths = [33, 48, 100, 257]
    for again in (False, True):
        for i, length in enumerate(lengths):
            hit = pool.allocate_slots(i, prompt(i, length))
            assert hit is not None
            assert hit.num_tokens == ((length - 1) // 16 * 16 if again else 0)
            pool.free(i)
    assert pool.stats.hit_rate == sum((n - 1) // 16 * 16 for n in lengths) / (2 * sum(lengths))
    assert pool.reset() is True
    assert pool.get_computed_blocks(prompt(3, 257)).num_tokens == 0
    assert (pool.stats.recent.requests, pool.stats.requests) == (0, 8)


def test_sharing_is_read_from_tables() -> None:
    # pull request 55227: 15 running, 8 share 16 blocks, 7 of these finish: nobody shares them
    pool = BlockPool(1000)
    for i in range(15):
        pool.allocate_slots(i, prompt(0 if i < 8 else i, 256) + prompt(20 + i, 10))
    assert pool.block_table().sharing().readers.max() == 8
    for i in range(7):
        pool.free(i)
    sharing = pool.block_table().sharing()
    assert (sharing.readers.max(), sharing.readers_mean) == (1, 1.0)


def test_chunks_are_freed_last_block_first() -> None:
    # pull request 48532, LMCache pull request 4867: the head of a chunked prompt stays longest
    pool = BlockPool(8, block_size=4)
    pool.add_request("a", prompt(1, 26))
    assert pool.admit("a", 9) == Hit([], 0)
    assert pool.compute("a", 9) == [4, 5]
    assert pool.compute("a", 8) == [6, 7]
    pool.free("a")
    assert pool.free_queue() == [7, 6, 5, 4, 3, 2, 1]
    pool.allocate_slots("b", prompt(2, 12))
    assert pool.get_computed_blocks(prompt(1, 26)) == Hit([1, 2, 3, 4], 16)
    assert unreachable_blocks(pool) == []


def test_the_tail_is_evicted_before_the_head() -> None:
    # llm-d-inference-sim issue 704, fact 20: 3 blocks of 4; the repeat of 13 tokens hits 8
    pool = BlockPool(4, block_size=4)
    pool.allocate_slots("a", prompt(1, 12))
    pool.free("a")
    pool.allocate_slots("b", prompt(2, 1))
    assert pool.block_ids("b") == [3]
    pool.free("b")
    assert pool.get_computed_blocks(prompt(1, 13)).num_tokens == 8


def test_blocks_without_an_owner_and_with_one_are_all_blocks() -> None:
    # sglang issue 35270, xllm issue 828: more free and evictable tokens than there are
    pool = BlockPool(40, block_size=4)
    random_ = random.Random(0)
    for i in range(300):
        pool.allocate_slots(i, prompt(random_.randrange(5), random_.randrange(1, 60)))
        for name in pool.live_requests():
            if random_.random() < 0.4:
                pool.free(name)
        held = sum(count > 0 for count in pool.ref_cnts())
        assert pool.num_free + held == 39
        assert 0 <= pool.usage <= 1
    for name in pool.live_requests():
        pool.free(name)
    assert (pool.usage, pool.num_free) == (0.0, 39)
    assert pool.reset() is True
    assert pool.num_cached == 0
    pool.check()


def test_forced_misses_go_the_same_way() -> None:
    # sglang pull request 24726: 0 % hits with the cache's path on
    pool = BlockPool(30, force_miss=True)
    for name in ("a", "b"):
        assert pool.allocate_slots(name, prompt(1, 40)) == Hit([], 0)
    assert pool.explain_hit("b") == "every lookup is made to miss (force_miss)"
    assert (pool.num_cached, pool.num_keys) == (4, 2)
    assert pool.stats.counters() == (2, 80, 0, 0, 0, 0)
    assert pool.get_computed_blocks(prompt(1, 40)) == Hit([], 0)
    pool.force_miss = False
    assert pool.get_computed_blocks(prompt(1, 40)) == Hit([1, 2], 32)
    pool.check()


@pytest.mark.parametrize(
    ("length", "found"),
    [(15, 0), (16, 0), (17, 0), (32, 0), (33, 16), (37, 16), (48, 16), (49, 32)],
)
def test_eagle_drops_the_last_block_found(length: int, found: int) -> None:
    # vLLM, tests/v1/core/test_prefix_caching.py: with EAGLE a repeated prompt of 48 tokens finds
    # one block of 16, one of 37 finds one, too; the block of the last token counts first
    pool = BlockPool(30, drop_last_block=True)
    pool.allocate_slots("first", prompt(1, length))
    hit = pool.allocate_slots("again", prompt(1, length))
    assert hit is not None
    assert hit.num_tokens == found == max(0, (length - 1) // 16 - 1) * 16
    assert pool.get_computed_blocks(prompt(1, length)) == hit
    assert "drop_last_block" in pool.explain_hit("again")
    pool.check()


@pytest.mark.parametrize(("length", "found"), [(1024, 0), (1025, 1024), (2047, 1024), (4096, 3072)])
def test_a_repeated_prompt_in_large_blocks(length: int, found: int) -> None:
    # vllm-ascend issue 7965: the block of the last token is computed, whatever its size
    pool = BlockPool(30, block_size=1024)
    pool.allocate_slots("first", list(range(length)))
    hit = pool.allocate_slots("again", list(range(length)))
    assert hit is not None
    assert hit.num_tokens == found


def test_cached_blocks_that_nobody_finds() -> None:
    # I10: freed last block first, a block's ancestors outlive it; only `evict` breaks a chain
    pool = BlockPool(6, block_size=2)
    pool.allocate_slots("a", prompt(1, 4))
    pool.free("a")
    pool.allocate_slots("b", prompt(2, 6), skip_reading_prefix_cache=True)
    pool.free("b")
    assert (pool.num_cached, unreachable_blocks(pool)) == (5, [])
    first, second, third = pool.get_computed_blocks(prompt(2, 7)).block_ids
    pool.evict([first])
    assert unreachable_blocks(pool) == [second]
    pool.evict([second])
    assert unreachable_blocks(pool) == [third]
    with pytest.raises(ValueError, match='keys must be "exact"'):
        unreachable_blocks(BlockPool(4, keys="sha256"))


def test_a_pool_of_two_blocks() -> None:
    pool = BlockPool(2, block_size=4)
    assert pool.allocate_slots("a", prompt(1, 5)) is None
    assert pool.allocate_slots("a", prompt(1, 4)) == Hit([], 0)
    assert pool.append_tokens("a", [1]) is None
    assert pool.allocate_slots("b", [1]) is None
    pool.preempt("a")
    # the only block is the hit, and nothing is left for the token behind it
    pool.add_tokens("a", [7])
    assert pool.lookup("a") == Hit([1], 4)
    assert pool.admit("a") is None
    pool.check()
    pool.free("a")
    assert pool.free_queue() == [1]


def test_a_request_longer_than_the_pool() -> None:
    pool = BlockPool(5, block_size=4)
    request = pool.add_request("a", prompt(1, 100))
    assert pool.admit("a") is None
    assert pool.admit("a", full_sequence_must_fit=True) is None
    # in chunks it gets as far as the pool goes, and no further
    assert pool.admit("a", 10) == Hit([], 0)
    assert pool.compute("a", 6) == [4]
    assert pool.compute("a", 1) is None
    assert (request.num_computed_tokens, pool.num_free) == (16, 0)
    pool.preempt("a")
    # its own blocks are all hits, and there is none for the next token
    assert pool.admit("a", 1) is None
    pool.check()


def test_watermark_waits_for_nobody() -> None:
    # recorded X07: 20 % of 11 blocks are 2; the first may take all, the next must leave 2
    pool = BlockPool(11, watermark=0.2)
    assert pool.allocate_slots("a", prompt(1, 160)) is not None
    pool.free("a")
    pool.allocate_slots("b", prompt(2, 16))
    assert pool.allocate_slots("c", prompt(3, 128)) is None
    assert pool.allocate_slots("c", prompt(3, 112)) is not None
    # a running request may take what the watermark keeps from admissions
    assert pool.num_free == 2
    assert pool.append_tokens("b", prompt(2, 32, 16)) is not None
    assert pool.num_free == 0


def explained(first: dict[str, ExtraKeys], second: dict[str, ExtraKeys]) -> str:
    pool = BlockPool(50)
    pool.allocate_slots("a", prompt(1, 100), **first)  # type: ignore[arg-type]
    pool.allocate_slots("b", prompt(1, 90), **second)  # type: ignore[arg-type]
    return pool.explain_hit("b")


def test_reasons_in_words() -> None:
    x, y = ExtraKeys(cache_salt="x"), ExtraKeys(cache_salt="y", lora=("l", "p"))
    words = "0 tokens found: a prefix of 90 tokens is shared with 'a', but the {} differ"
    assert explained({"extra": x}, {}) == words.format("salt")
    assert explained({"extra": x}, {"extra": y}) == words.format("salt and adapter")
    assert explained({"extra": ExtraKeys(mm=(("i", 0, 4),))}, {}) == words.format("images")
    image = {"extra": ExtraKeys(mm=(("i", 40, 4),))}
    assert explained(image, {}).startswith("32 tokens found: a prefix of 90 tokens is shared")

    pool = BlockPool(9)
    pool.allocate_slots("a", prompt(1, 40))
    pool.allocate_slots("b", prompt(2, 40))
    assert pool.explain_hit("b") == ("0 tokens found: nothing is shared with the 1 prompts before")
    pool.add_request("short", prompt(3, 16))
    assert pool.explain_hit("short") == (
        "0 tokens found: 16 tokens have no full block of 16 before the last token"
    )
    pool.add_request("again", prompt(1, 40))
    assert pool.explain_hit("again") == (
        "32 tokens found: all full blocks of 16 before the last of 40 tokens, "
        "which is always computed"
    )
    pool.free("a")
    pool.allocate_slots("c", prompt(4, 60))
    assert (
        pool.explain_hit("again")
        == "16 tokens found: 32 tokens are shared with 'a', and evicted since"
    )
    pool.free("b")
    pool.free("c")
    assert pool.reset()
    assert pool.explain_hit("again") == (
        "0 tokens found: 32 tokens are shared with 'a', and forgotten by a reset"
    )
    pool.allocate_slots("blind", prompt(1, 40), skip_reading_prefix_cache=True)
    assert pool.explain_hit("blind").startswith("the request does not read the cache")


def test_reason_of_a_neighbour_not_yet_computed() -> None:
    pool = BlockPool(20)
    pool.add_request("a", prompt(1, 100))
    pool.admit("a", 40)
    pool.allocate_slots("b", prompt(1, 100))
    assert pool.explain_hit("b") == (
        "32 tokens found: 96 tokens are shared with 'a', which had not been given slots "
        "for all of them"
    )


def test_memory_of_prompts_is_bounded() -> None:
    pool = BlockPool(100, remember=3)
    for i in range(6):
        pool.allocate_slots(i, prompt(i, 40))
        pool.free(i)
    pool.add_request("again", prompt(0, 39))
    pool.evict(pool.get_computed_blocks(prompt(0, 39)).block_ids)
    # two others are remembered beside the request itself
    assert pool.explain_hit("again") == (
        "0 tokens found: nothing is shared with the 2 prompts before"
    )
    silent = BlockPool(100, remember=0)
    silent.allocate_slots("a", prompt(1, 40))
    assert silent.explain_hit("a") == "0 tokens found: nothing is shared with the 0 prompts before"


def test_prompts_of_every_kind_are_taken() -> None:
    pool = BlockPool(20, block_size=2)
    pool.allocate_slots("list", [1, 2, 3])
    arrays = [np.array([1, 2, 3], dtype=t) for t in ("i2", "u8", "<i4", ">i4")]
    kinds: list[Any] = [(1, 2, 3), range(1, 4), *arrays]
    for kind in (*kinds, np.array([1, 0, 2, 0, 3, 0], dtype=np.int32)[::2]):
        assert pool.get_computed_blocks(kind).num_tokens == 2
    for bad in (np.array([1, -1], np.int32), np.array([1, 2**31], np.uint32)):
        with pytest.raises(ValueError, match="token_ids must be between 0 and 2147483647"):
            pool.add_request("bad", bad)
