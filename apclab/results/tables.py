"""Records and published studies as pandas tables, and what a table of times adds up to."""

import json
import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from apclab import data_dir
from apclab.arguments import instance
from apclab.results.field import Record
from apclab.results.gain import dram_rates, point_of
from apclab.results.store import load, measured_dir

if TYPE_CHECKING:  # writing records needs no pandas: machines that only measure may lack it
    import pandas as pd

# column -> (where in a record, dtype); float where null is allowed, so that null is NaN
_COLUMNS = {
    "case": ("case", "object"),
    "batch": ("workload.batch", "int64"),
    "input_len": ("workload.input_len", "float64"),
    "output_len": ("workload.output_len", "float64"),
    "cache_hit": ("workload.cache_hit", "float64"),
    "realised_hit": ("workload.realised_hit", "float64"),
    "readers_mean": ("workload.readers_mean", "float64"),
    "prefix_groups": ("workload.prefix_groups", "float64"),
    "primed": ("workload.primed", "object"),
    "seed": ("workload.seed", "float64"),
    "model": ("model.name", "object"),
    "num_heads": ("model.num_heads", "int64"),
    "num_kv_heads": ("model.num_kv_heads", "int64"),
    "head_size": ("model.head_size", "int64"),
    "dtype": ("model.dtype", "object"),
    "block_size": ("model.block_size", "int64"),
    "layout": ("model.layout", "object"),
    "backend": ("backend", "object"),
    "order": ("order", "object"),
    "l2": ("l2", "object"),
    "step": ("step", "object"),
    "seq_len": ("seq_len", "float64"),
    "p20_us": ("p20_us", "float64"),
    "p50_us": ("p50_us", "float64"),
    "p80_us": ("p80_us", "float64"),
    "gb_per_s": ("gb_per_s", "float64"),
    "logical_bytes": ("logical_bytes", "int64"),
    "distinct_bytes": ("distinct_bytes", "int64"),
    "layers": ("layers", "int64"),
    "pool_bytes": ("pool_bytes", "int64"),
    "placement": ("placement", "object"),
    "device": ("device.name", "object"),
    "kind": ("device.kind", "object"),
    "llc_bytes": ("device.llc_bytes", "float64"),
    "dram_gb_per_s": ("device.dram_gb_per_s", "float64"),
    "dram_basis": ("device.dram_basis", "object"),
    "threads": ("threads", "float64"),
    "max_error": ("max_error", "float64"),
    "error_bound": ("error_bound", "float64"),
    "commit": ("commit", "object"),
    "dirty": ("dirty", "object"),
    "created": ("created", "object"),
}
# columns that must agree between the steps of one output
_SAME_OUTPUT = [
    *("case", "batch", "input_len", "output_len", "cache_hit", "prefix_groups", "primed", "seed"),
    *("model", "num_heads", "num_kv_heads", "head_size", "dtype", "block_size", "layout"),
    *("backend", "order", "l2", "device", "threads", "commit"),
]
_ORDER = ("first", "mid", "last")
Point = tuple[float, float]
VIEWS = ("layer", "token", "output")


def frame(records: Iterable[Record]) -> "pd.DataFrame":
    """One row a record, flat columns; of zero records, the same columns and no row.

    Two columns are added, the place on the reuse roofline: `x` = logical_bytes / distinct_bytes
    and `y` = gb_per_s / the device's DRAM rate (NaN where that is not known; see `dram_rates`).
    """
    import pandas as pd

    records = list(records)
    rows = [
        {name: _pick(record, where) for name, (where, _) in _COLUMNS.items()} for record in records
    ]
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    table = table.astype({name: dtype for name, (_, dtype) in _COLUMNS.items()})
    points = map(point_of, records, dram_rates(records))
    table[["x", "y"]] = pd.DataFrame(
        [(point.x, point.y) for point in points], columns=["x", "y"], dtype="float64"
    )
    return table


