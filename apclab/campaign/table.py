"""What a campaign found, on one screen of 80 x 24; and the reuse roofline as numbers."""

from collections.abc import Callable, Iterable
from statistics import median
from typing import TYPE_CHECKING, Any

from apclab.results import Record, dram_rates, ladder, plain_read, point_of

if TYPE_CHECKING:
    from apclab.campaign.run import Campaign

WIDTH, HEIGHT = 80, 24
Rows = list[dict[str, Any]]
# rows of the roofline on the screen; the file has all
_SHOWN = 6
_STEP = ("case", "batch", "input_len", "cache_hit", "model")


def roofline_rows(records: Iterable[Record]) -> Rows:
    """Each step's place on the reuse roofline: `x`, and `y`, which is at most `x` when cold."""
    records = list(records)
    rows = []
    for record, rate in zip(records, dram_rates(records), strict=True):
        if rate is None:
            continue
        place = point_of(record, rate)
        work, model = record["workload"], record["model"]
        rows.append({
            "case": record["case"], "batch": work["batch"], "input_len": work["input_len"],
            "cache_hit": work["cache_hit"], "model": model["name"], "layout": model["layout"],
            "order": record["order"], "l2": record["l2"], "x": place.x, "y": place.y,
        })  # fmt: skip
    return rows


def screen(campaign: "Campaign") -> str:
    """The whole campaign in at most 24 lines of 80 characters."""
    facts = campaign.facts
    name = facts.get("device", {}).get("name", "no device")
    lines = [f"{name[:40]}, {facts.get('backend')}; {facts.get('asked')}; us of one layer"]
    lines.append(f"{'item':<15}{'status':<9}{'s':>4}  found, or why not")
    for end in campaign.ends:
        said = _FOUND.get(end["item"], _nothing)(campaign, end)
        if end["reason"]:
            said = f"{said}; {end['reason']}" if said else end["reason"]
        lines.append(f"{end['item']:<15}{end['status']:<9}{end['seconds']:>4.0f}  {said}")
    lines += _roofline(campaign)
    lines.append(f"{campaign.seconds:.0f} of {campaign.budget_s:.0f} s; {campaign.path}")
    return "\n".join(_cut(line) for line in lines[: HEIGHT - 1])


def _cut(line: str) -> str:
    line = " ".join(line.splitlines())
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def _roofline(campaign: "Campaign") -> list[str]:
    """Some of the measured steps: those of the issue, then in the order of measuring."""
    rows = [row for end in campaign.ends if end["item"] == "reuse roofline" for row in end["rows"]]
    if not rows:
        return []
    by: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["l2"] == "cold":
            by.setdefault(repr([row[name] for name in _STEP]), row)
    issue = [row for row in by.values() if all(row[n] == rows[0][n] for n in _STEP[1:])]
    others = [row for row in by.values() if row not in issue]
    shown = [*issue, *others][:_SHOWN]
    head = f"{'case':<9}{'batch':>5}{'input':>6}{'hit':>5} {'model':<14}"
    return [f"{head}{'x':>7}{'y':>6}", *map(_place, shown)]


def _place(row: dict[str, Any]) -> str:
    return (
        f"{row['case']:<9}{row['batch']:>5}{row['input_len'] or 0:>6}"
        f"{row['cache_hit'] or 0:>5.2f} {row['model'][:13]:<14}"
        f"{row['x']:>7.2f}{row['y']:>6.2f}"
    )


def _nothing(_campaign: "Campaign", _end: Record) -> str:
    return ""


def _doctor(campaign: "Campaign", end: Record) -> str:
    facts: dict[str, Any] = {}
    for row in end["rows"]:
        facts |= row
    if "ladder" not in facts:
        return ""
    rungs = ", ".join(f"{r['level']} {r['gb_per_s']:.0f}" for r in facts["ladder"])
    memory = facts["memory_available_bytes"] / 1e9
    return f"reads GB/s: {rungs}; {memory:.0f} GB free; {campaign.facts['device']['cores']} cores"


