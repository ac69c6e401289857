"""Tables of records and of published studies."""

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from apclab import data_dir
from apclab.results import (
    Record,
    append,
    decode_times,
    frame,
    ladder,
    load_results,
    published,
)
from tests.sample_records import sample_pair, sample_record


def test_a_frame_has_a_row_a_record_and_plain_columns() -> None:
    table = frame(sample_pair(382.0, 191.0, 317.952))
    assert len(table) == 2
    wanted = (
        "case batch input_len output_len cache_hit realised_hit readers_mean prefix_groups model "
        "dtype block_size layout backend order l2 step seq_len p20_us p50_us p80_us gb_per_s "
        "logical_bytes distinct_bytes dram_gb_per_s device threads commit created max_error "
        "error_bound layers pool_bytes placement"
    )
    assert set(wanted.split()) <= set(table.columns)
    shared = table.iloc[1]
    assert (shared["case"], shared["model"], shared["device"]) == (
        "shared",
        "llama-13b",
        "A100-SXM4-80GB",
    )
    assert shared["placement"] == '{"num_blocks": 2048, "seed": 0}'
    assert shared["x"] == 2.0
    assert shared["y"] == pytest.approx(635_904_000 / 191e3 / 2039)
    assert math.isnan(shared["threads"])


def test_no_records_make_the_same_columns_and_types() -> None:
    empty, full = frame([]), frame(sample_pair(382.0, 191.0))
    assert len(empty) == 0
    pd.testing.assert_series_equal(empty.dtypes, full.dtypes)
    for view in ("layer", "token", "output"):
        assert len(decode_times(empty, view, 40)) == 0
    unknown = frame([sample_record(dram_gb_per_s=None, dram_basis=None, input_len=None)])
    pd.testing.assert_series_equal(unknown.dtypes, full.dtypes)
    assert math.isnan(unknown["y"][0])


def test_times_of_a_layer_and_of_a_token() -> None:
    table = frame([sample_record()])
    layer = decode_times(table, "layer", 40)
    assert (layer["p20"][0], layer["p50"][0], layer["unit"][0]) == (382.0 * 0.995, 382.0, "us")
    token = decode_times(table, "token", 40)
    assert token["p50"][0] == pytest.approx(15.28)  # 40 layers * 382 us
    assert token["unit"][0] == "ms"
    assert "p50" not in table.columns


def steps(times: dict[str, tuple[int, float]], **asked: Any) -> list[Record]:
    return [
        sample_record(step=step, seq_len=length, p50_us=us, **asked)
        for step, (length, us) in times.items()
    ]


def test_the_time_of_an_output_is_exact_for_a_line_and_a_parabola() -> None:
    # issue 4860: lengths 301, 310 and 320; a layer takes as many us as it has tokens
    line = steps({"first": (301, 301.0), "mid": (310, 310.0), "last": (320, 320.0)})
    output = decode_times(frame(line), "output", 40)
    assert len(output) == 1
    assert output["step"][0] == "output"
    assert output["p50"][0] == pytest.approx(sum(range(301, 321)) * 40 / 1e3)
    assert output["p20"][0] == pytest.approx(0.995 * output["p50"][0])

    # mean of t^2 over [-10, 10] is 100 / 3
    square = steps({"first": (300, 600.0), "mid": (310, 500.0), "last": (320, 600.0)})
    output = decode_times(frame(square), "output", 1)
    assert output["p50"][0] == pytest.approx(20 * (500 + 100 / 3) / 1e3)


def test_an_output_of_one_or_two_tokens() -> None:
    one = steps({"first": (301, 10.0), "mid": (301, 10.0), "last": (301, 10.0)}, output_len=1)
    assert decode_times(frame(one), "output", 1000)["p50"][0] == pytest.approx(10.0)
    two = steps({"first": (301, 10.0), "mid": (301, 10.0), "last": (302, 12.0)}, output_len=2)
    assert decode_times(frame(two), "output", 1000)["p50"][0] == pytest.approx(22.0)


def test_cases_and_points_of_an_output_stay_apart_and_the_last_measurement_counts() -> None:
    flat = {"first": (301, 9.0), "mid": (310, 9.0), "last": (320, 9.0)}
    records = [
        *steps(flat | {"mid": (310, 99.0)}),
        *steps(flat),
        *steps({name: (length, 3.0) for name, (length, _) in flat.items()}, case="shared"),
        *steps({"first": (301, 9.0), "mid": (310, 9.0)}, batch=7),  # its last step is to come
    ]
    output = decode_times(frame(records), "output", 1)
    assert list(zip(output["case"], output["p50"].round(9), strict=True)) == [
        ("private", 0.18),
        ("shared", 0.06),
    ]


def test_an_output_without_its_steps_is_refused_in_words() -> None:
    message = "view 'output' needs records of the steps first, mid, last of one workload, got mid"
    with pytest.raises(ValueError, match=f"^{message}$"):
        decode_times(frame(sample_pair(382.0, 191.0)), "output", 40)
    apart = [sample_record(step=s, batch=b) for s, b in (("first", 1), ("mid", 2), ("last", 3))]
    with pytest.raises(ValueError, match="got first, last, mid of different ones"):
        decode_times(frame(apart), "output", 40)
    with pytest.raises(ValueError, match="view must be one of layer, token, output, got 'day'"):
        decode_times(frame([]), "day", 40)
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        decode_times(frame([]), "layer", 0)


