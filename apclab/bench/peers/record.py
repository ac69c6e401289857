"""The record of one kernel in the comparison: timed, wrong, or failed with its reason."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import numpy as np

import apclab
from apclab.attention import Comparison
from apclab.bench.peers.kernel import Candidate, Kernel
from apclab.bench.peers.problem import Problem
from apclab.clock import commit, environment, machine
from apclab.results import PEER_SCHEMA, Record

_EMPTY = (
    *("samples_us", "p20_us", "p50_us", "p80_us", "gb_per_s", "max_error", "error_bound"),
    *("checked", "first_call_s", "reason", "layers", "pool_bytes", "logical_bytes"),
    "distinct_bytes",
)


def make_record(candidate: Candidate, kernel: Kernel | None, problem: Problem) -> Record:
    """Everything but a verdict; `verdict` and `times` are added to it.

    Args:
        candidate: whose kernel.
        kernel: None where it could not be bound.
        problem: what it was asked.
    """
    head, dirty = commit()
    setting, shape, device = problem.setting, problem.setting.shape, machine(problem.kind)
    sharing = problem.table.sharing()
    made: Record = {
        "schema": PEER_SCHEMA,
        "apclab": apclab.__version__,
        "commit": head,
        "dirty": dirty,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": {
            "name": device["name"],
            "kind": problem.kind,
            "llc_bytes": device["llc_bytes"] if device["llc_known"] else None,
        },
        "environment": environment(problem.kind),
        "kernel": {
            "name": kernel.name if kernel else candidate.name,
            "ours": kernel.ours if kernel else candidate.name.startswith("apclab"),
            "versions": dict(_versions(candidate.distributions)),
            "layout": kernel.layout if kernel else None,
        },
        "workload": {"batch": setting.batch, "seed": setting.seed},
        "model": {
            "name": shape.name,
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "head_size": shape.head_size,
            "dtype": setting.dtype,
            "block_size": problem.table.block_size,
        },
        "share": {
            "shared": setting.shared,
            "entries": setting.entries,
            "readers_mean": sharing.readers_mean,
        },
        "seq_len": setting.seq_len,
        "threads": problem.threads if problem.kind == "cpu" else None,
        "status": "failed",
        "notes": [],
    }
    return made | dict.fromkeys(_EMPTY)


def failed(record: Record, error: BaseException) -> Record:
    """The record of a kernel that could not be bound or run; its reason is one line.

    A C++ stack says first where and last what was wrong; torch ends with advice on its variables.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if "TORCHDYNAMO" not in line] or [""]
    said = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    reason = f"{type(error).__name__}: {said}"
    return record | {"status": "failed", "reason": reason[:400]}


def checked(record: Record, found: Comparison, first_call_s: float) -> Record:
    """The record with its check; a wrong kernel is told with its error and gets no speed."""
    error = found.max_error if math.isfinite(found.max_error) else None
    record = record | {
        "max_error": error,
        "error_bound": found.error_bound,
        "checked": found.checked,
        "first_call_s": first_call_s,
    }
    if found.ok:
        return record | {"reason": "not timed yet"}
    said = "no number" if error is None else f"{error:.3g}"
    return record | {
        "status": "wrong",
        "reason": f"an output element is {said} from float64, its bound is {found.error_bound:.3g}",
    }


def timed(record: Record, problem: Problem, seconds: list[float], notes: list[str]) -> Record:
    """The record with its times."""
    times = np.array(seconds) * 1e6
    p20, p50, p80 = (float(p) for p in np.percentile(times, [20, 50, 80]))
    token_bytes = problem.setting.shape.token_bytes(problem.setting.dtype)
    sharing = problem.table.sharing()
    logical = sharing.logical_bytes(token_bytes)
    return record | {
        "status": "timed",
        "reason": None,
        "samples_us": times.tolist(),
        "p20_us": p20,
        "p50_us": p50,
        "p80_us": p80,
        "logical_bytes": logical,
        "distinct_bytes": sharing.distinct_bytes(token_bytes),
        "gb_per_s": logical / p50 / 1e3,
        "layers": problem.layers,
        "pool_bytes": problem.layers * problem.num_blocks * problem.table.block_size * token_bytes,
        "notes": [*record["notes"], *notes],
    }


def _versions(distributions: Iterable[str]) -> Iterable[tuple[str, str | None]]:
    for name in distributions:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, None
