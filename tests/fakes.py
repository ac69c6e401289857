"""Stand-ins for the bench: the same calls and records, with times that a formula makes up."""

import time
from collections.abc import Callable
from typing import Any

from apclab.bench import decode_step
from apclab.clock import Cancelled
from apclab.results import Record, validate
from apclab.specs import ModelShape
from apclab.workload import Workload

LADDER: list[dict[str, Any]] = [
    {"level": "L2", "footprint_bytes": 2**20, "gb_per_s": 150.0, "threads": 2},
    {"level": "L3", "footprint_bytes": 2**24, "gb_per_s": 60.0, "threads": 2},
    {"level": "DRAM", "footprint_bytes": 2**30, "gb_per_s": 20.0, "threads": 2},
]


def record(
    workload: Workload, case: str, *, time_us: float | None = None, **changes: Any
) -> Record:
    """A valid record of one case; 20 GB/s of distinct bytes unless a time is given."""
    step = decode_step(workload, block_size=changes.get("block_size", 16))
    token_bytes = 20_480
    table = step.private if case == "private" else step.shared
    sharing = table.sharing()
    logical, distinct = sharing.logical_bytes(token_bytes), sharing.distinct_bytes(token_bytes)
    us = time_us if time_us is not None else distinct / 20e3 + logical / 200e3
    made = {
        "schema": 1,
        "apclab": "0.1.0",
        "commit": "0123456789abcdef",
        "dirty": False,
        "kernel_sha256": None,
        "created": "2026-01-01T00:00:00+00:00",
        "device": {
            "name": "made-up device",
            "kind": "cpu",
            "llc_bytes": 2**24,
            "dram_gb_per_s": 20.0,
            "dram_basis": "measured",
            "ladder": LADDER,
        },
        "environment": {},
        "workload": {
            "batch": workload.batch,
            "input_len": workload.input_len,
            "output_len": workload.output_len,
            "cache_hit": workload.cache_hit,
            "realised_hit": step.realised_hit,
            "readers_mean": step.readers_mean,
            "prefix_groups": workload.prefix_groups,
            "primed": workload.primed,
            "seed": workload.seed,
        },
        "model": {
            "name": changes.get("model", "llama-13b"),
            "num_heads": 40,
            "num_kv_heads": 40,
            "head_size": 128,
            "dtype": changes.get("dtype", "bfloat16"),
            "block_size": changes.get("block_size", 16),
            "layout": "NHD",
        },
        "case": case,
        "backend": "cpu",
        "order": changes.get("order", "request"),
        "l2": changes.get("l2", "cold"),
        "step": changes.get("step", "mid"),
        "seq_len": workload.seq_len(changes.get("step", "mid")),
        "layers": 1,
        "pool_bytes": logical,
        "threads": 2,
        "placement": 0,
        "samples_us": [0.95 * us, us, 1.05 * us],
        "p20_us": 0.97 * us,
        "p50_us": us,
        "p80_us": 1.03 * us,
        "logical_bytes": logical,
        "distinct_bytes": distinct,
        "gb_per_s": logical / us / 1e3,
        "max_error": 0.0,
        "error_bound": 1.0,
        "checked": "all",
        "notes": [],
    }
    validate(made)
    return made


def compare_decode(
    workload: Workload,
    model: str | ModelShape = "llama-13b",
    *,
    budget_s: float = 1.0,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
    **settings: Any,
) -> list[Record]:
    """Takes `budget_s`, looks at `cancelled` every few milliseconds, measures nothing."""
    end = time.monotonic() + budget_s
    while (left := end - time.monotonic()) > 0:
        if cancelled is not None and cancelled():
            raise Cancelled
        if progress is not None:
            progress(1 - left / budget_s, "timing")
        time.sleep(min(left, 0.002))
    name = model if isinstance(model, str) else model.name
    known = {key: settings[key] for key in ("block_size", "dtype", "l2", "step") if key in settings}
    return [record(workload, case, model=name, **known) for case in ("private", "shared")]