def test_load_results_warns_of_what_it_skips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "a.jsonl", sample_pair(382.0, 191.0))
    assert len(load_results(tmp_path)) == 2
    (tmp_path / "b.jsonl").write_text("hello\n")
    with pytest.warns(UserWarning, match=r"b\.jsonl:1: skipped: not a JSON object"):
        assert len(load_results(tmp_path)) == 2

    monkeypatch.setattr("apclab.results.store.data_dir", lambda: tmp_path / "_data")
    monkeypatch.chdir(tmp_path)
    assert len(load_results()) == 0
    append(Path("apclab-results", "device", "today.jsonl"), sample_pair(382.0, 191.0))
    assert len(load_results()) == 2


def test_the_private_arm_of_issue_4860_is_dram_bound_and_the_shared_one_cannot_be() -> None:
    private, shared = (row for _, row in published().query("study == 'vLLM issue 4860'").iterrows())
    # 100 requests, 310.5 tokens in the mean of 20 steps, 20480 bytes a token of 40 heads of 128
    logical = 100 * 310.5 * 20_480
    assert private["logical_bytes"] == shared["logical_bytes"] == logical
    assert (private["x"], private["y"]) == (1.0, pytest.approx(logical / 382.047e-6 / 2039e9))
    assert private["y"] < 1 < shared["y"] == pytest.approx(1.235, abs=5e-4)


def test_what_issue_4860_shared_is_not_known_but_bounded() -> None:
    shared = published().query("study == 'vLLM issue 4860' and case == 'shared'").iloc[0]
    assert shared["x_basis"] == "unknown"
    assert math.isnan(shared["x"])
    assert math.isnan(shared["shared_len"])
    assert shared["x_low"] == shared["y"]
    assert shared["least_from_cache"] == pytest.approx(1 - 1 / shared["y"])
    # identical prompts: 18 full blocks of 16 once, and the other 22.5 tokens of each request
    assert shared["x_high"] == pytest.approx(100 * 310.5 / (288 + 100 * 22.5))


def test_chunk_attention_shows_all_three_cases() -> None:
    table = published().query("study == 'ChunkAttention Table 3'")
    paged = table[table["kernel"].str.startswith("PagedAttn")]
    assert list(paged["case"]) == ["private", "private", "private", "shared"]
    assert list(paged["x"]) == [1.0, 1.0, 1.0, 32.0]
    assert list(paged["y"].round(2)) == [0.74, 0.75, 0.75, 1.59]
    assert (table.query("case == 'cascade'")["y"] > 4.5).all()


def test_every_published_row_adds_up() -> None:
    table = published()
    token_bytes = 2 * table["num_kv_heads"] * table["head_size"] * 2
    assert set(table["dtype"]) == {"float16", "bfloat16"}
    assert (table["logical_bytes"] == table["batch"] * table["seq_len"] * token_bytes).all()
    known = table[table["x_basis"] != "unknown"]
    assert known["x"].notna().all()
    private = known["case"] == "private"
    assert (known.loc[private, "x"] == 1).all()
    own = known["batch"] * (known["seq_len"] - known["shared_len"]) + known["shared_len"]
    expected = known["logical_bytes"].where(private, own * token_bytes[known.index])
    assert (known["distinct_bytes"] == expected).all()
    assert (table["x_low"] <= table["x_high"]).all()
    assert (table["least_from_cache"] >= 0).all()
    # a private, cold case above the rate of DRAM would be a wrong number
    assert (table.query("case == 'private' and l2 != 'warm'")["y"] <= 1).all()
    assert table["source"].str.fullmatch(r"(github\.com|arxiv\.org)/.+").all()


def test_the_readme_of_the_data_names_every_column() -> None:
    text = (data_dir() / "README.md").read_text(encoding="utf-8")
    for name in ("models.csv", "devices.csv", "published/decode_anchors.csv"):
        header = (data_dir() / name).read_text(encoding="utf-8").splitlines()[0]
        assert name in text
        for column in header.split(","):
            assert re.search(f"`{column}`", text), (name, column)


def test_a_measured_dram_rate_is_a_ceiling_for_all_rows_of_its_device() -> None:
    def measured(name: str, dram: float) -> Record:
        rung = {"level": "DRAM", "footprint_bytes": 2**30, "gb_per_s": dram, "threads": 2}
        device = {"name": name, "kind": "cpu", "llc_bytes": None, "dram_gb_per_s": dram}
        record = sample_record(threads=2, p50_us=1000.0, logical_bytes=10**8)
        return record | {"device": device | {"dram_basis": "measured", "ladder": [rung]}}

    records = [measured("one", 10.0), measured("other", 50.0), measured("one", 25.0)]
    # 1e8 bytes in 1 ms are 100 GB/s
    assert frame(records)["y"].tolist() == [4.0, 2.0, 4.0]
    assert [rung["gb_per_s"] for rung in ladder(records)] == [25.0]
    assert ladder([]) == []
    # a data sheet's rate is each row's own
    assert frame([sample_record()])["y"].item() == pytest.approx(635.904 / 382 / 2.039)
