"""The records of a comparison: everything a stranger needs to judge it."""

from datetime import UTC, datetime
from typing import Any

import numpy as np

import apclab
from apclab.attention import Comparison, Launch, kernel_cache_note, kernel_sha256
from apclab.bench.bound import Bound
from apclab.bench.how import How
from apclab.bench.probes import Ladder
from apclab.clock import commit, environment, machine
from apclab.results import SCHEMA, Record


def make_records(
    bound: Bound,
    ladder: Ladder,
    checks: dict[str, Comparison],
    samples: dict[str, list[float]],
) -> list[Record]:
    """One record a case, in the order of `samples` as asked for."""
    common = of_step(bound, ladder) | {"backend": bound.how.backend, "order": bound.how.order}
    return [_case(common, bound, case, checks[case], samples[case]) for case in bound.how.cases]


def of_step(bound: Bound, ladder: Ladder) -> Record:
    """The fields of every kernel that was bound to a step: stamp, step, memory."""
    common = stamp(bound.how, ladder)
    common["environment"] |= {"first_call_s": dict(bound.first_call_s), **share_of(bound)}
    common["notes"] += bound.memory.notes
    seq_len = bound.step.seq_len
    return common | {
        "workload": _workload(bound),
        "model": model_of(bound),
        "l2": bound.memory.l2,
        "step": bound.step.step,
        "seq_len": int(seq_len) if seq_len.is_integer() else seq_len,
        "layers": bound.memory.layers,
        "pool_bytes": bound.memory.pool_bytes,
        "threads": bound.threads,
    }


def share_of(bound: Bound) -> dict[str, float]:
    """The part of its CPU cores that the process got while a step was timed."""
    share = bound.cores.value
    return {"cpu_share": share} if bound.how.kind == "cpu" and share is not None else {}


def stamp(how: How, ladder: Ladder) -> Record:
    """The fields that say which package, commit, kernel and device, where, and when."""
    head, dirty = commit()
    device = machine(how.kind)
    return {
        "schema": SCHEMA,
        "apclab": apclab.__version__,
        "commit": head,
        "dirty": dirty,
        "kernel_sha256": kernel_sha256(how.backend),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": {
            "name": device["name"],
            "kind": how.kind,
            "llc_bytes": device["llc_bytes"] if device["llc_known"] else None,
            "dram_gb_per_s": ladder.dram_gb_per_s,
            "dram_basis": "measured" if ladder.dram_gb_per_s is not None else None,
            "ladder": ladder.rungs,
        },
        # [bytes, GB/s] of plain reads, and what must be read to empty the caches
        "environment": environment(how.kind)
        | {"read_curve": ladder.curve, "cold_bytes": ladder.cold_bytes},
        "notes": [note for note in (ladder.why, kernel_cache_note(how.backend)) if note],
    }


def timed(seconds: list[float]) -> Record:
    """The fields of a time: samples and percentiles, microseconds."""
    times = np.array(seconds) * 1e6
    p20, p50, p80 = (float(p) for p in np.percentile(times, [20, 50, 80]))
    return {"samples_us": times.tolist(), "p20_us": p20, "p50_us": p50, "p80_us": p80}


def speed(bound: Bound, case: str, seconds: list[float]) -> Record:
    """The fields of a time and of what was read in it."""
    times, read = timed(seconds), bytes_of(bound, case)
    return {**times, **read, "gb_per_s": read["logical_bytes"] / times["p50_us"] / 1e3}


def digest_of(launch: Launch) -> str:
    """Digest of the source of one of our kernels."""
    return kernel_sha256(launch.backend, cascade=launch.ran == "cascade")


def bytes_of(bound: Bound, case: str) -> dict[str, int]:
    """KV bytes that a call asks for, and those of its blocks, each counted once."""
    sharing = bound.tables[case].sharing()
    token_bytes = bound.model.token_bytes(bound.how.dtype)
    return {
        "logical_bytes": sharing.logical_bytes(token_bytes),
        "distinct_bytes": sharing.distinct_bytes(token_bytes),
    }


def _case(
    common: Record, bound: Bound, case: str, check: Comparison, seconds: list[float]
) -> Record:
    seed = bound.step.workload.seed if bound.step.workload else 0
    launch = bound.launches[case][0]
    return common | {
        "case": case,
        "kernel_sha256": digest_of(launch),
        "notes": [*common["notes"], *([launch.why] if launch.why else [])],
        "placement": {"kind": "permuted", "seed": seed, "num_blocks": bound.memory.num_blocks},
        **speed(bound, case, seconds),
        **check._asdict(),
    }


def _workload(bound: Bound) -> dict[str, Any]:
    asked = bound.step.workload
    names = ("input_len", "output_len", "cache_hit", "prefix_groups", "primed", "seed")
    return {
        "batch": len(bound.step.shared.seq_lens),
        **{name: getattr(asked, name, None) for name in names},
        "realised_hit": bound.step.realised_hit,
        "readers_mean": bound.step.readers_mean,
    }


def model_of(bound: Bound) -> dict[str, Any]:
    """The fields of the model's shape and of its cache."""
    shape = bound.model
    return {
        "name": shape.name,
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_size": shape.head_size,
        "dtype": bound.how.dtype,
        "block_size": bound.step.block_size,
        "layout": bound.how.layout,
    }
