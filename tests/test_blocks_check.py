"""Misuse of the pool raises and changes nothing; a broken pool says what is broken."""

from collections.abc import Callable
from typing import Any

import pytest

from apclab.blocks import BlockPool
from tests.test_blocks import snapshot

MISUSE: list[tuple[Callable[[BlockPool], object], type[Exception], str]] = [
    (
        lambda p: p.allocate_slots("live", [1]),
        ValueError,
        "request_id must be new, 'live' is known",
    ),
    (lambda p: p.free("x"), ValueError, "request_id must be one of 2 known, got 'x'"),
    (lambda p: p.append_tokens("x", [1]), ValueError, "request_id must be one of 1 live, got 'x'"),
    (lambda p: p.block_ids("x"), ValueError, "request_id must be one of 2 known, got 'x'"),
    (lambda p: p.num_tokens("x"), ValueError, "request_id must be one of 2 known, got 'x'"),
    (lambda p: p.block_table(["x"]), ValueError, "request_id must be one of 1 live, got 'x'"),
    (lambda p: p.block_table([]), ValueError, "request_ids must name at least one live request"),
    (lambda p: p.block_table(["live", "live"]), ValueError, "request_ids must name a request once"),
    (lambda p: p.evict([3, 0]), ValueError, "block_id must be between 1 and 9, got 0"),
    (lambda p: p.ref_cnt(10), ValueError, "block_id must be between 1 and 9, got 10"),
    (lambda p: p.allocate_slots("n", []), ValueError, r"at least 1 token\(s\), got 0"),
    (lambda p: p.get_computed_blocks([]), ValueError, r"at least 1 token\(s\), got 0"),
    (lambda p: p.allocate_slots("n", [1.5]), TypeError, "token_ids must be ints, got float64"),  # type: ignore[list-item]
    (lambda p: p.allocate_slots("n", [True]), TypeError, "token_ids must be ints, got bool"),
    (lambda p: p.append_tokens("live", [-1]), ValueError, "between 0 and 2147483647, got -1"),
    (lambda p: p.append_tokens("live", [2**31]), ValueError, "got 2147483648"),
    (lambda p: p.admit("x"), ValueError, "request_id must be one of 2 known, got 'x'"),
    (lambda p: p.admit("live"), ValueError, "must be waiting, 'live' holds blocks already"),
    (lambda p: p.admit("waiting", 0), ValueError, "num_new_tokens must be at least 1, got 0"),
    (lambda p: p.admit("waiting", 1.5), TypeError, "num_new_tokens must be an int, got 1.5"),  # type: ignore[arg-type]
    (lambda p: p.compute("waiting"), ValueError, "must be one of 1 live, got 'waiting'"),
    (lambda p: p.compute("live"), ValueError, "between 1 and 0, the known tokens of 'live'"),
    (lambda p: p.compute("live", 1.5), TypeError, "num_new_tokens must be an int, got 1.5"),  # type: ignore[arg-type]
    (lambda p: p.preempt("waiting"), ValueError, "must be one of 1 live, got 'waiting'"),
    (lambda p: p.append_tokens("waiting", [1]), ValueError, "one of 1 live, got 'waiting'"),
    (lambda p: p.block_table(["waiting"]), ValueError, "must be one of 1 live, got 'waiting'"),
    (lambda p: p.generate("live"), ValueError, "within the 5 given to 'live', got 1 behind 5"),
    (lambda p: p.lookup("x"), ValueError, "request_id must be one of 2 known, got 'x'"),
    (lambda p: p.explain_hit("x"), ValueError, "request_id must be one of 2 known, got 'x'"),
    (lambda p: p.request("x"), ValueError, "request_id must be one of 2 known, got 'x'"),
    (lambda p: p.add_request("waiting", [1]), ValueError, "'waiting' is known already"),
    (lambda p: p.add_request("n", [1], output_token_ids=[-1]), ValueError, "2147483647, got -1"),
    (lambda p: p.add_request("n", [1], extra="salt"), TypeError, "extra must be ExtraKeys or None"),  # type: ignore[arg-type]
    (lambda p: p.add_hashed_request("n", [1, 1], 1), ValueError, r"each block once, got \[1, 1\]"),
    (lambda p: p.add_hashed_request("n", [1], 0), ValueError, "num_tokens must be at least 1"),
    (lambda p: p.add_hashed_request("waiting", [1], 1), ValueError, "'waiting' is known already"),
    (lambda p: p.take_events(), ValueError, "record_events must be True"),
    (lambda p: p.evict(["1"]), TypeError, "block_id must be an int, got '1'"),  # type: ignore[list-item]
    (lambda p: p.append_tokens("live", [[1]]), ValueError, r"one sequence of ints, got shape"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("act", "error", "message"), MISUSE)
def test_misuse_raises_and_changes_nothing(
    act: Callable[[BlockPool], object], error: type[Exception], message: str
) -> None:
    pool = BlockPool(10, block_size=2)
    pool.allocate_slots("live", [1, 2, 3, 4, 5])
    pool.add_request("waiting", [1, 2, 3])
    before = snapshot(pool)
    with pytest.raises(error, match=message):
        act(pool)
    assert snapshot(pool) == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_blocks": 1}, ValueError, "num_blocks must be at least 2, got 1"),
        ({"num_blocks": 8.0}, TypeError, "num_blocks must be an int, got 8.0"),
        ({"num_blocks": 8, "block_size": 0}, ValueError, "block_size must be at least 1, got 0"),
        ({"num_blocks": 8, "block_size": True}, TypeError, "block_size must be an int, got True"),
        ({"num_blocks": 8, "keys": "md5"}, ValueError, "keys must be one of exact, sha256, xxh3"),
        ({"num_blocks": 8, "reuse": "lifo"}, ValueError, "reuse must be one of front, tail, got"),
        ({"num_blocks": 8, "watermark": 1.5}, ValueError, "watermark must be between 0 and 1"),
        ({"num_blocks": 8, "watermark": "1"}, TypeError, "watermark must be a number, got '1'"),
        ({"num_blocks": 8, "remember": -1}, ValueError, "remember must be at least 0, got -1"),
    ],
)
def test_pool_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BlockPool(**arguments)


