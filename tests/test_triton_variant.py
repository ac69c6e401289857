"""Which variant of the Triton kernel a shape gets, and into how many splits a step is cut."""

import inspect
from typing import Any

import pytest
from apclab_kernels.triton.variant import (
    HEAD_SIZES,
    MOST_SPLITS,
    ROWS,
    choose_splits,
    power_of_two,
    product_rows,
    product_variant,
    variant,
)
from hypothesis import given
from hypothesis import strategies as st

SHAPES = {
    "batch": st.integers(1, 4096),
    "num_kv_heads": st.integers(1, 128),
    "most_tokens": st.integers(1, 1_000_000),
    "tile": st.sampled_from([16, 32, 64]),
    "sm_count": st.integers(1, 200),
}


@given(**SHAPES)
def test_splits_are_enough_and_no_more(
    batch: int, num_kv_heads: int, most_tokens: int, tile: int, sm_count: int
) -> None:
    splits = choose_splits(batch, num_kv_heads, most_tokens, tile, sm_count)
    assert 1 <= splits <= MOST_SPLITS
    if splits > 1:  # one less would not give four programs to each SM; each has four tiles
        assert batch * num_kv_heads * (splits - 1) < 4 * sm_count
        assert splits * 4 * tile <= most_tokens
    limits = (MOST_SPLITS, most_tokens // (4 * tile))
    if splits < min(limits):  # nothing stood in the way
        assert batch * num_kv_heads * splits >= 4 * sm_count


@given(**SHAPES, name=st.sampled_from(sorted(SHAPES)), more=st.integers(1, 1000))
def test_splits_are_monotone(name: str, more: int, **shape: int) -> None:
    larger = shape | {name: shape[name] + more}
    before, after = choose_splits(**shape), choose_splits(**larger)
    if name in ("most_tokens", "sm_count"):
        assert after >= before
    else:  # more programs, or larger tiles
        assert after <= before


def test_splits_look_at_shapes_alone() -> None:
    assert list(inspect.signature(choose_splits).parameters) == list(SHAPES)


# by hand: ceil(4 x SMs / programs), and at most a split for four tiles
@pytest.mark.parametrize(
    ("shape", "splits"),
    [
        ((100, 40, 320, 32, 132), 1),  # issue 4860 on an H100: 4000 programs for 132 SMs
        ((1, 8, 131_072, 32, 132), 64),  # ceil(528 / 8) = 66, capped
        ((8, 8, 8192, 32, 108), 7),  # ceil(432 / 64)
        ((1, 8, 512, 32, 132), 4),  # 512 tokens are four times four tiles
        ((1, 1, 1, 64, 1), 1),
        ((1, 8, 1024, 32, 1), 1),  # the interpreter
    ],
)
def test_splits_by_hand(shape: tuple[int, int, int, int, int], splits: int) -> None:
    assert choose_splits(*shape) == splits


def chosen(dtype: str = "float16", **shape: Any) -> dict[str, Any]:
    base = {"num_heads": 8, "num_kv_heads": 8, "head_size": 128, "block_size": 16}
    return variant(dtype, **base | shape).constants


@pytest.mark.parametrize(("group", "rows"), [(1, 16), (5, 16), (16, 16), (17, 32), (64, 64)])
def test_a_group_is_padded_to_what_a_tensor_core_takes(group: int, rows: int) -> None:
    constants = chosen(num_heads=2 * group, num_kv_heads=2)
    assert (constants["GROUP"], constants["ROWS"]) == (group, rows)
    assert constants["ROWS"] >= ROWS


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("block_size", [1, 7, 16, 256])
def test_a_tile_does_not_care_for_the_block(dtype: str, head_size: int, block_size: int) -> None:
    constants = chosen(dtype, head_size=head_size, block_size=block_size)
    assert constants["TILE"] == chosen(dtype, head_size=head_size)["TILE"]
    assert constants["TILE"] == power_of_two(constants["TILE"]) >= 16
    assert constants["HEAD_PAD"] == power_of_two(head_size)
    assert constants["PRECISION"] == "ieee"


def test_only_the_interpreter_widens_bfloat16() -> None:
    assert not chosen("bfloat16")["UPCAST"]
    assert not chosen("float16", interpreted=True)["UPCAST"]
    assert chosen("bfloat16", interpreted=True)["UPCAST"]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"head_size": 80}, "one of 64, 96, 128, 256 for the triton backend, got 80"),
        ({"num_heads": 520}, "at most 64 for triton.*, got 65"),
        ({"block_size": 0}, "block_size must be 1 to 256 for triton, got 0"),
        ({"block_size": 257}, "block_size must be 1 to 256 for triton, got 257"),
    ],
)
def test_a_shape_that_it_cannot_do(shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(**shape)


# by hand: queries x group that see the same tokens, 16 or 64 of half precision
@pytest.mark.parametrize(
    ("dtype", "group", "queries", "rows"),
    [
        ("float16", 1, 16, 16),
        ("float16", 1, 17, 64),
        ("bfloat16", 8, 2, 16),
        ("bfloat16", 8, 100, 64),
        ("float16", 48, 1, 64),
        ("float32", 1, 100, 16),
        ("float32", 20, 1, 32),
    ],
)
def test_rows_of_a_product(dtype: str, group: int, queries: int, rows: int) -> None:
    assert product_rows(dtype, group, queries) == rows
    assert rows >= group


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("rows", [16, 64])
def test_more_rows_have_more_warps(head_size: int, rows: int) -> None:
    shape: dict[str, Any] = {
        "num_heads": 8,
        "num_kv_heads": 8,
        "head_size": head_size,
        "block_size": 16,
    }
    found = product_variant("float16", **shape, rows=rows)
    assert found.constants["ROWS"] == rows
    assert found.num_warps == {16: 4, 64: 8}[rows]
    with pytest.raises(ValueError, match="head_size must be one of"):
        product_variant("float16", **shape | {"head_size": 80}, rows=rows)


def test_options_have_a_limit_of_registers_only_where_there_is_one() -> None:
    shape: dict[str, Any] = {"num_heads": 8, "num_kv_heads": 8, "head_size": 128, "block_size": 16}
    assert "maxnreg" not in variant("float16", **shape).options
    assert variant("float32", **shape).options["maxnreg"] == 255
    assert "maxnreg" not in variant("float32", **shape, amd=True).options
