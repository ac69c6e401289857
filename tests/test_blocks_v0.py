"""The pool of May 2024: the face of `BlockPool`, and where it answers otherwise."""

from collections.abc import Callable
from inspect import signature

import numpy as np
import pytest

from apclab.blocks import BlockPool, BlockPoolV0, Hit


def acts(kind: type) -> dict[str, object]:
    """Public methods and properties of a class, by name."""
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def test_both_pools_have_one_face() -> None:
    """Whoever can drive one can drive the other: same names, same arguments, same answers."""
    ours = acts(BlockPool)
    for name, act in acts(BlockPoolV0).items():
        assert name in ours, name
        assert type(act) is type(ours[name]), name
        if callable(act):
            assert signature(act) == signature(ours[name]), name  # type: ignore[arg-type]
    assert signature(BlockPoolV0).parameters.keys() <= signature(BlockPool).parameters.keys()


@pytest.mark.parametrize("kind", [BlockPool, BlockPoolV0])
def test_one_driver_for_both(kind: type[BlockPool] | type[BlockPoolV0]) -> None:
    # blocks of 4: "a" holds 9 of 12 slots, then 12, then 13; "b" finds two of its blocks
    pool = kind(20, block_size=4)
    prompt = list(range(9))
    assert pool.add_request("a", prompt, output_token_ids=[100, 101, 102, 103]).num_tokens == 9
    assert pool.admit("a", full_sequence_must_fit=True) == Hit([], 0)
    pool.now += 1
    added = []
    for _ in range(4):
        pool.generate("a")
        got = pool.compute("a")
        assert got is not None
        added.append(len(got))
        pool.check()
    assert added == [0, 0, 0, 1]
    pool.now += 1
    pool.add_request("b", [*prompt, 7])
    hit = pool.admit("b")
    assert hit is not None
    assert hit.num_tokens == 8
    table = pool.block_table(["a", "b"])
    assert table.seq_lens.tolist() == [13, 10]
    assert np.array_equal(table.block_tables[0, :2], hit.block_ids)
    assert table.sharing().distinct_blocks == 5
    pool.preempt("b")
    pool.free("b")
    assert pool.block_table().seq_lens.tolist() == [13]
    pool.free("a")
    assert pool.num_free == 19
    pool.add_hashed_request("c", [1, 2], 8)
    assert pool.admit("c") == Hit([], 0)
    pool.check()


def test_prompts_of_one_step_share_and_compute_alike() -> None:
    pool = BlockPoolV0(20, block_size=4)
    for name in ("a", "b", "c"):
        pool.add_request(name, list(range(12)))
    assert pool.admit("a") == Hit([], 0)
    # of the same step: shared, and not skipped
    assert pool.admit("b") == Hit([], 0)
    assert pool.num_free == 19 - 3
    pool.now += 1
    # of the next one: skipped but for the last full block, which is not marked
    hit = pool.admit("c")
    assert hit is not None
    assert hit.num_tokens == 8
    assert pool.num_free == 19 - 3
    pool.check()


def test_a_partial_last_block_is_copied_when_its_owner_writes_on() -> None:
    pool = BlockPoolV0(20, block_size=4)
    for name in ("a", "b"):
        pool.add_request(name, list(range(6)), output_token_ids=[50, 51])
        pool.admit(name)
    assert pool.num_free == 19 - 2
    pool.generate("a")
    assert pool.compute("a") == []
    assert (pool.num_copied, pool.num_free) == (1, 19 - 3)
    pool.generate("b")
    assert pool.compute("b") == []
    assert (pool.num_copied, pool.num_free) == (1, 19 - 3)
    pool.check()


def test_without_a_free_block_nobody_goes_on() -> None:
    pool = BlockPoolV0(3, block_size=4, watermark=0)
    pool.add_request("a", [1, 2, 3, 4, 5], output_token_ids=[6])
    assert pool.admit("a") is not None
    pool.generate("a")
    # the last block has room; May 2024 asked for a free one all the same
    assert pool.compute("a") is None
    pool.add_request("b", [1])
    assert pool.admit("b") is None
    pool.check()


MISUSE: list[tuple[Callable[[BlockPoolV0], object], str]] = [
    (lambda p: p.admit("x"), "request_id must be one of 2 known, got 'x'"),
    (lambda p: p.admit("live"), "must be waiting, 'live' holds blocks already"),
    (lambda p: p.admit("waiting", 4), "num_new_tokens must be None for policy v0, got 4"),
    (lambda p: p.compute("waiting"), "request_id must be one of 1 live, got 'waiting'"),
    (lambda p: p.compute("live"), "must be 1 and all that 'live' has without a slot, got 1 of 0"),
    (lambda p: p.preempt("waiting"), "request_id must be one of 1 live, got 'waiting'"),
    (lambda p: p.free("x"), "request_id must be one of 2 known, got 'x'"),
    (lambda p: p.generate("live"), "within the 3 given to 'live', got 1 behind 3"),
    (lambda p: p.add_request("live", [1]), "request_id must be new, 'live' is known already"),
    (lambda p: p.add_hashed_request("n", [1, 1], 32), "each block once"),
    (
        lambda p: p.add_request("n", [1], skip_reading_prefix_cache=True),
        "policy v0 has no skip_reading_prefix_cache",
    ),
]


@pytest.mark.parametrize(("act", "message"), MISUSE)
def test_misuse_raises(act: Callable[[BlockPoolV0], object], message: str) -> None:
    pool = BlockPoolV0(10, block_size=2)
    pool.add_request("live", [1, 2, 3])
    pool.admit("live")
    pool.add_request("waiting", [4, 5])
    with pytest.raises(ValueError, match=message):
        act(pool)
    pool.check()
    assert pool.num_free == 7