def give_away(pool: Any, **changes: Any) -> Any:
    for name, value in changes.items():
        setattr(pool._requests.known["a"], name, value)


def refer(pool: Any, counts: dict[int, int]) -> Any:
    for block, count in counts.items():
        pool._store.ref_cnt[block] = count


# each breaks a sound pool in one place; "a" and "b" share blocks 1 and 2, "a" holds 3, "b" 4
BROKEN: list[tuple[str, Callable[[Any], object]]] = [
    ("I1", lambda p: p._store.queue.remove_n([5])),
    ("I1", lambda p: p._store.queue.append_n([1])),
    ("I1", lambda p: p._store.queue.append_n([5])),
    ("I1", lambda p: p._store.queue._next.__setitem__(6, 5)),
    ("I1", lambda p: p._store.queue._previous.__setitem__(9, 7)),
    ("I2", lambda p: p._store.ref_cnt.__setitem__(1, 1)),
    ("I3", lambda p: setattr(p._store.queue, "count", 5)),
    ("I3", lambda p: p._store.key_of.__setitem__(0, b"")),
    ("I4", lambda p: p._store.cached.first.pop(p._store.key_of[2])),
    ("I4", lambda p: p._store.key_of.__setitem__(2, None)),
    ("I4", lambda p: p._store.cached.others.setdefault(b"", {})),
    ("I4", lambda p: p._store.cached.others.setdefault(p._store.key_of[2], {})),
    ("I4", lambda p: p._store.cached.others.setdefault(p._store.key_of[2], {2: None})),
    ("I5", lambda p: p._requests.known["a"].keys.pop()),
    ("I5", lambda p: p._requests.known["a"].keys.reverse()),
    (
        "I5",
        lambda p: (
            p._store.key_of.__setitem__(3, p._store.key_of[1]),
            p._store.cached.insert(p._store.key_of[1], 3),
        ),
    ),
    ("I6", lambda p: give_away(p, num_computed_tokens=7)),
    ("I6", lambda p: give_away(p, block_ids=[2, 1, 3])),
    ("I6", lambda p: give_away(p, num_tokens=4)),
    ("I2", lambda p: (give_away(p, block_ids=[1, 3, 3]), refer(p, {2: 1, 3: 2}))),
    ("I9", lambda p: p._requests.known.pop("a")),
    ("I9", lambda p: p._requests.known.__setitem__("c", p._requests.known["a"])),
    ("I7", lambda p: give_away(p, num_cached_tokens=1)),
    ("I7", lambda p: give_away(p, num_cached_tokens=6)),
    ("I14", lambda p: setattr(p, "enable_prefix_caching", False)),
]


@pytest.mark.parametrize(("invariant", "damage"), BROKEN)
def test_check_names_what_is_broken(invariant: str, damage: Callable[[Any], object]) -> None:
    pool = BlockPool(9, block_size=2)
    pool.allocate_slots("a", [1, 2, 3, 4, 5])
    pool.allocate_slots("b", [1, 2, 3, 4, 6])
    pool.check()
    damage(pool)
    with pytest.raises(RuntimeError, match=f"^{invariant}: "):
        pool.check()
