"""Keys: what is in them and what is not, digests, shortcuts, keys that come from a trace."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apclab.blocks import BlockPool, DigestKeys, ExactKeys, ExtraKeys, Hit, Key
from apclab.blocks.keys import make_keys
from apclab.blocks.prompts import PromptKeys
from tests.test_blocks import unreachable_blocks

KINDS = ["exact", "sha256", "xxh3"]


def new_keys(kind: Any, block_size: int = 4) -> ExactKeys | DigestKeys:
    if kind == "xxh3":
        pytest.importorskip("xxhash")
    return make_keys(kind, block_size)


def int32(*tokens: int) -> bytes:
    return np.array(tokens, dtype="<i4").tobytes()


def test_sha256_chain_by_hand() -> None:
    keys: list[Key] = []
    tail = DigestKeys(2, "sha256").extend(keys, int32(1, 2, 3, 4, 5))
    first = hashlib.sha256(bytes(32) + int32(1, 2)).digest()
    assert keys == [first, hashlib.sha256(first + int32(3, 4)).digest()]
    assert tail == int32(5)


def test_xxh3_keys_have_16_bytes() -> None:
    keys: list[Key] = []
    new_keys("xxh3", 2).extend(keys, int32(1, 2, 3, 4))
    assert [len(key) for key in keys if isinstance(key, bytes)] == [16, 16]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    with pytest.raises(ValueError, match=r"needs the package xxhash.*apclab\[xxh3\]"):
        BlockPool(4, keys="xxh3")


tokens = st.lists(st.integers(0, 2), max_size=14)
extras = st.one_of(
    st.none(),
    st.builds(
        ExtraKeys,
        cache_salt=st.sampled_from(["", "x", "y"]),
        lora=st.sampled_from([None, ("x", "p"), ("x", "q")]),
        mm=st.lists(
            st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 9), st.integers(1, 5)), max_size=2
        ).map(tuple),
        extra_keys=st.sampled_from([(), ("x",), (1,), (b"x",), ("x", 1)]),
    ),
)


def identities(prompt: list[int], extra: ExtraKeys | None, size: int) -> list[Any]:
    """What a block is told apart by, in plain Python: all that may not differ."""
    extra = extra or ExtraKeys()
    found = []
    for start in range(0, len(prompt) - size + 1, size):
        images = [
            [(image, offset - b) for image, offset, n in extra.mm if b - n < offset < b + size]
            for b in range(0, start + 1, size)
        ]
        whole = (prompt[: start + size], images, extra.lora, extra.cache_salt, extra.extra_keys)
        found.append(whole)
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(
    requests=st.lists(st.tuples(tokens, extras, st.integers(0, 14)), max_size=6),
    size=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_equal_keys_are_equal_blocks(
    kind: Any, requests: list[tuple[list[int], ExtraKeys | None, int]], size: int
) -> None:
    """Through the shortcut, and in two pieces: as many different keys as different blocks."""
    keys = new_keys(kind, size)
    prompts = PromptKeys(keys, size, 10)
    seen: list[tuple[Any, Key]] = []
    for prompt, extra, cut in requests:
        chain: list[Key] = []
        tail = prompts.extend(chain, int32(*prompt[:cut]), extra)
        tail = keys.extend(chain, tail + int32(*prompt[cut:]), extra)
        assert tail == int32(*prompt[len(prompt) // size * size :])
        assert keys.find(int32(*prompt), extra) == chain
        seen += zip(identities(prompt, extra, size), chain, strict=True)
    for mine, key in seen:
        for other, other_key in seen:
            assert (key == other_key) == (mine == other)


def test_the_shortcut_forgets_the_oldest() -> None:
    prompts = PromptKeys(ExactKeys(4), 4, 10)
    prompts._most = 3 * 16
    for first in range(5):
        prompts.extend([], int32(first, 0, 0, 0), None)
    assert [tokens[:4] for tokens, _ in prompts._heads.values()] == [int32(i) for i in (2, 3, 4)]
    assert prompts._held == 3 * 16
    # used again, it is the newest; longer than all that may be kept, it is not kept
    prompts.extend([], int32(2, 0, 0, 0, 5), None)
    assert [tokens[:4] for tokens, _ in prompts._heads.values()] == [int32(4), int32(2)]
    prompts.extend([], int32(*range(20)), None)
    assert prompts._held == 16 + 20


def test_salt_is_in_the_first_block_only() -> None:
    # fact 23 of vLLM 0.33: 59 tokens of one salt hit 48; without it or with another, 0
    pool = BlockPool(20)
    salt = ExtraKeys(cache_salt="tenant")
    prompt = list(range(59))
    pool.allocate_slots("a", prompt, extra=salt)
    assert pool.get_computed_blocks(prompt, extra=salt).num_tokens == 48
    assert pool.get_computed_blocks(prompt).num_tokens == 0
    assert pool.get_computed_blocks(prompt, extra=ExtraKeys(cache_salt="t")).num_tokens == 0
    assert salt.of_block(0, 16) != b""
    assert salt.of_block(1, 16) == b""


def test_salt_is_no_adapter_and_an_adapter_has_a_path() -> None:
    # vLLM issue 44701: salt "X" and adapter "X"; fact 24: the same name at another path
    pool = BlockPool(40)
    prompt = list(range(40))
    kinds = [
        ExtraKeys(cache_salt="X"),
        ExtraKeys(lora=("X", "p")),
        ExtraKeys(lora=("X", "q")),
        ExtraKeys(extra_keys=("X",)),
        ExtraKeys(extra_keys=(b"X",)),
        ExtraKeys(mm=(("X", 0, 40),)),
        None,
    ]
    for i, extra in enumerate(kinds):
        assert pool.allocate_slots(i, prompt, extra=extra) == Hit([], 0)
    for extra in kinds:
        assert pool.get_computed_blocks(prompt, extra=extra).num_tokens == 32


def test_image_offsets_count_from_the_block() -> None:
    # fact 25 of vLLM 0.33, by their own names: block 1 sees (aaa, -5) and (bbb, 14)
    extra = ExtraKeys(mm=(("bbb", 30, 18), ("aaa", 11, 10)))
    assert extra.of_block(0, 16) == b"[('mm', 'aaa', 11)]"
    assert extra.of_block(1, 16) == b"[('mm', 'aaa', -5), ('mm', 'bbb', 14)]"
    assert extra.of_block(2, 16) == b"[('mm', 'bbb', -2)]"
    assert extra.of_block(3, 16) == b""


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_block_does_not_hit(kind: Any) -> None:
    # the bytes of a parent's key written as tokens, and tokens that end as an extra key does
    if kind == "xxh3":
        pytest.importorskip("xxhash")
    pool = BlockPool(20, block_size=2, keys=kind)
    request = pool.add_request("a", [1, 2, 3, 4])
    pool.admit("a")
    parent = request.keys[0]
    as_tokens = parent if isinstance(parent, bytes) else b""
    planted = [int(t) & 0x7FFFFFFF for t in np.frombuffer(as_tokens, "<u4")]
    assert pool.get_computed_blocks([*planted, 3, 4, 9]).num_tokens == 0
    assert pool.get_computed_blocks([0, 0, 1, 2, 9]).num_tokens == 0


def test_keys_of_a_trace() -> None:
    # Mooncake's blocks of 512 tokens: the last of these keys is that of a block never full
    pool = BlockPool(30, block_size=512)
    first = pool.add_hashed_request("a", [46, 47, 48, 49], 3 * 512 + 100)
    assert pool.admit("a") == Hit([], 0)
    assert (pool.block_ids("a"), pool.cached_blocks()) == ([1, 2, 3, 4], [1, 2, 3])
    pool.add_hashed_request("b", [46, 47, 50], 1200)
    assert pool.lookup("b") == Hit([1, 2], 1024)
    assert pool.admit("b", 100) == Hit([1, 2], 1024)
    assert pool.num_tokens("b") == 1124
    # generated tokens fill the block that the key stands for, and blocks without a key
    pool.generate("a", 1000)
    assert first.num_tokens == 2636
    assert pool.compute("a", 1000) == [6, 7]
    assert pool.cached_blocks() == [1, 2, 3, 4]
    pool.check()
    assert pool.explain_hit("b") == (
        "1024 tokens found: all full blocks of 512 before the last of 1200 tokens, "
        "which is always computed"
    )


def test_output_that_is_known_ahead() -> None:
    pool = BlockPool(10, block_size=2)
    request = pool.add_request("a", [1, 2, 3], output_token_ids=[4, 5, 6])
    assert pool.admit("a") == Hit([], 0)
    assert (request.num_tokens, pool.cached_blocks()) == (3, [1])
    pool.generate("a")
    assert pool.compute("a") == []
    assert pool.get_computed_blocks([1, 2, 3, 4, 9]) == Hit([1, 2], 4)
    with pytest.raises(ValueError, match="tokens come here"):
        pool.add_tokens("a", [5])
    with pytest.raises(ValueError, match="within the 6 given to 'a', got 3"):
        pool.generate("a", 3)
    pool.generate("a", 2)
    assert pool.compute("a", 2) == [3]
    pool.check()
    # all are known: more may come
    pool.add_tokens("a", [7])
    assert pool.compute("a") == [4]
    pool.check()


def test_numbers_of_a_trace_are_not_our_keys() -> None:
    # the first exact key is number 1 of its kind
    pool = BlockPool(10, block_size=2)
    pool.allocate_slots("a", [5, 6, 7])
    pool.add_hashed_request("b", [1, 2], 5)
    assert pool.admit("b") == Hit([], 0)
    assert pool.get_computed_blocks([5, 6, 7]) == Hit([1], 2)
    pool.check()
    assert unreachable_blocks(pool) == []
    with pytest.raises(ValueError, match="tokens come here"):
        pool.add_tokens("b", [1])


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"cache_salt": 5}, TypeError, "cache_salt must be a str, got 5"),
    ({"lora": "name"}, TypeError, r"lora must be \(str, str\), got 'name'"),
    ({"lora": ("name", 1)}, TypeError, r"lora must be \(str, str\), got \('name', 1\)"),
    ({"mm": [("a", 1)]}, TypeError, r"mm must be \(str, int, int\), got \('a', 1\)"),
    ({"mm": [("a", -1, 1)]}, ValueError, "offset of at least 0 .* got -1 and 1 of 'a'"),
    ({"mm": [("a", 1, 0)]}, ValueError, "length of at least 1, got 1 and 0 of 'a'"),
    ({"extra_keys": [1.5]}, TypeError, "extra_keys must be str, int or bytes, got 1.5"),
    ({"extra_keys": [True]}, TypeError, "extra_keys must be str, int or bytes, got True"),
]


@pytest.mark.parametrize(("fields", "error", "message"), BAD)
def test_bad_extra_keys(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ExtraKeys(**fields)


def test_lone_surrogates_are_a_salt_like_any_other() -> None:
    assert ExtraKeys(cache_salt="\ud800").of_block(0, 4) != ExtraKeys("\ud801").of_block(0, 4)
