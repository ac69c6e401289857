import csv

import pytest

from apclab import data_dir
from apclab.specs import DTYPE_BYTES, ModelShape, device, devices, model, models, sms


def test_token_bytes_of_llama_13b_is_hand_computed() -> None:
    # K and V, 40 heads of 128 elements, two bytes each
    assert model("llama-13b").token_bytes("bfloat16") == 2 * 40 * 128 * 2 == 20_480
    assert model("llama-13b").token_bytes("float32") == 40_960
    # grouped heads: 8 KV heads serve 32 query heads
    assert model("llama-3.1-8b").token_bytes("float16") == 4_096


def test_shapes_agree_with_the_published_kv_bytes_per_token() -> None:
    # layers * K and V * KV heads * head size * 2 bytes
    known = {"llama-13b": 819_200, "llama-3.1-8b": 131_072, "qwen3-0.6b": 114_688}
    for name, size in known.items():
        assert model(name).num_layers * model(name).token_bytes("bfloat16") == size


def test_every_model_and_device_carries_its_source() -> None:
    assert len(models()) >= 8
    sources = [shape.source for shape in models().values()]
    sources += [row.source for row in devices().values()]
    for source in sources:
        assert len(source) > 10, source
        assert source.strip() == source


def test_the_assumption_behind_llama_13b_is_said() -> None:
    assert "assumed" in model("llama-13b").source


def test_devices_are_plausible_and_a_missing_rate_is_none() -> None:
    assert device("A100-SXM4-80GB").dram_gb_per_s == 2039
    assert device("A100-SXM4-80GB").llc_bytes == 40 * 2**20
    assert device("H200").llc_gb_per_s is None
    for row in devices().values():
        assert 100 < row.dram_gb_per_s < 20_000, row
        assert 2**20 < row.llc_bytes < 2**30, row
        # a cache slower than its DRAM would be a typing error
        assert row.llc_gb_per_s is None or row.llc_gb_per_s > 0.9 * row.dram_gb_per_s, row


def test_measured_dram_rates_do_not_exceed_the_spec() -> None:
    with (data_dir() / "devices.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["dram_measured_gb_per_s"]:
                share = float(row["dram_measured_gb_per_s"]) / float(row["dram_gb_per_s"])
                assert 0.7 < share <= 1.0, row["name"]
            assert row["confidence"], row["name"]


def test_the_published_study_of_a_device_uses_its_rate() -> None:
    path = data_dir() / "published" / "decode_anchors.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            spec = device(row["device"])
            assert (float(row["dram_gb_per_s"]), row["dram_basis"]) == (
                spec.dram_gb_per_s,
                spec.dram_basis,
            )


def test_every_sm_belongs_to_a_device_and_says_how_its_latency_is_known() -> None:
    assert {"A100-SXM4-80GB", "H100-SXM5-80GB", "H200", "B200", "L40S"} <= sms().keys()
    for name, sm in sms().items():
        assert name in devices()
        assert sm.latency_basis in ("measured", "clock inferred", "inferred")
        assert len(sm.note) > 10
        # latency, clocks and limits have a source each
        assert sm.source.count(";") == 2, name
        assert sm.registers == 65536
        assert sm.max_programs * 2 <= sm.max_warps
        # a partition has 16 or 32 lanes
        assert sm.fp32_lanes in (64, 128)


def test_latency_follows_from_its_cycles_and_clock() -> None:
    with (data_dir() / "sm.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            ns = float(row["dram_latency_cycles"]) / float(row["latency_clock_mhz"]) * 1000
            assert int(row["dram_latency_ns"]) == round(ns), row["device"]


def test_an_unknown_name_lists_near_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'llama13b': did you mean llama-13b"):
        model("llama13b")
    with pytest.raises(ValueError, match=r"unknown model 'LLAMA-13B': did you mean llama-13b"):
        model("LLAMA-13B")
    with pytest.raises(ValueError, match=r"unknown device 'abacus': known are A100-SXM4-80GB, "):
        device("abacus")


def test_tables_cannot_be_changed_by_a_caller() -> None:
    models().clear()
    devices().clear()
    assert models()
    assert devices()


def test_a_shape_of_ones_own_is_checked() -> None:
    shape = ModelShape("mine", num_layers=2, num_heads=6, num_kv_heads=3, head_size=64)
    assert shape.token_bytes("float32") == 2 * 3 * 64 * 4
    with pytest.raises(
        ValueError, match="num_heads must be a multiple of num_kv_heads, got 6 and 4"
    ):
        ModelShape("bad", num_layers=2, num_heads=6, num_kv_heads=4, head_size=64)
    with pytest.raises(ValueError, match="head_size must be at least 1, got 0"):
        ModelShape("bad", num_layers=2, num_heads=6, num_kv_heads=3, head_size=0)
    with pytest.raises(TypeError, match=r"num_layers must be an int, got 2\.0"):
        ModelShape("bad", num_layers=2.0, num_heads=6, num_kv_heads=3, head_size=64)  # type: ignore[arg-type]


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"dtype must be one of float32, float16, bfloat16, got 'fp8'"
    ):
        model("opt-13b").token_bytes("fp8")
    assert DTYPE_BYTES == {"float32": 4, "float16": 2, "bfloat16": 2}
