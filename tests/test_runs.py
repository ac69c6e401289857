"""Shared prefix runs against counting by hand, and the rule that chooses among them."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from apclab_kernels.runs import (
    Rates,
    Runs,
    SharedRun,
    StepShape,
    choose_runs,
    find_runs,
    saved_s,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray


def arrays(tables: list[list[int]], lens: list[int]) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.array(tables, np.int32), np.array(lens, np.int32)


def as_lists(found: Runs) -> list[tuple[list[int], int, list[int]]]:
    return [(run.requests.tolist(), run.first, run.blocks.tolist()) for run in found.runs]


def check(found: Runs, tables: NDArray[Any], lens: NDArray[Any], block_size: int) -> None:
    """What every answer must hold: full, equal, consecutive from column 0, the tail behind."""
    ends = np.zeros(len(lens), int)
    for run in found.runs:
        assert len(run.requests) >= 2
        assert len(set(run.requests.tolist())) == len(run.requests)
        assert len(run.blocks) >= 1
        end = run.first + len(run.blocks)
        for r in run.requests:
            assert ends[r] == run.first, "a gap, an overlap, or a parent after its child"
            assert np.array_equal(tables[r, run.first : end], run.blocks)
            assert end * block_size <= lens[r], "a block that is not full"
            ends[r] = end
    assert found.tail_starts.dtype == np.int32
    assert np.array_equal(found.tail_starts, ends * block_size)


def most_saved(tables: NDArray[Any], lens: NDArray[Any], block_size: int) -> int:
    """Reads of blocks that two runs in a row can save, by trying all cuts of all requests."""
    full = lens // block_size
    cuts = [[(a, b) for b in range(n + 1) for a in range(b + 1)] for n in full]
    best = 0
    for chosen in product(*cuts):
        pieces = [
            (start, end, tuple(tables[r, :end]))
            for r, (a, b) in enumerate(chosen)
            for start, end in ((0, a), (a, b))
        ]
        every = sum(end - start for start, end, _ in pieces)
        once = sum(end - start for start, end, _ in set(pieces))
        best = max(best, every - once)
    return best


def test_two_groups_and_a_request_alone() -> None:
    tables, lens = arrays(
        [[7, 3, 9, 1], [7, 3, 8, 2], [5, 6, 0, 0], [5, 6, 4, 0], [11, 0, 0, 0]], [50, 64, 40, 33, 9]
    )
    found = find_runs(tables, lens, 16)
    assert as_lists(found) == [([2, 3], 0, [5, 6]), ([0, 1], 0, [7, 3])]
    check(found, tables, lens, 16)
    assert found.tail_starts.tolist() == [32, 32, 32, 32, 0]


def test_a_prompt_of_all_and_documents_of_some() -> None:
    tables, lens = arrays(
        [[1, 2, 10, 11, 30], [1, 2, 10, 11, 31], [1, 2, 20, 21, 32], [1, 2, 20, 21, 33]], [20] * 4
    )
    found = find_runs(tables, lens, 4)
    # the last column is full, too, but each request's own
    assert as_lists(found) == [
        ([0, 1, 2, 3], 0, [1, 2]), ([0, 1], 2, [10, 11]), ([2, 3], 2, [20, 21])
    ]  # fmt: skip
    assert found.tail_starts.tolist() == [16] * 4


def test_a_short_request_does_not_cut_the_others_off() -> None:
    # three nested levels where two are allowed: the middle one, with the least to save, is given up
    tables, lens = arrays([list(range(9))] * 6, [1, 2, 9, 9, 9, 9])
    found = find_runs(tables, lens, 1)
    assert as_lists(found) == [([0, 1, 2, 3, 4, 5], 0, [0]), ([2, 3, 4, 5], 1, list(range(1, 9)))]
    assert as_lists(find_runs(tables, lens, 1, levels=1)) == [([2, 3, 4, 5], 0, list(range(9)))]
    assert len(find_runs(tables, lens, 1, levels=3).runs) == 3


def test_a_partial_last_block_is_no_part_of_a_run() -> None:
    tables, lens = arrays([[4, 5, 6], [4, 5, 6]], [47, 48])
    assert as_lists(find_runs(tables, lens, 16)) == [([0, 1], 0, [4, 5])]
    assert find_runs(*arrays([[4], [4]], [15, 15]), 16).runs == []


def test_equal_ids_in_other_columns_or_behind_a_difference_are_no_prefix() -> None:
    shifted = arrays([[1, 2, 3], [2, 3, 1], [9, 1, 2]], [48, 48, 48])
    assert find_runs(*shifted, 16).runs == []
    behind = arrays([[1, 5, 6], [2, 5, 6]], [48, 48])
    assert find_runs(*behind, 16).runs == []
    assert find_runs(*behind, 16).tail_starts.tolist() == [0, 0]


def test_what_lies_past_a_length_is_not_looked_at() -> None:
    tables, lens = arrays([[0, 0, 0], [0, 0, 0], [8, 0, 0]], [0, 16, 16])
    found = find_runs(tables, lens, 16)
    assert found.runs == []
    assert found.tail_starts.tolist() == [0, 0, 0]
    assert find_runs(*arrays([[3, 4]], [32]), 16).runs == []


def test_a_repeated_id_in_one_table_stays_in_its_columns() -> None:
    # a probe names one block everywhere: the run is as long as the tables, not one block
    found = find_runs(*arrays([[7, 7, 7], [7, 7, 7]], [12, 9]), 4)
    assert as_lists(found) == [([0, 1], 0, [7, 7])]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_saves_as_many_reads_as_any_cut(data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 4))
    columns = data.draw(st.integers(1, 3 if batch == 4 else 4))
    block_size = data.draw(st.integers(1, 3))
    ids = st.lists(st.integers(0, 2), min_size=columns, max_size=columns)
    tables, lens = arrays(
        data.draw(st.lists(ids, min_size=batch, max_size=batch)),
        data.draw(st.lists(st.integers(0, columns * block_size), min_size=batch, max_size=batch)),
    )
    found = find_runs(tables, lens, block_size)
    check(found, tables, lens, block_size)
    saved = sum(len(run.blocks) * (len(run.requests) - 1) for run in found.runs)
    assert saved == most_saved(tables, lens, block_size)
    for r in range(batch):
        assert sum(r in run.requests for run in found.runs) <= 2


def test_a_thousand_ragged_requests_are_no_matter_of_seconds() -> None:
    tables = np.tile(np.arange(500, dtype=np.int32), (1000, 1))
    lens = np.arange(1000, dtype=np.int32) * 8 + 1
    found = find_runs(tables, lens, 16)
    check(found, tables, lens, 16)
    assert len(found.runs) == 2


# 40 heads of 128, float32: 2 * 16 * 40 * 128 * 4 bytes a block
SHAPE = StepShape(block_size=16, num_heads=40, num_kv_heads=40, head_size=128, itemsize=4)
RATES = Rates(100e9, 30e9, 90e9, 20e-6, 50e-6)


def run_of(requests: int, blocks: int, first: int = 0) -> SharedRun:
    return SharedRun(np.arange(requests, dtype=np.int32), first, np.arange(blocks, dtype=np.int32))


def test_the_rule_in_numbers() -> None:
    block = 2 * 16 * 40 * 128 * 4
    plain = 63 * block / 90e9
    product = 4 * 64 * 40 * 128 * 16 / 100e9
    assert saved_s(run_of(64, 1), SHAPE, RATES) == pytest.approx(plain - product - 20e-6)
    assert saved_s(run_of(64, 1), SHAPE, RATES) > 0
    # a product that is slower than the cache never pays, however long the run
    slow = RATES._replace(product_flop_per_s=40e9)
    assert saved_s(run_of(64, 1000), SHAPE, slow) < 0
    # two requests save one cached read of a block, 7 us, less than a run costs; a hundred do not
    fast = RATES._replace(product_flop_per_s=10e12)
    assert saved_s(run_of(2, 1), SHAPE, fast) < 0
    assert saved_s(run_of(2, 100), SHAPE, fast) > 0
    # the product of two requests takes as long as that of 32
    assert saved_s(run_of(2, 100), SHAPE, RATES) < 0
    assert saved_s(run_of(16, 100), SHAPE, RATES) > 0


def test_grouped_heads_save_fewer_bytes_for_the_same_product() -> None:
    grouped = SHAPE._replace(num_kv_heads=8)
    assert saved_s(run_of(64, 16), SHAPE, RATES) > 0
    assert saved_s(run_of(64, 16), grouped, RATES) < 0


def test_runs_that_do_not_pay_are_left_to_the_tails() -> None:
    upper, lower = run_of(64, 16), run_of(2, 1, first=16)
    runs = Runs([upper, lower], np.full(64, 256, np.int32))
    kept, why = choose_runs(runs, SHAPE, RATES)
    assert kept.runs == [upper]
    assert kept.tail_starts.tolist() == [256] * 64
    assert why == "1 of 2 runs pay"


def test_a_prompt_that_does_not_pay_goes_with_its_documents() -> None:
    upper, lower = run_of(3, 1), run_of(2, 100, first=1)
    costly = RATES._replace(product_flop_per_s=10e12, run_s=200e-6)
    runs = Runs([upper, lower], np.array([1616, 1616, 16], np.int32))
    kept, _ = choose_runs(runs, SHAPE, costly)
    assert as_lists(kept) == [([0, 1], 0, [0, *range(100)])]
    assert kept.tail_starts.tolist() == [1616, 1616, 0]


def test_no_run_is_left_and_the_sentence_says_why() -> None:
    none = Runs([], np.zeros(3, np.int32))
    kept, why = choose_runs(none, SHAPE, RATES)
    assert kept.runs == []
    assert why == "no two requests share a full block from their first token on"
    small = Runs([run_of(8, 1)], np.full(8, 16, np.int32))
    kept, why = choose_runs(small, SHAPE, RATES)
    assert kept.runs == []
    assert kept.tail_starts.tolist() == [0] * 8
    assert why.endswith("50 us are spent")
    assert why.startswith("1 run would save ")
