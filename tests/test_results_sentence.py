"""The sentence, for every situation that records can show."""

from typing import Any

import pytest

from apclab.results import finding
from tests.sample_records import sample_pair, sample_record


def test_the_gain_of_sharing_is_told_with_its_bytes() -> None:
    assert finding(sample_pair(382.0, 191.0, 200, dram_gb_per_s=None)) == (
        "shared is 2.0x faster than private: DRAM has to deliver 200 MB a layer instead of 636, "
        "the cache serves the rest."
    )


def test_a_rate_above_dram_is_the_proof_and_its_basis_is_said() -> None:
    # the two arms of vLLM issue 4860, had all prompts been the same
    assert finding(sample_pair(382.047, 252.511, 51.97824)) == (
        "shared is 1.51x faster than private: DRAM has to deliver 52 MB a layer instead of 636, "
        "the cache serves the rest (2518 GB/s, 1.24x the DRAM spec); 12.2x fewer bytes would "
        "allow more: cache or arithmetic is the limit now."
    )
    measured = finding(sample_pair(382.0, 191.0, 200, dram_basis="measured"))
    assert "(3329 GB/s, 1.63x the measured DRAM rate)" in measured


def test_a_hit_that_is_not_sharing_takes_the_same_time() -> None:
    own_history = {"cache_hit": 0.9, "realised_hit": 0.8947, "prefix_groups": 100}
    assert finding(sample_pair(382.0, 381.0, 636, **own_history)) == (
        "shared takes the same time as private within noise (x1.00): no block has a second reader "
        "(readers 1.00), so DRAM has to deliver 636 MB a layer to both; the hit of 0.89 saves "
        "prefill, not decode."
    )
    nothing = finding(sample_pair(382.0, 381.0, 636, cache_hit=0.0, realised_hit=0.0))
    assert nothing.endswith("636 MB a layer to both.")
    below_a_block = finding(sample_pair(382.0, 381.0, 636, cache_hit=0.04, realised_hit=0.0))
    assert below_a_block.endswith("; the asked hit of 0.04 did not fill a block.")


def test_the_same_time_with_fewer_bytes_is_not_explained_away() -> None:
    assert finding(sample_pair(382.0, 380.0)) == (
        "shared takes the same time as private within noise (x1.01): DRAM has to deliver only "
        "96 MB a layer instead of 636, but DRAM is not what sets the time here."
    )
    slow_kernel = finding(sample_pair(3820.0, 3810.0))
    assert slow_kernel.endswith("but private asks for only 8% of what DRAM can give.")
    warm = finding(sample_pair(300.0, 299.0, l2="warm", llc_bytes=2**30))
    assert warm == (
        "shared takes the same time as private within noise with a warm cache (x1.00): both fit "
        "in the cache, so fewer distinct bytes change nothing."
    )


def test_ranges_that_overlap_are_never_called_faster() -> None:
    records = sample_pair(382.0, 282.0)
    records[1] |= {"samples_us": [200.0, 400.0], "p80_us": 400.0}
    assert finding(records) == (
        "shared and private cannot be told apart: their medians differ (x1.35) but their p20-p80 "
        "ranges overlap; measure longer or on a quieter machine."
    )
    # tight ranges that do not touch, but a difference that nobody should claim
    assert "within noise (x1.02)" in finding(sample_pair(388.0, 382.0))
    assert finding(sample_pair(392.0, 382.0, 500)).startswith(
        "shared is 1.03x faster than private: "
    )


def test_a_gain_that_bytes_do_not_explain_is_called_so() -> None:
    assert finding(sample_pair(382.0, 100.0, 500)).endswith(
        "DRAM has to deliver 500 MB a layer instead of 636, but that explains only 1.27x."
    )
    assert finding(sample_pair(382.0, 282.0, 636)) == (
        "shared is 1.35x faster than private: both read 636 MB a layer, "
        "so sharing does not explain it."
    )


def test_slower_is_told_as_plainly_as_faster() -> None:
    assert finding(sample_pair(382.0, 482.0)) == (
        "shared is 1.26x slower than private: its distinct blocks hold 96 MB a layer instead of "
        "636, so they are not what sets the time here."
    )
    assert finding(sample_pair(382.0, 482.0, 636)) == (
        "shared is 1.26x slower than private: both read 636 MB a layer, "
        "so sharing does not explain it."
    )