def ladder(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The read rates of the last record's device: of each level the highest that was measured.

    Args:
        records: of any devices; those of other devices or thread counts are passed over.

    Returns:
        As `device.ladder` of a record; empty without records.
    """
    records = list(records)
    best: dict[str, dict[str, Any]] = {}
    for record in records:
        if (record["device"]["name"], record["threads"]) != (
            records[-1]["device"]["name"], records[-1]["threads"],
        ):  # fmt: skip
            continue
        for rung in record["device"]["ladder"]:
            known = best.get(rung["level"])
            if known is None or rung["gb_per_s"] > known["gb_per_s"]:
                best[rung["level"]] = rung
    return list(best.values())


def _pick(record: Record, where: str) -> Any:
    group, _, name = where.rpartition(".")
    value = record[group][name] if group else record[name]
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def load_results(path: str | os.PathLike[str] | None = None) -> "pd.DataFrame":
    """The table of saved measurements; what could not be read is warned about.

    Args:
        path: file or folder; by default the folder that "save" writes to.
    """
    if path is None and not measured_dir().exists():
        return frame([])  # nothing was saved yet
    if path is not None:
        instance("path", path, str | os.PathLike, "a path or None")
    records, problems = load(measured_dir() if path is None else path)
    if problems:
        warnings.warn("\n".join(problems), stacklevel=2)
    return frame(records)


def published() -> "pd.DataFrame":
    """Decode times that others published, with their place on the reuse roofline.

    Returns:
        The columns of `data/published/decode_anchors.csv` (see `data/README.md`) and:
        `gb_per_s` = logical bytes / time; `y` = gb_per_s / DRAM rate; `x` = logical / distinct
        bytes, NaN where the study does not say how much was shared; `x_low` and `x_high`, what
        x can be: the known x, else y (DRAM delivers each distinct byte at least once and at no
        more than its rate) and the x of prompts that share all they can; `least_from_cache`
        = 1 - 1 / y where y > 1, else 0: the part of the bytes that DRAM at its full rate could
        not have delivered in that time.
    """
    import pandas as pd

    table = pd.read_csv(data_dir() / "published" / "decode_anchors.csv")
    table["gb_per_s"] = table["logical_bytes"] / table["time_us"] / 1e3
    table["y"] = table["gb_per_s"] / table["dram_gb_per_s"]
    table["x"] = table["logical_bytes"] / table["distinct_bytes"]
    table["x_low"] = table["x"].fillna(table["y"].clip(lower=1.0))
    table["x_high"] = table["x"].fillna(table["logical_bytes"] / table["distinct_bytes_least"])
    table["least_from_cache"] = 1 - 1 / table["y"].clip(lower=1.0)
    return table


def decode_times(table: "pd.DataFrame", view: str, num_layers: int) -> "pd.DataFrame":
    """Times of the kernel for one layer, one token or a whole output.

    Args:
        table: as `frame` gives it.
        view: "layer", as measured; "token", times num_layers; "output", the time of
            num_layers over all output tokens, by Simpson's rule through the first, middle
            and last step (for unequal halves, at their seq_len).
        num_layers: attention layers of the model.

    Returns:
        The rows of `table`, of "output" one for three, with `p20`, `p50`, `p80` and their `unit`:
        microseconds for a layer, else milliseconds. p20 and p80 of an output are sums of those of
        its steps: no narrower than the true ones. Outputs that lack a step are left out.

    Raises:
        ValueError: view or num_layers is out of range, or no output has all three steps.
    """
    if view not in VIEWS:
        raise ValueError(f"view must be one of {', '.join(VIEWS)}, got {view!r}")
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    times = _outputs(table) if view == "output" else table.copy()
    factor = 1.0 if view == "layer" else num_layers / 1e3  # microseconds to milliseconds
    for name in ("p20", "p50", "p80"):
        times[name] = times[f"{name}_us"] * factor
    times["unit"] = "us" if view == "layer" else "ms"
    return times


def _outputs(table: "pd.DataFrame") -> "pd.DataFrame":
    """One row an output, its *_us columns summed over the output's tokens."""
    import pandas as pd

    whole = []
    for _, group in table.groupby(_SAME_OUTPUT, dropna=False, sort=False):
        # of repeated measurements of a step, the last
        steps = {row["step"]: row for row in group.to_dict("records")}
        if not steps.keys() >= set(_ORDER):
            continue
        row: dict[Any, Any] = {**steps["mid"], "step": "output"}
        for name in ("p20_us", "p50_us", "p80_us"):
            points = [(float(steps[step]["seq_len"]), float(steps[step][name])) for step in _ORDER]
            row[name] = row["output_len"] * _mean_through(*points)
        whole.append(row)
    if not whole and len(table):
        at_hand = {str(step) for step in table["step"]}
        mixed = " of different ones" if at_hand >= set(_ORDER) else ""
        raise ValueError(
            f"view 'output' needs records of the steps {', '.join(_ORDER)} of one workload, "
            f"got {', '.join(sorted(at_hand))}{mixed}"
        )
    return pd.DataFrame(whole, columns=table.columns)


def _mean_through(first: Point, mid: Point, last: Point) -> float:
    """Mean, between the outer of three points, of the parabola through them (Simpson's rule)."""
    (x0, y0), (x1, y1), (x2, y2) = first, mid, last
    left, right = x1 - x0, x2 - x1
    if left <= 0 or right <= 0:  # an output of a few tokens: the middle step is an end too
        return (y0 + y2) / 2
    ends = (2 - right / left) * y0 + (2 - left / right) * y2
    return (ends + (left + right) ** 2 / (left * right) * y1) / 6
