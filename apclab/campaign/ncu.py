"""Counters of a GPU through Nsight Compute: one run and one pass a metric, its CSV read.

ncu flushes caches and locks clocks unless told not to, and replays a kernel for each pass, so that
a second pass would find its data in the cache: one metric a run keeps the passes at one.
"""

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from apclab.bench import PROFILED_CASES
from apclab.campaign.context import Settings

_KERNEL = "decode_kernel"
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_PERMISSION = "ERR_NVGPUCTRPERM"


class Counted(NamedTuple):
    """One metric of one launch."""

    kernel: str
    metric: str
    value: float  # bytes, percent, or what else the metric counts


class NotCounted(RuntimeError):  # noqa: N818 - a state of the machine, not a mistake
    """ncu is missing, may not read the counters, or counted nothing; the message says which."""


def count_bytes(metric: str, settings: Settings, *, timeout_s: float) -> list[dict[str, Any]]:
    """Count one metric over a cold launch of each case.

    Args:
        metric: as ncu names it.
        settings: whose workload and model.
        timeout_s: seconds for the whole run.

    Returns:
        A row a case: "metric", "case", "value".

    Raises:
        NotCounted: with the reason.
    """
    program = shutil.which("ncu")
    if program is None:
        raise NotCounted("ncu is not on the PATH; it comes with the CUDA toolkit, nsight-compute")
    try:
        done = subprocess.run(
            command(program, metric, settings), capture_output=True, text=True, check=False,
            timeout=timeout_s, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NotCounted(f"ncu was not done after {timeout_s:.0f} s") from None
    counted = [one for one in read_csv(done.stdout) if one.metric == metric]
    if not counted:
        raise NotCounted(why_not(done.stdout + "\n" + done.stderr, done.returncode))
    return by_case(counted)


def command(program: str, metric: str, settings: Settings) -> list[str]:
    """The command line of one run."""
    work = json.dumps(asdict(settings.workload))
    return [
        program, "--csv", "--page", "raw", "--print-units", "base", "--cache-control", "none",
        "--clock-control", "none", "--kernel-name", f"regex:{_KERNEL}", "--metrics", metric,
        sys.executable, "-m", "apclab.campaign.profiled", settings.model, settings.dtype, work,
    ]  # fmt: skip


def by_case(counted: list[Counted]) -> list[dict[str, Any]]:
    """The last launch of each case: the first ones compile and load.

    Raises:
        NotCounted: the launches are no multiple of the cases.
    """
    cases = len(PROFILED_CASES)
    if len(counted) % cases:
        raise NotCounted(f"ncu saw {len(counted)} launches, {cases} cases have equally many each")
    each = len(counted) // cases
    return [
        {"metric": counted[0].metric, "case": case, "value": counted[(at + 1) * each - 1].value}
        for at, case in enumerate(PROFILED_CASES)
    ]


def why_not(said: str, status: int) -> str:
    """What ncu complained of, in one line."""
    if _PERMISSION in said:
        return (
            f"ncu may not read the GPU's counters ({_PERMISSION}): an administrator allows it with "
            f"the driver's option NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "error" in line]
    last = (errors or lines or ["it said nothing"])[-1]
    return f"ncu counted nothing (status {status}): {last}"[:300]


def read_csv(text: str) -> list[Counted]:
    """The metrics in what ncu printed, in the order of the launches.

    Both forms are read: a row a metric ("Metric Name", "Metric Unit", "Metric Value"), and with
    `--page raw` a row a launch, a column a metric, and the units in the row under the header. What
    the program itself printed, and ncu's ==PROF== lines, are passed over.
    """
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    rows = [line for line in lines[start:] if line.startswith('"')]
    table = csv.reader(io.StringIO("\n".join(rows)))
    header = next(table)
    if "Metric Value" in header:
        return list(_long(header, table))
    return list(_wide(header, table))


def _long(header: list[str], table: Iterable[list[str]]) -> Iterable[Counted]:
    for row in table:
        cells = dict(zip(header, row, strict=False))
        value = _number(cells.get("Metric Value", ""), cells.get("Metric Unit", ""))
        if value is not None:
            yield Counted(cells["Kernel Name"], cells["Metric Name"], value)


def _wide(header: list[str], table: Iterable[list[str]]) -> Iterable[Counted]:
    units: dict[str, str] = {}
    metrics = [name for name in header if "__" in name]
    for row in table:
        cells = dict(zip(header, row, strict=False))
        if not cells["ID"].strip():  # the row of units has no ID
            units = cells
            continue
        for name in metrics:
            if (value := _number(cells.get(name, ""), units.get(name, ""))) is not None:
                yield Counted(cells["Kernel Name"], name, value)


def _number(text: str, unit: str) -> float | None:
    """A number in base units; None where there is none ("n/a")."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    name = unit.strip().lower()
    if name.endswith("byte") or name.endswith("bytes"):
        scale = name.removesuffix("s").removesuffix("byte")
        return value * _UNITS.get(scale, 1.0)
    return value
