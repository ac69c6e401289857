"""The prefix-aware CPU kernel against float64: groups, nested runs, ragged tails, odd shapes."""

from typing import Any

import numpy as np
import pytest
from apclab_kernels.cpu import cascade as cpu_cascade
from apclab_kernels.cpu import decode as cpu_decode
from apclab_kernels.runs import Runs, find_runs

from tests.kernel_cases import DTYPES, Case, assert_exact, truth_of


def cascade(
    arrays: dict[str, Any], block_size: int, layout: Any = "NHD", runs: Runs | None = None
) -> tuple[Any, Any]:
    query = arrays["query"]
    out = np.full(query.shape, np.nan, query.dtype)
    lse = np.full(query.shape[:2], np.nan, np.float32)
    if runs is None:
        runs = find_runs(arrays["block_tables"], arrays["seq_lens"], block_size)
    bound = cpu_cascade.bind(
        **arrays, out=out, lse=lse, scale=query.shape[-1] ** -0.5, layout=layout, runs=runs
    )
    cpu_cascade.run(bound)
    return out, lse


def case(heads: str, size: int, seq_lens: tuple[int, ...], shared: int, block: int = 16) -> Case:
    num_heads, num_kv_heads = map(int, heads.split("/"))
    return Case(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=size, block_size=block,
        seq_lens=seq_lens, shared_blocks=shared,
    )  # fmt: skip


SHAPES = [
    # two nested levels by lengths, an empty request, a tail of one token
    case("5/5", 128, (97, 300, 0, 161, 96), 9),
    # 40 lanes a KV head: a whole register tile and half of one
    case("8/1", 64, (48, 33, 63, 34, 47), 2),
    case("6/2", 96, (29, 30, 28), 4, block=7),
    # every block holds one token, and a run is no multiple of a register tile
    case("2/2", 80, (9, 8, 7), 5, block=1),
    case("3/3", 20, (300, 256, 1), 1, block=256),
    # all tokens in the run: empty tails
    case("4/4", 128, (48,) * 70, 3),
    case("4/4", 128, (48, 33), 0),  # no runs
    case("4/2", 128, (300,), 18),  # batch 1
    case("2/1", 7, (8, 7, 6), 2, block=3),
]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda c: f"{c.num_heads}/{c.num_kv_heads}x{c.head_size}"
)
def test_matches_float64(shape: Case, dtype: str, layout: str) -> None:
    case = Case(**{**vars(shape), "dtype": dtype, "layout": layout})
    arrays = case.arrays()
    out, lse = cascade(arrays, case.block_size, layout)
    assert_exact(out, lse, truth_of(case, arrays), dtype)


def test_two_groups_and_nested_documents() -> None:
    one = case("4/4", 128, (64, 80, 67, 72, 5, 33), 0)
    arrays = one.arrays()
    tables = arrays["block_tables"]
    tables[1:4, 0] = tables[0, 0]  # a prompt that four share
    tables[1, :4] = tables[0, :4]  # a document of two of them
    tables[3, 1:3] = tables[2, 1:3]  # and of the other two
    tables[5, 0] = tables[4, 0]  # a block that the shorter of two does not fill
    runs = find_runs(tables, arrays["seq_lens"], 16)
    assert [run.requests.tolist() for run in runs.runs] == [[0, 1, 2, 3], [0, 1], [2, 3]]
    assert_exact(*cascade(arrays, 16), truth_of(one, arrays), "float32")


def test_a_run_that_is_left_out_is_read_by_the_tails() -> None:
    one = case("4/2", 64, (70, 90, 64), 4)
    arrays = one.arrays()
    runs = Runs([], np.zeros(3, np.int32))
    assert_exact(*cascade(arrays, 16, runs=runs), truth_of(one, arrays), "float32")


@pytest.mark.parametrize("threads", [1, 2])
def test_queries_are_cut_where_heads_do_not_feed_the_threads(threads: int) -> None:
    one = case("8/1", 64, (32,) * 150, 1)  # 1,200 lanes, more than one task takes
    arrays = one.arrays()
    before = cpu_decode.set_threads()
    try:
        cpu_decode.set_threads(min(threads, before))
        assert_exact(*cascade(arrays, 16), truth_of(one, arrays), "float32")
    finally:
        cpu_decode.set_threads(before)