def _correctness(_campaign: "Campaign", end: Record) -> str:
    rows = [row for row in end["rows"] if "within" in row]
    if not rows:
        return ""
    good = [row for row in rows if row["within"]]
    used = max((row["used"] for row in good), default=0.0)
    return f"{len(good)} of {len(rows)} within their bounds, {used:.0%} of it used"


def _calibration(campaign: "Campaign", _end: Record) -> str:
    if not campaign.rates:
        return ""
    dtype = campaign.rates[0]["model"]["dtype"]
    value = {r["probe"]: r["value"] for r in campaign.rates if r["model"]["dtype"] == dtype}
    names = (("distinct", "own"), ("shared", "shared"), ("one_block", "one block"))
    said = ", ".join(f"{word} {value[name] / 1e9:.0f}" for name, word in names if name in value)
    launch = f"; launch {value['launch'] * 1e6:.0f} us" if "launch" in value else ""
    return f"GB/s {said}{launch}"


def _ratios(_campaign: "Campaign", end: Record) -> str:
    """Gains over private, of several points the medians, and how many are noise."""
    rows = [row for row in end["rows"] if "shared" in row and "point" in row]
    if not rows:
        return ""
    gains = {case: [row[case] for row in rows if case in row] for case in ("shared", "cascade")}
    said = ", ".join(f"{case} x{median(found):.2f}" for case, found in gains.items() if found)
    if len(rows) == 1:
        return said + "".join(f" ({case}: noise)" for case in rows[0]["noisy"])
    noisy = sum(bool(row["noisy"]) for row in rows)
    return f"median of {len(rows)}: {said}" + (f"; {noisy} noisy" if noisy else "")


def _issue(campaign: "Campaign", end: Record) -> str:
    private = next((r for r in campaign.records if r["case"] == "private"), None)
    if private is None:
        return ""
    return f"private {private['p50_us']:.0f} us; {_ratios(campaign, end)}"


def _orders(_campaign: "Campaign", end: Record) -> str:
    """The fastest way of either case."""
    said = []
    for case in ("private_us", "shared_us"):
        rows = [row for row in end["rows"] if case in row]
        if rows:
            best = min(rows, key=lambda row: row[case])
            way = best["point"].removeprefix("layout ").replace(", order", "")
            said.append(f"{case.removesuffix('_us')} {best[case]:.0f} ({way})")
    return ", ".join(said)


def _cold_warm(_campaign: "Campaign", end: Record) -> str:
    gains = [
        f"{row['point']} x{row['shared']:.2f}" + " (noise)" * ("shared" in row["noisy"])
        for row in end["rows"]
        if "shared" in row
    ]
    return f"shared: {', '.join(gains)}" if gains else ""


def _peers(_campaign: "Campaign", end: Record) -> str:
    timed = [row for row in end["rows"] if row.get("p50_us")]
    ours = min((row["p50_us"] for row in timed if row["ours"]), default=None)
    others = [row for row in timed if not row["ours"]]
    if ours is None or not others:
        return "no peer imports" if end["rows"] else ""
    best = min(others, key=lambda row: row["p50_us"])
    return f"{len(others)} timed; {best['kernel']} {best['p50_us'] / ours:.2f} x our time"


def _ncu(_campaign: "Campaign", end: Record) -> str:
    words = []
    for row in end["rows"]:
        if "value" in row:
            unit = (
                f"{row['value'] / 1e6:.0f} MB"
                if "bytes" in row["metric"]
                else f"{row['value']:.0f} %"
            )
            words.append(f"{row['case']} {unit}")
    return ", ".join(words)


def _places(campaign: "Campaign", end: Record) -> str:
    if not end["rows"]:
        return ""
    said = f"{len(end['rows'])} steps; y = GB/s / DRAM"
    cache = plain_read(ladder(campaign.records))
    return f"{said}, a plain read of {cache[0]} {cache[1]:.2f}" if cache else said


_FOUND: dict[str, Callable[["Campaign", Record], str]] = {
    "doctor": _doctor,
    "correctness": _correctness,
    "calibration": _calibration,
    "issue 4860": _issue,
    "grid": _ratios,
    "more grid": _ratios,
    "orders": _orders,
    "cold and warm": _cold_warm,
    "peers": _peers,
    "ncu": _ncu,
    "reuse roofline": _places,
}
