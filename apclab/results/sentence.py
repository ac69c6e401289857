"""The one sentence that says what records show. Words only: no table, no file, no figure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from apclab.results.record import Record

# a difference of medians below this is not claimed, however tight their ranges are
_SAME = 0.02
# what is asked of a point, in the order in which it is named; seq_len follows from the rest
_ASKED = {
    "cache_hit": "cache hit",
    "prefix_groups": "prefix groups",
    "batch": "batch",
    "input_len": "input",
    "output_len": "output",
    "name": "model",
    "dtype": "dtype",
    "block_size": "block size",
    "layout": "layout",
    "backend": "backend",
    "order": "order",
    "l2": "l2",
    "step": "step",
    "primed": "primed",
    "seed": "seed",
    "threads": "threads",
    "device": "device",
    "commit": "commit",
    "seq_len": "seq_len",
}


class Pair(NamedTuple):
    """Two cases of one point, and what they say."""

    base: Record  # private, or shared where cascade is compared with it
    other: Record
    asked: dict[str, Any]

    @property
    def ratio(self) -> float:
        """How many times faster `other` is."""
        return float(self.base["p50_us"] / self.other["p50_us"])

    @property
    def bytes_ratio(self) -> float:
        """How many times fewer distinct bytes `other` has."""
        return float(self.base["distinct_bytes"] / self.other["distinct_bytes"])

    @property
    def overlap(self) -> bool:
        """True where the ranges from p20 to p80 touch."""
        return bool(
            self.base["p20_us"] <= self.other["p80_us"]
            and self.other["p20_us"] <= self.base["p80_us"]
        )

    @property
    def noisy(self) -> bool:
        """True where the ranges touch although the medians are far apart."""
        return self.overlap and not 1 / 1.1 < self.ratio < 1.1

    @property
    def warm(self) -> bool:
        """True where the cache was left as the call before had filled it."""
        return bool(self.other["l2"] == "warm")

    @property
    def same(self) -> bool:
        """True where neither can be called faster."""
        return self.overlap or abs(self.ratio - 1) < _SAME


def finding(records: Iterable[Record]) -> str:
    """Say in one sentence what the records show.

    Records of one point (all that was asked is equal, only the case differs) are compared, the
    last of each case. Of several points the one with the largest gain is told, and where it is.

    Args:
        records: valid ones, of any number of points; none is fine.

    Returns:
        The sentence. Cases whose p20-p80 ranges overlap are never called faster or slower.
    """
    points = _points(records)
    if not points:
        return "nothing was measured yet."
    for base, other in (("private", "shared"), ("private", "cascade"), ("shared", "cascade")):
        pairs = [
            Pair(cases[base], cases[other], asked)
            for asked, cases in points
            if base in cases and other in cases
        ]
        if pairs:
            sentence = _over_points(pairs)
            break
    else:
        return _alone(points)
    if other == "shared":
        sentence += _cascade_beside([cases for _, cases in points])
    return f"{sentence}."


def _points(records: Iterable[Record]) -> list[tuple[dict[str, Any], dict[str, Record]]]:
    points: dict[str, tuple[dict[str, Any], dict[str, Record]]] = {}
    for record in records:
        everything = {**record["workload"], **record["model"], **record}
        asked = {name: everything[name] for name in _ASKED}
        asked["device"] = record["device"]["name"]
        _, cases = points.setdefault(repr(asked), (asked, {}))
        cases[record["case"]] = record
    return list(points.values())


def _over_points(pairs: list[Pair]) -> str:
    claims = [pair for pair in pairs if not pair.same]
    low, high = (_times(pick(pair.ratio for pair in pairs)) for pick in (min, max))
    spread = f"{low} to {high}" if low != high else low
    if not claims:
        # of points that all say "the same", the one that needs a reason most
        told = max(pairs, key=lambda pair: (pair.noisy, pair.bytes_ratio))
        return _compare_same(told, spread, " at each point" if len(pairs) > 1 else "")
    best = max(claims, key=lambda pair: pair.ratio)
    if len(pairs) == 1:
        return _compare(best)
    if best.ratio < 1:
        ends = f"{spread} over {len(pairs)} points"
        return f"{best.other['case']} is nowhere faster than {best.base['case']} ({ends})"
    slower = sum(pair.ratio < 1 for pair in claims)
    tail = f"; {slower} of {len(pairs)} points are slower" if slower else ""
    return _compare(best, _where(best, pairs)) + tail


def _where(best: Pair, pairs: list[Pair]) -> str:
    varied = [name for name in _ASKED if len({repr(pair.asked[name]) for pair in pairs}) > 1]
    # the length follows from what was asked, unless the steps were given as block tables
    named = [name for name in varied if name != "seq_len"] or varied
    return "at " + ", ".join(f"{_ASKED[name]} {_plain(best.asked[name])}" for name in named)


def _compare(pair: Pair, where: str = "") -> str:
    other, base = pair.other["case"], pair.base["case"]
    warm = " with a warm cache" if pair.warm else ""
    if pair.ratio > 1:
        upto, at = ("up to ", f" ({where})") if where else ("", "")
        factor = f"{upto}{_factor(pair.ratio)}"
        return f"{other} is {factor} faster than {base}{at}{warm}: {_why_faster(pair)}"
    return f"{other} is {_factor(1 / pair.ratio)} slower than {base}{warm}: {_why_slower(pair)}"


def _compare_same(pair: Pair, spread: str, where: str) -> str:
    other, base = pair.other["case"], pair.base["case"]
    warm = " with a warm cache" if pair.warm else ""
    if pair.noisy:
        return (
            f"{other} and {base} cannot be told apart{where}{warm}: their medians differ "
            f"({spread}) but their p20-p80 ranges overlap; measure longer or on a quieter machine"
        )
    why = _why_same(pair)
    return f"{other} takes the same time as {base} within noise{where}{warm} ({spread}): {why}"


def _why_same(pair: Pair) -> str:
    if pair.bytes_ratio >= 1 + _SAME:
        if pair.warm and _fits(pair.base):
            return "both fit in the cache, so fewer distinct bytes change nothing"
        share = _of_dram(pair.base)
        limit = (
            f"{pair.base['case']} asks for only {share:.0%} of what DRAM can give"
            if share is not None and share < 0.5
            else "DRAM is not what sets the time here"
        )
        return f"DRAM has to deliver only {_bytes(pair)}, but {limit}"
    asked, hit, readers = (
        pair.other["workload"][name] for name in ("cache_hit", "realised_hit", "readers_mean")
    )
    saved = f"; the hit of {hit:.2f} saves prefill, not decode" if hit else ""
    if asked and hit == 0:
        saved = f"; the asked hit of {_plain(asked)} did not fill a block"
    few = "no" if pair.bytes_ratio == 1 else "hardly a"
    return (
        f"{few} block has a second reader (readers {readers:.2f}), so DRAM has to deliver "
        f"{_size(pair.base)} a layer to both{saved}"
    )


def _why_faster(pair: Pair) -> str:
    if pair.bytes_ratio < 1 + _SAME:
        return f"both read {_size(pair.base)} a layer, so sharing does not explain it"
    if pair.warm:
        if _fits(pair.other) and not _fits(pair.base):
            return f"its {_size(pair.other)} a layer fit in the cache, {_size(pair.base)} do not"
        return f"its distinct blocks hold {_bytes(pair)}"
    fewer = _factor(pair.bytes_ratio)
    if pair.ratio > 1.1 * pair.bytes_ratio:
        return f"DRAM has to deliver {_bytes(pair)}, but that explains only {fewer}"
    share, basis = _of_dram(pair.other), pair.other["device"]["dram_basis"]
    rate = "the DRAM spec" if basis == "spec" else "the measured DRAM rate"
    beyond = (
        f" ({pair.other['gb_per_s']:.0f} GB/s, {_factor(share)} {rate})"
        if share is not None and share > 1
        else ""
    )
    limit = (
        f"; {fewer} fewer bytes would allow more: cache or arithmetic is the limit now"
        if pair.ratio < 0.5 * pair.bytes_ratio
        else ""
    )
    source = "the cache serves the rest"
    if pair.other["case"] == "cascade":
        source = "and its kernel reads the shared run once for all queries"
    return f"DRAM has to deliver {_bytes(pair)}, {source}{beyond}{limit}"


def _why_slower(pair: Pair) -> str:
    if pair.bytes_ratio < 1 + _SAME:
        return f"both read {_size(pair.base)} a layer, so sharing does not explain it"
    return f"its distinct blocks hold {_bytes(pair)}, so they are not what sets the time here"


def _alone(points: list[tuple[dict[str, Any], dict[str, Record]]]) -> str:
    cases = sorted({case for _, found in points for case in found})
    if len(cases) > 1:
        return f"{' and '.join(cases)} were measured, but at no point both: nothing to compare."
    if len(points) > 1:
        return f"only {cases[0]} was measured, at {len(points)} points: nothing to compare."
    (record,) = points[0][1].values()
    share = _of_dram(record)
    dram = "" if share is None else f", {share:.0%} of the DRAM rate"
    return (
        f"only {cases[0]} was measured: {record['p50_us']:.1f} us a layer, "
        f"{record['gb_per_s']:.0f} GB/s{dram}; nothing to compare."
    )


def _cascade_beside(points: list[dict[str, Record]]) -> str:
    pairs = [
        Pair(cases["shared"], cases["cascade"], {})
        for cases in points
        if {"private", "shared", "cascade"} <= cases.keys()
    ]
    if not pairs:
        return ""
    best = max(pairs, key=lambda pair: pair.ratio)
    if best.same:
        return "; cascade takes the same time as shared within noise"
    if best.ratio > 1:
        upto = "up to " if len(pairs) > 1 else ""
        return f"; cascade is {upto}{_factor(best.ratio)} faster than shared"
    return f"; cascade is {_factor(1 / best.ratio)} slower than shared"


def _fits(record: Record) -> bool:
    return bool(record["distinct_bytes"] <= (record["device"]["llc_bytes"] or 0))


def _of_dram(record: Record) -> float | None:
    rate = record["device"]["dram_gb_per_s"]
    return None if rate is None else float(record["gb_per_s"] / rate)


def _bytes(pair: Pair) -> str:
    small, large = _size(pair.other), _size(pair.base)
    number, _, unit = large.partition(" ")
    return f"{small} a layer instead of {number if small.endswith(f' {unit}') else large}"


def _size(record: Record) -> str:
    size = float(record["distinct_bytes"])
    scale, unit = next(
        (scale, unit)
        for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
        if size >= scale or scale == 1
    )
    return f"{size / scale:.{0 if size / scale >= 10 or scale == 1 else 1}f} {unit}"


def _factor(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def _times(ratio: float) -> str:
    return f"x{ratio:.2f}"


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