def test_one_wrong_entry_in_a_run_is_outside_the_bound() -> None:
    one = case("4/4", 128, (300, 300), 9)
    arrays = one.arrays()
    truth = truth_of(one, arrays)
    arrays["block_tables"][:, 7] = arrays["block_tables"][0, 12]
    with pytest.raises(AssertionError, match="outside its bound"):
        assert_exact(*cascade(arrays, 16), truth, "float32")


def step_of_three(tail: int) -> tuple[Case, dict[str, Any]]:
    """Two requests that share two blocks and have so many tokens more, and one by itself."""
    one = case("4/2", 64, (32 + tail, 32 + tail, 40), 0)
    arrays = one.arrays()
    arrays["block_tables"][1, :2] = arrays["block_tables"][0, :2]
    arrays["query"][..., 0] = 1.0
    return one, arrays


def test_nan_and_infinity_in_a_shared_block_reach_those_who_share_it() -> None:
    one, arrays = step_of_three(tail=1)
    first, second = arrays["block_tables"][0, :2]
    arrays["value_cache"][second, 3, 0, 5] = np.nan
    arrays["value_cache"][second, 4, 0, 6] = -np.inf
    arrays["key_cache"][first, 0, 1, 7] = np.nan
    out, lse = cascade(arrays, 16)
    truth = truth_of(one, arrays)
    assert np.array_equal(np.isnan(out), np.isnan(truth.out))
    assert np.array_equal(np.isneginf(out), np.isneginf(truth.out))
    assert np.array_equal(np.isnan(lse), np.isnan(truth.lse))
    # a NaN in a key spoils its two query heads, one in a value its element of the other two
    assert np.isnan(out).sum() == 2 * (2 * 64 + 2)
    assert np.isneginf(out).sum() == 2 * 2


def test_nan_in_a_tail_of_one_token_stays_with_its_request() -> None:
    one, arrays = step_of_three(tail=1)
    arrays["value_cache"][arrays["block_tables"][1, 2], 0, 1, 5] = np.nan
    out, _ = cascade(arrays, 16)
    assert np.argwhere(np.isnan(out)).tolist() == [[1, 2, 5], [1, 3, 5]]
    assert np.array_equal(np.isnan(out), np.isnan(truth_of(one, arrays).out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [0, 1, 2], ids=["first", "last of the run", "tail"])
def test_scores_of_minus_infinity_weigh_nothing(block: int, dtype: str) -> None:
    one, arrays = step_of_three(tail=16)
    one = Case(**{**vars(one), "dtype": dtype})
    arrays = {
        name: a.astype(DTYPES[dtype]) if a.dtype == np.float32 else a for name, a in arrays.items()
    }
    # the truth is the same requests without the block
    kept = [column for column in range(3) if column != block]
    shorter = arrays | {"block_tables": arrays["block_tables"][:2, kept].copy()}
    shorter |= {"seq_lens": np.array([32, 32], np.int32), "query": arrays["query"][:2]}
    truth = truth_of(one, shorter)
    for r in range(2):
        arrays["key_cache"][arrays["block_tables"][r, block], :, :, 0] = -np.inf
    out, lse = cascade(arrays, 16)
    assert_exact(out[:2], lse[:2], truth, dtype)


def test_a_run_of_minus_infinity_leaves_the_tail() -> None:
    one, arrays = step_of_three(tail=5)
    arrays["key_cache"][arrays["block_tables"][0, :2], :, :, 0] = -np.inf
    tail = {
        "block_tables": arrays["block_tables"][:2, 2:].copy(), "query": arrays["query"][:2],
        "seq_lens": np.array([5, 5], np.int32),
    }  # fmt: skip
    out, lse = cascade(arrays, 16)
    assert_exact(out[:2], lse[:2], truth_of(one, arrays | tail), "float32")


def test_plus_infinity_in_a_key_is_nan_as_in_the_reference() -> None:
    one, arrays = step_of_three(tail=1)
    arrays["key_cache"][arrays["block_tables"][0, 1], 2, 0, 0] = np.inf
    out, lse = cascade(arrays, 16)
    with np.errstate(invalid="ignore"):
        truth = truth_of(one, arrays)
    assert np.array_equal(np.isnan(out), np.isnan(truth.out))
    assert np.array_equal(np.isnan(lse), np.isnan(truth.lse))