def test_a_warm_cache_is_named_and_no_claim_is_made_about_dram() -> None:
    fits = finding(sample_pair(382.0, 100.0, 30, l2="warm"))
    assert fits == (
        "shared is 3.8x faster than private with a warm cache: "
        "its 30 MB a layer fit in the cache, 636 MB do not."
    )
    assert finding(sample_pair(382.0, 200.0, l2="warm")) == (
        "shared is 1.91x faster than private with a warm cache: "
        "its distinct blocks hold 96 MB a layer instead of 636."
    )


def test_one_case_or_none_compares_nothing() -> None:
    assert finding([]) == "nothing was measured yet."
    assert finding([sample_record()]) == (
        "only private was measured: 382.0 us a layer, 1665 GB/s, 82% of the DRAM rate; "
        "nothing to compare."
    )
    assert finding([sample_record(dram_gb_per_s=None)]) == (
        "only private was measured: 382.0 us a layer, 1665 GB/s; nothing to compare."
    )
    assert finding([sample_record(), sample_record(batch=8)]) == (
        "only private was measured, at 2 points: nothing to compare."
    )
    assert finding([sample_record(), sample_record(batch=8, case="shared")]) == (
        "private and shared were measured, but at no point both: nothing to compare."
    )


def test_of_a_sweep_the_largest_gain_and_its_place_are_told() -> None:
    sweep = [
        *sample_pair(382.0, 381.0, 636, cache_hit=0.0),
        *sample_pair(382.0, 191.0, 200, cache_hit=0.75),
        *sample_pair(382.0, 254.0, 300, cache_hit=0.5),
        sample_record(cache_hit=1.0),  # still without its other case
    ]
    assert finding(sweep) == (
        "shared is up to 2.0x faster than private (at cache hit 0.75): DRAM has to deliver 200 MB "
        "a layer instead of 636, the cache serves the rest (3329 GB/s, 1.63x the DRAM spec)."
    )
    mixed = finding([*sweep, *sample_pair(382.0, 500.0, batch=2, cache_hit=0.0)])
    assert "(at cache hit 0.75, batch 100)" in mixed
    assert mixed.endswith("; 1 of 4 points are slower.")


def test_a_sweep_without_gain_says_so() -> None:
    same = [*sample_pair(382.0, 381.0, 636, batch=1), *sample_pair(382.0, 383.0, 636, batch=2)]
    assert finding(same).startswith(
        "shared takes the same time as private within noise at each point (x1.00): no block"
    )
    slower = [*sample_pair(382.0, 381.0, batch=1), *sample_pair(382.0, 482.0, batch=2)]
    assert (
        finding(slower) == "shared is nowhere faster than private (x0.79 to x1.00 over 2 points)."
    )


def test_steps_given_as_tables_are_told_apart_by_their_length() -> None:
    tables: dict[str, Any] = dict.fromkeys(
        ["input_len", "output_len", "cache_hit", "realised_hit", "prefix_groups", "primed", "seed"]
    ) | {"step": None}
    records = [
        *sample_pair(382.0, 191.0, **tables, seq_len=310),
        *sample_pair(382.0, 382.0, **tables, seq_len=9),
    ]
    assert "up to 2.0x faster than private (at seq_len 310): " in finding(records)


def test_the_last_record_of_a_case_counts() -> None:
    old, new = sample_pair(382.0, 382.0), sample_pair(382.0, 191.0)
    assert finding([*old, *new]).startswith("shared is 2.0x faster")


def test_cascade_is_compared_with_what_is_there() -> None:
    cascade = sample_record(p50_us=60.0, case="cascade", distinct_bytes=96_000_000)
    assert finding([*sample_pair(382.0, 159.0), cascade]).endswith(
        "; cascade is 2.6x faster than shared."
    )
    slow = sample_record(p50_us=318.0, case="cascade", distinct_bytes=96_000_000)
    assert finding([*sample_pair(382.0, 159.0), slow]).endswith(
        "; cascade is 2.0x slower than shared."
    )
    assert finding([sample_record(), cascade]) == (
        "cascade is 6.4x faster than private: DRAM has to deliver 96 MB a layer instead of 636, "
        "and its kernel reads the shared run once for all queries (10598 GB/s, 5.2x the DRAM spec)."
    )


@pytest.mark.parametrize(
    ("size", "words"),
    [(999, "999 bytes"), (4096, "4.1 kB"), (9_900_000, "9.9 MB"), (2_500_000_000, "2.5 GB")],
)
def test_sizes_are_told_in_a_fitting_unit(size: int, words: str) -> None:
    records = [
        sample_record(logical_bytes=size),
        sample_record(logical_bytes=size, case="shared", p50_us=381.0),
    ]
    assert f"deliver {words} a layer to both" in finding(records)
