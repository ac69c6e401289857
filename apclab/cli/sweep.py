"""`apclab simulate --sweep`: many points, here or on a Dask cluster, into a file that resumes."""

import json
import math
from pathlib import Path
from typing import Any

from rich.table import Table

from apclab.cli.terminal import CommandError, stderr, stdout, watch
from apclab.decompose import ARMS, POINT_FIELDS, check_point, simulate_point
from apclab.sweep import sweep


def run_sweep(
    point: dict[str, Any],
    asked: list[str],
    out: Path,
    scheduler: str | None,
    *,
    given: set[str],
    json_lines: bool,
) -> int:
    """Simulate all combinations of what is asked, each at its place in `point`.

    Args:
        point: what all points have that is not varied.
        asked: "NAME=V,V,..." each.
        out: where finished points go.
        scheduler: of Dask, or None.
        given: names of `point` that the command line set.
        json_lines: print JSON Lines.

    Raises:
        CommandError: with status 2, an argument is wrong; 3, dask is missing.
    """
    varied: dict[str, list[Any]] = {}
    for name, values in map(_values, asked):
        if name in varied:
            raise CommandError(2, f"--sweep {name}= is given twice; give all its values to one")
        if name in given:
            raise CommandError(2, f"{name} is given on its own and to --sweep; leave one out")
        if name not in POINT_FIELDS:
            known = ", ".join(sorted(POINT_FIELDS))
            raise CommandError(2, f"--sweep must name one of {known}; got {name!r}")
        varied[name] = values
    grid = {**{name: [value] for name, value in point.items()}, **varied}
    with watch(f"simulating; Ctrl-C stops, {out} keeps what is done") as watching:
        try:
            rows = sweep(
                simulate_point, grid, out, scheduler=scheduler, check=check_point,
                cancelled=watching.cancelled, progress=watching.progress,
            )  # fmt: skip
        except ModuleNotFoundError as error:
            raise CommandError(
                3, f"--scheduler needs {error.name}; install it with: pip install 'apclab[cluster]'"
            ) from None
        stopped = watching.cancelled()
    if json_lines:
        for row in rows:
            print(json.dumps(row), flush=True)
    else:
        _print(rows, list(varied))
    for row in rows:
        if "error" in row:
            said = ", ".join(f"{name}={row['point'][name]}" for name in varied)
            stderr().print(f"{said}: {row['error']}", markup=False)
    return 130 if stopped else (2 if any("error" in row for row in rows) else 0)


def _values(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise CommandError(2, f"--sweep must be NAME=V,V,..., got {text!r}")
    return name.replace("-", "_"), [_value(value) for value in values.split(",")]


def _value(text: str) -> Any:
    """A number or a truth value if it reads as one, else the text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _print(rows: list[dict[str, Any]], names: list[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right")
    # on two lines, so that the table fits 80 columns
    for heading in ("hit\n%", "TTFT s\noff", "\non", "TPOT ms\noff", "on, no\nreuse", "\non"):
        table.add_column(heading, justify="right")
    for row in rows:
        if "error" in row:
            continue
        arms = {found["arm"]: found for found in row["result"]["rows"]}
        tpot = [arms[arm]["tpot_s_mean"] for arm in ARMS]
        table.add_row(
            *(str(row["point"][name]) for name in names),
            f"{100 * arms['on']['hit_rate']:.1f}",
            *(seconds(arms[arm]["ttft_s_mean"]) for arm in ("off", "on")),
            *(milliseconds(value) for value in tpot),
        )
    stdout().print(table)


def seconds(value: float | None) -> str:
    """Seconds for a table, "-" where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:,.3f}"


def milliseconds(value: float | None) -> str:
    """Seconds as milliseconds for a table, "-" where there is none."""
    return "-" if value is None or math.isnan(value) else f"{1e3 * value:,.1f}"
