"""The sentence, for every situation that records can show."""

from typing import Any

import pytest

from apclab.results import Record, finding
from tests.sample_records import sample_pair, sample_record


def test_the_gain_of_sharing_is_told_with_its_bytes() -> None:
    assert finding(sample_pair(382.0, 191.0, 200, dram_gb_per_s=1700.0)) == (
        "shared is 2.0x faster than private: DRAM has to deliver 200 MB a layer instead of 636, "
        "the cache serves the rest (3329 GB/s, 1.96x the DRAM spec)."
    )


def test_dram_is_named_only_where_bytes_and_rates_support_it() -> None:
    assert finding(sample_pair(382.0, 191.0, 200, dram_gb_per_s=None)) == (
        "shared is 2.0x faster than private: its distinct blocks hold 200 MB a layer instead of "
        "636; the rate of DRAM is unknown, so no cause is named."
    )
    # private at 0.07 of what DRAM can give does not wait for DRAM
    slow = finding(sample_pair(382.0, 191.0, 200, dram_gb_per_s=23781.0))
    assert slow == (
        "shared is 2.0x faster than private: its distinct blocks hold 200 MB a layer instead of "
        "636, but private asks for only 7% of what DRAM can give, so the rate of DRAM is not the "
        "cause."
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
        "ranges overlap, this machine was busy; measure longer or when it is quiet."
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
    alone = sample_record(p50_us=282.0, case="cascade")
    assert finding([sample_record(), alone]) == (
        "cascade is 1.35x faster than private: both read 636 MB a layer, "
        "so sharing does not explain it."
    )


@pytest.mark.parametrize("shared_us", [273.0, 535.0])
def test_one_step_measured_twice_is_never_faster_or_slower(shared_us: float) -> None:
    environment = {"load_average": [3.94, 2.0, 1.0], "cores": 2}
    ratio = 382.0 / shared_us  # 1.4x at hit 0
    records = sample_pair(382.0, shared_us, 636, cache_hit=0.0, environment=environment)
    assert finding(records) == (
        "shared and private are the same work, as no block has a second reader: what is between "
        f"their medians (x{ratio:.2f}) is noise, this machine was busy (load 3.9 on 2 cores)."
    )


def test_a_gain_within_what_the_same_work_differs_is_noise() -> None:
    sweep = [
        *sample_pair(382.0, 273.0, 636, cache_hit=0.0, readers_mean=1.0),
        *sample_pair(382.0, 300.0, 300, cache_hit=0.5),
        *sample_pair(382.0, 100.0, 100, cache_hit=1.0),
    ]
    assert finding(sweep, {"cache_hit": 0.5}) == (
        "shared and private cannot be told apart at cache hit 0.5: their medians differ (x1.27), "
        "but where no block is shared the same work differs, too (x1.40), this machine was busy; "
        "x1.27 to x3.82 over 3 points, 2 of them too noisy to say."
    )
    assert "shared is 3.8x faster than private at cache hit 1: " in finding(sweep, {"cache_hit": 1})
    # another batch is another sweep: its noise is its own
    other = sample_pair(382.0, 300.0, 300, cache_hit=0.5, batch=8)
    told = finding([*sweep, *other], {"cache_hit": 0.5, "batch": 8})
    assert told.startswith("shared is 1.27x faster than private at cache hit 0.5, batch 8: ")


def test_the_load_of_the_machine_is_told_where_others_took_part_of_it() -> None:
    def told(load: float, *times: float, **more: float) -> str:
        environment = {"load_average": [load, 0.0, 0.0], "cores": 2, **more}
        return finding(sample_pair(*times, environment=environment))

    assert "than private on a busy machine (load 5.9 on 2 cores): " in told(5.9, 382, 191, 96)
    assert "busy" not in told(2.1, 382, 191, 96)  # our own threads
    # and where others had a part of the rates, these say nothing about a cause
    assert told(5.9, 382, 191, 96, cpu_share=0.57) == (
        "shared is 2.0x faster than private on a busy machine (load 5.9 on 2 cores, the process "
        "got 57% of them): its distinct blocks hold 96 MB a layer instead of 636; with others on "
        "the machine no cause is named."
    )
    assert told(5.9, 382, 381, 96).endswith("; with others on the machine no cause is named.")
    # the load was that of the minute before
    assert "busy" not in told(5.9, 382, 191, 96, cpu_share=0.97)
    wide = sample_pair(382.0, 380.0)
    for record in wide:
        record |= {"p20_us": 300.0, "p80_us": 500.0}
    assert finding(wide).startswith(
        "shared takes the same time as private within noise (x1.01; p20 to p80 allow x0.60 to "
        "x1.67, this machine was busy): "
    )


def test_slower_is_told_as_plainly_as_faster() -> None:
    assert finding(sample_pair(382.0, 482.0)) == (
        "shared is 1.26x slower than private: its distinct blocks hold 96 MB a layer instead of "
        "636, so they are not what sets the time here."
    )
    alone = sample_record(p50_us=482.0, case="cascade")
    assert finding([sample_record(), alone]) == (
        "cascade is 1.26x slower than private: both read 636 MB a layer, "
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


def test_of_a_sweep_the_point_that_was_asked_is_told_and_else_the_median() -> None:
    sweep = [
        *sample_pair(382.0, 381.0, 636, cache_hit=0.0),
        *sample_pair(382.0, 20.0, 200, cache_hit=0.75),  # a lucky point
        *sample_pair(382.0, 254.0, 300, cache_hit=0.5),
        *sample_pair(382.0, 191.0, 200, cache_hit=1.0),
        sample_record(cache_hit=0.25),  # still without its other case
    ]
    assert finding(sweep) == (
        "shared is 2.0x faster than private at the median point (cache hit 1): DRAM has to deliver "
        "200 MB a layer instead of 636, the cache serves the rest (3329 GB/s, 1.63x the DRAM "
        "spec); x1.00 to x19.10 over 4 points."
    )
    asked = finding(sweep, {"cache_hit": 0.5})
    assert asked.startswith("shared is 1.50x faster than private at cache hit 0.5: ")
    # a point that was not measured is not asked of anybody
    assert finding(sweep, {"cache_hit": 0.9}) == finding(sweep)
    mixed = finding([*sweep, *sample_pair(382.0, 191.0, 200, batch=2, cache_hit=0.0)])
    assert "(cache hit 1, batch 100)" in mixed


def test_a_sweep_without_gain_says_so() -> None:
    same = [*sample_pair(382.0, 381.0, 636, batch=1), *sample_pair(382.0, 383.0, 636, batch=2)]
    assert finding(same).startswith("shared takes the same time as private within noise at the ")
    assert finding(same).endswith("; x1.00 at each of 2 points.")
    slower = [*sample_pair(382.0, 381.0, batch=1), *sample_pair(382.0, 482.0, batch=2)]
    assert finding(slower).startswith(
        "shared is 1.26x slower than private at the median point (batch 2): "
    )
    assert finding(slower).endswith("; x0.79 to x1.00 over 2 points.")


def test_private_is_one_measurement_over_a_sweep_of_what_it_does_not_know() -> None:
    def sweep(axis: str, *privates: float) -> list[Record]:
        return [
            record
            for number, us in enumerate(privates, 1)
            for record in sample_pair(us, 191.0, 200, **{axis: number})
        ]

    # the point that was asked for had a private twice as slow: a burst of contention
    burst = (382.0, 764.0, 384.0, 380.0, 381.0)
    for axis in ("cache_hit", "prefix_groups"):
        told = finding(sweep(axis, *burst), {axis: 2})
        assert told.startswith(f"shared is 2.0x faster than private at {axis.replace('_', ' ')} 2")
    # a batch makes private another work
    told = finding(sweep("batch", *burst), {"batch": 2})
    assert told.startswith("shared is 4.0x faster than private at batch 2: ")
    # medians that scatter widen the band of what is pooled
    scattered = finding(sweep("cache_hit", 382.0, 150.0, 700.0, 160.0, 390.0), {"cache_hit": 2})
    assert "cannot be told apart at cache hit 2" in scattered


def test_steps_given_as_tables_are_told_apart_by_their_length() -> None:
    tables: dict[str, Any] = dict.fromkeys(
        ["input_len", "output_len", "cache_hit", "realised_hit", "prefix_groups", "primed", "seed"]
    ) | {"step": None}
    records = [
        *sample_pair(382.0, 191.0, **tables, seq_len=310),
        *sample_pair(382.0, 382.0, **tables, seq_len=9),
    ]
    told = finding(records, {"seq_len": 310})
    assert told.startswith("shared is 2.0x faster than private at seq_len 310: ")


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


def test_cascade_beside_shared_is_that_of_the_point_that_was_told() -> None:
    def point(hit: float, *times: float) -> list[Record]:
        private, shared, cascade = times
        asked = {"cache_hit": hit, "distinct_bytes": 96_000_000}
        third = sample_record(p50_us=cascade, case="cascade", **asked)
        return [*sample_pair(private, shared, cache_hit=hit), third]

    # the same time at one point, disjoint bands at the other
    records = [*point(0.5, 90.0, 40.0, 40.1), *point(1.0, 90.0, 39.7, 72.1)]
    assert "; cascade is 1.82x slower than shared" in finding(records, {"cache_hit": 1.0})
    assert "; cascade takes the same time as shared within noise (x1.00)" in finding(
        records, {"cache_hit": 0.5}
    )
    # bands that merely overlap at a gap of 1.7 are no "same time"
    records = point(1.0, 90.0, 40.0, 68.0)
    records[2] |= {"samples_us": [30.0, 80.0], "p20_us": 38.0, "p80_us": 80.0}
    assert "same time" not in finding(records)
    assert finding(records).endswith(
        "; cascade and shared cannot be told apart: what is between their medians (x0.59) is less "
        "than the noise, this machine was busy."
    )


@pytest.mark.parametrize(
    ("kernel", "cascade_us", "words"),
    [
        ("paged", 138.0, "the paged kernel (saved rates); measured: cascade 1.15x faster."),
        ("cascade", 318.0, "cascade (saved rates); measured: cascade 2.0x slower."),
        ("cascade", 159.0, "cascade (saved rates); measured: the same time."),
    ],
)
def test_the_advice_of_the_rule_stands_beside_the_measurement(
    kernel: str, cascade_us: float, words: str
) -> None:
    cascade = sample_record(p50_us=cascade_us, case="cascade", distinct_bytes=96_000_000)
    records = [*sample_pair(382.0, 159.0), cascade]
    silent = finding(records)
    assert "rule" not in silent
    cascade["advice"] = {"kernel": kernel, "saved_us": -3.5, "basis": "saved rates"}
    assert finding(records) == f"{silent} The rule would take {words}"
    cascade["advice"] = None
    assert finding(records) == silent


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
