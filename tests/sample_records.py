"""Records for tests: made here, so that nobody takes an invented number for a measured one."""

from typing import Any

from apclab.results import PROBES, SCHEMA, Record

_GROUPS = ("device", "workload", "model")


def sample_record(**changes: Any) -> Record:
    """A valid record of vLLM issue 4860's private arm, with fields changed.

    Args:
        changes: fields by name, those of nested objects too (`name` is the device's). A change
            of `p50_us` or `logical_bytes` carries samples, percentiles and gb_per_s with it.
    """
    p50 = changes.pop("p50_us", 382.0)
    logical = changes.pop("logical_bytes", 635_904_000)
    record: Record = {
        "schema": SCHEMA,
        "apclab": "0.1.0",
        "commit": "0123456789abcdef",
        "dirty": False,
        "kernel_sha256": "ab" * 32,
        "created": "2025-01-31T23:59:00+00:00",
        "device": {
            "name": "A100-SXM4-80GB",
            "kind": "cuda",
            "llc_bytes": 40 * 2**20,
            "dram_gb_per_s": 2039.0,
            "dram_basis": "spec",
            "ladder": [
                {"level": "L2", "footprint_bytes": 2**24, "gb_per_s": 4640.0, "threads": None}
            ],
        },
        "environment": {"python": "3.11.7", "governor": None, "load": [0.1, 0.2]},
        "workload": {
            "batch": 100,
            "input_len": 300,
            "output_len": 20,
            "cache_hit": 1.0,
            "realised_hit": 1.0,
            "readers_mean": 1.0,
            "prefix_groups": 1,
            "primed": True,
            "seed": 0,
        },
        "model": {
            "name": "llama-13b",
            "num_heads": 40,
            "num_kv_heads": 40,
            "head_size": 128,
            "dtype": "bfloat16",
            "block_size": 16,
            "layout": "NHD",
        },
        "case": "private",
        "backend": "triton",
        "order": "request",
        "l2": "cold",
        "step": "mid",
        "seq_len": 310,
        "layers": 4,
        "pool_bytes": 2_600_000_000,
        "threads": None,
        "placement": {"seed": 0, "num_blocks": 2048},
        "samples_us": [p50 * 0.99, p50, p50 * 1.01],
        "p20_us": p50 * 0.995,
        "p50_us": p50,
        "p80_us": p50 * 1.005,
        "logical_bytes": logical,
        "distinct_bytes": logical,
        "gb_per_s": logical / p50 / 1e3,
        "max_error": 1e-3,
        "error_bound": 4e-3,
        "checked": "sample of 64 pairs",
        "advice": None,
        "notes": [],
    }
    for name, value in changes.items():
        home = next((record[group] for group in _GROUPS if name in record[group]), record)
        if name not in home:
            raise KeyError(f"a record has no field {name!r}")
        home[name] = value
    return record


def sample_pair(
    private_us: float, shared_us: float, shared_mb: float = 96, **asked: Any
) -> list[Record]:
    """The two cases of a point that reads 636 MB a layer, `shared_mb` MB of them distinct."""
    fewer = {"distinct_bytes": int(shared_mb * 1e6)} if shared_mb < 635 else {}
    shared = {
        "p50_us": shared_us,
        "case": "shared",
        "readers_mean": max(1.0, 635.904 / shared_mb),
    }
    return [
        sample_record(p50_us=private_us, **asked),
        sample_record(**{**shared, **fewer, **asked}),
    ]


def sample_calibration(probe: str) -> Record:
    """A valid record of one probe: 1 GB in 50 ms, 2 Gflop in 10 ms, or 20 us."""
    us = {"launch": 20.0, "product": 1e4}.get(probe, 5e4)
    size = 0 if probe == "product" else 10**9
    value = {"launch": 20e-6, "product": 2e11}.get(probe, 2e10)
    taken = (
        *("schema", "apclab", "commit", "dirty", "kernel_sha256", "created", "device"),
        *("environment", "model", "backend", "order", "l2", "threads", "max_error"),
        *("error_bound", "checked", "notes"),
    )
    record = sample_record()
    return {name: record[name] for name in taken} | {
        "kind": "calibration",
        "probe": probe,
        "asked": {"batch": 64, "seq_len": 304},
        "logical_bytes": size,
        "distinct_bytes": size,
        "flops": 2 * 10**9 if probe == "product" else 0,
        "samples_us": [us, us, us],
        "p20_us": us,
        "p50_us": us,
        "p80_us": us,
        "value": value,
        "unit": PROBES[probe],
    }
