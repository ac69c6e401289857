"""The record of one kernel in the comparison: timed, wrong, or failed with its reason."""

import math
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from apclab.attention import Comparison
from apclab.bench.bound import Bound
from apclab.bench.peers.kernel import Candidate, Kernel
from apclab.bench.peers.setting import Setting
from apclab.bench.probes import Ladder
from apclab.bench.record import digest_of, of_step
from apclab.results import Record

# of a kernel that has not been checked or timed
_EMPTY = (
    *("samples_us", "p20_us", "p50_us", "p80_us", "gb_per_s", "logical_bytes", "distinct_bytes"),
    *("max_error", "error_bound", "checked"),
)


def make_record(
    candidate: Candidate, kernel: Kernel | None, bound: Bound, ladder: Ladder, setting: Setting
) -> Record:
    """Everything but a verdict, which `failed`, `checked` or `speed` adds.

    Args:
        candidate: whose kernel.
        kernel: None where it could not be bound.
        bound: what it was asked.
        ladder: the machine's rates.
        setting: whose share the table tells.
    """
    common = of_step(bound, ladder)
    name = kernel.name if kernel else candidate.name
    ours = kernel.ours if kernel else candidate.name.startswith("apclab")
    seconds = bound.first_call_s.get(name)
    common["environment"]["first_call_s"] = {} if seconds is None else {name: seconds}
    return (
        common
        | dict.fromkeys(_EMPTY)
        | {
            "kind": "peer",
            "kernel_sha256": digest_of(kernel.launches[0]) if kernel and kernel.ours else None,
            "model": common["model"] | {"layout": kernel.layout if kernel else None},
            "kernel": {
                "name": name,
                "ours": ours,
                "versions": dict(_versions(candidate.distributions)),
            },
            "share": {"shared": setting.shared, "entries": setting.entries},
        }
    )


def failed(error: BaseException) -> dict[str, Any]:
    """What a record says of a kernel that could not be bound or run; its reason is one line.

    A C++ stack says first where and last what was wrong; torch ends with advice on its variables.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if "TORCHDYNAMO" not in line] or [""]
    said = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    return {"status": "failed", "reason": f"{type(error).__name__}: {said}"[:400]}


def checked(found: Comparison) -> dict[str, Any]:
    """What a record says of the check; a wrong kernel is told with its error and gets no speed."""
    error = found.max_error if math.isfinite(found.max_error) else None
    fields: dict[str, Any] = found._asdict() | {"max_error": error}
    if found.ok:
        return fields | {"status": "timed", "reason": None}
    said = "no number" if error is None else f"{error:.3g}"
    return fields | {
        "status": "wrong",
        "reason": f"an output element is {said} from float64, its bound is {found.error_bound:.3g}",
    }


def _versions(distributions: Iterable[str]) -> Iterable[tuple[str, str | None]]:
    for name in distributions:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, None
