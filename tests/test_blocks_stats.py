"""What a pool counts and tells: statistics, events, lifetimes."""

from typing import Any

import pytest

from apclab.blocks import (
    AllBlocksCleared,
    BlockPool,
    BlockRemoved,
    BlockStored,
    HitRate,
    Lifetimes,
    Residency,
)


@pytest.mark.parametrize("blocks", [2, 3, 10])
def test_events_of_a_prompt(blocks: int) -> None:
    # fact 28 of vLLM 0.33: k blocks are stored by one event with k keys and k * 16 tokens; the
    # same prompt again, not read, removes k keys one by one and stores them again
    pool = BlockPool(blocks + 1, record_events=True)
    tokens = list(range(100, 100 + 16 * blocks))
    request = pool.add_request("a", tokens)
    pool.admit("a")
    stored = BlockStored(request.keys, None, tokens, 16)
    assert pool.take_events() == [stored]
    assert stored.num_tokens == 16 * blocks
    assert pool.take_events() == []
    pool.free("a")
    pool.allocate_slots("b", tokens, skip_reading_prefix_cache=True)
    assert pool.take_events() == [*map(BlockRemoved, reversed(stored.block_hashes)), stored]
    assert pool.reset() is False
    pool.free("b")
    assert pool.reset() is True
    assert pool.take_events() == [AllBlocksCleared()]


def test_events_of_a_hit_of_output_and_of_evict() -> None:
    pool = BlockPool(9, block_size=4, record_events=True)
    pool.allocate_slots("a", [1, 2, 3, 4, 5])
    pool.allocate_slots("b", [1, 2, 3, 4, 5, 6, 7])
    (first,) = pool.take_events()
    assert isinstance(first, BlockStored)
    # a hit stores nothing; the block that the output fills names its parent and its tokens
    pool.append_tokens("b", [8, 9])
    (second,) = pool.take_events()
    assert isinstance(second, BlockStored)
    assert (second.parent_block_hash, second.token_ids) == (first.block_hashes[0], [5, 6, 7, 8])
    pool.evict([1, 1])
    assert pool.take_events() == [BlockRemoved(first.block_hashes[0])]


def test_a_trace_has_no_token_ids() -> None:
    pool = BlockPool(9, record_events=True)
    pool.add_hashed_request("a", [7, 8], 32)
    pool.admit("a")
    assert pool.take_events() == [BlockStored([7, 8], None, None, 16)]


def test_statistics_leave_out_what_did_not_read() -> None:
    # fact 29 of vLLM 0.33
    pool = BlockPool(20)
    pool.allocate_slots("a", range(48))
    pool.allocate_slots("blind", range(48), skip_reading_prefix_cache=True)
    pool.get_computed_blocks(range(48))
    assert pool.stats.counters() == (1, 48, 0, 0, 0, 0)
    pool = BlockPool(20, enable_prefix_caching=False)
    pool.allocate_slots("a", range(48))
    assert pool.stats.counters() == (0, 0, 0, 0, 0, 0)
    assert (pool.stats.hit_rate, pool.stats.recent.rate) == (0.0, 0.0)
    assert pool.explain_hit("a") == "prefix caching is off"


def test_recent_rate_covers_a_thousand_requests() -> None:
    pool = BlockPool(20)
    # the first misses, and so do the next 499; then 1001 hit 16 of 17
    for i in range(1501):
        pool.allocate_slots("r", [max(0, 500 - i)] * 17)
        pool.free("r")
    assert pool.stats.recent.requests == 1000
    assert pool.stats.recent.rate == 16 / 17
    assert pool.stats.hit_rate == 1000 * 16 / (1501 * 17)


def test_lifetime_of_a_block() -> None:
    # fact 31 of vLLM 0.33: handed out at 1 s, again at 6.5 s
    lifetimes = Lifetimes()
    pool = BlockPool(2, block_size=4, lifetimes=lifetimes)
    for now in (1.0, 6.5):
        pool.now = now
        pool.allocate_slots("a", [1])
        pool.free("a")
    assert list(lifetimes.residencies) == [Residency(5.5, 5.5, [])]


def test_reuse_gaps_are_those_of_the_last_four_hits() -> None:
    lifetimes = Lifetimes()
    pool = BlockPool(3, block_size=4, lifetimes=lifetimes)
    for i, now in enumerate([0.0, 1.0, 3.0, 6.0, 10.0, 15.0]):
        pool.now = now
        hit = pool.allocate_slots(i, [1, 2, 3, 4, 5])
        assert hit is not None
        assert hit.num_tokens == (4 if i else 0)
        pool.free(i)
    pool.now = 22.0
    pool.evict([1])
    # hits at 1, 3, 6, 10 and 15 s; the last four have three gaps
    assert lifetimes.residencies[-1] == Residency(22.0, 7.0, [3.0, 4.0, 5.0])
    # block 2 held the last token, handed out anew each time
    assert [entry.lifetime for entry in list(lifetimes.residencies)[:-1]] == [1, 2, 3, 4, 5]
    # a reset forgets the blocks that are followed
    assert pool.reset()
    pool.now = 30.0
    pool.allocate_slots("a", range(8))
    assert len(lifetimes.residencies) == 6


def test_lifetimes_can_be_sampled() -> None:
    def run(**options: Any) -> Lifetimes:
        lifetimes = Lifetimes(**options)
        pool = BlockPool(51, block_size=1, lifetimes=lifetimes)
        for i in range(40):
            pool.now = float(i)
            pool.allocate_slots(i, range(50 * i, 50 * i + 50))
            pool.free(i)
        return lifetimes

    everything = run()
    assert len(everything.residencies) == 39 * 50
    assert {entry.lifetime for entry in everything.residencies} == {1.0}
    # a tenth of 1950, within five standard deviations
    tenth = run(sample=0.1, seed=1)
    assert 129 < len(tenth.residencies) < 261
    assert run(sample=0.1, seed=1).residencies == tenth.residencies
    assert len(run(keep=7).residencies) == 7


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Lifetimes(0), ValueError, "sample must be above 0 and at most 1, got 0"),
        (lambda: Lifetimes(1.5), ValueError, "sample must be between 0 and 1, got 1.5"),
        (lambda: Lifetimes("1"), TypeError, "sample must be a number, got '1'"),  # type: ignore[arg-type]
        (lambda: Lifetimes(keep=0), ValueError, "keep must be at least 1, got 0"),
        (lambda: Lifetimes(seed=-1), ValueError, "seed must be at least 0, got -1"),
        (lambda: HitRate(0), ValueError, "window must be at least 1, got 0"),
    ],
)
def test_bad_arguments(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
