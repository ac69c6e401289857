"""The one sentence that says what records show. Words only: no table, no file, no figure."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from apclab.results.field import Record
from apclab.results.gain import Gain, Pair, middle_of
from apclab.results.places import ASKED, Place, places_of

# which cases are compared: the first two that are there
_PAIRS = (("private", "shared"), ("private", "cascade"), ("shared", "cascade"))


def finding(records: Iterable[Record], asked: Mapping[str, Any] | None = None) -> str:
    """Say in one sentence what the records show.

    Of several points the one that was asked for is told, else the median one, with the range over
    all. Of each case of a point the last record counts; `private`, whose work does not depend on
    what is shared, is one measurement over all points of a sweep.

    Args:
        records: valid ones, of any number of points; none is fine.
        asked: which point is meant, for instance {"cache_hit": 1.0}.

    Returns:
        The sentence, and one more on what the rule of cascade advised. A difference that is not
        clear of the noise is never called faster or slower.
    """
    places = places_of(list(records))
    if not places:
        return "nothing was measured yet."
    for base, other in _PAIRS:
        there = [place for place in places if {base, other} <= place.records.keys()]
        if there:
            break
    else:
        return _alone(places)
    pairs = [place.pair(base, other) for place in there]
    named = [i for i, place in enumerate(there) if asked and place.answers(asked)]
    told = named[-1] if named else middle_of([pair.gain for pair in pairs])
    where = _where(there, told, median=not named) if len(there) > 1 else ""
    sentence = _compare(pairs[told], where) + (_over(pairs) if len(there) > 1 else "")
    beside = None
    if {"shared", "cascade"} <= there[told].records.keys():
        beside = there[told].pair("shared", "cascade")
    if beside and other == "shared":
        sentence += f"; {_beside(beside)}"
        if beside.gain.busy and not pairs[told].disturbed:
            sentence += f", {_busy(beside)}"
    return f"{sentence}.{_advice(beside)}"


def _where(places: list[Place], told: int, *, median: bool) -> str:
    varied = [name for name in ASKED if len({repr(place.asked[name]) for place in places}) > 1]
    # the length follows from what was asked, unless the steps were given as block tables
    named = [name for name in varied if name != "seq_len"] or varied
    point = ", ".join(f"{ASKED[name]} {_plain(places[told].asked[name])}" for name in named)
    return f" at the median point ({point})" if median else f" at {point}"


def _over(pairs: list[Pair]) -> str:
    low, high = (_times(pick(pair.gain.ratio for pair in pairs)) for pick in (min, max))
    noisy = sum(pair.gain.verdict == "unclear" for pair in pairs)
    return (
        f"; {low} at each of {len(pairs)} points"
        if low == high
        else f"; {low} to {high} over {len(pairs)} points"
    ) + (f", {noisy} of them too noisy to say" if noisy else "")


def _compare(pair: Pair, where: str) -> str:
    other, base, gain = pair.other["case"], pair.base["case"], pair.gain
    where += " with a warm cache" if pair.other["l2"] == "warm" else ""
    match gain.verdict:
        case "same":
            busy = f"; {_allowed(gain)}, {_busy(pair)}" if gain.busy else ""
            return (
                f"{other} takes the same time as {base} within noise{where} "
                f"({_times(gain.ratio)}{busy}): {_why_same(pair)}"
            )
        case "unclear" if gain.same_work:
            return (
                f"{other} and {base} are the same work{where}, as no block has a second reader: "
                f"what is between their medians ({_times(gain.ratio)}) is noise, {_busy(pair)}"
            )
        case "unclear":
            return f"{other} and {base} cannot be told apart{where}: {_why_unclear(pair)}"
    faster = gain.verdict == "faster"
    claim = f"{_factor(gain.ratio)} faster" if faster else f"{_factor(1 / gain.ratio)} slower"
    busy = f" on a busy machine{_load(pair)}" if pair.crowded else ""
    why = _why_faster(pair) if faster else _why_slower(pair)
    return f"{other} is {claim} than {base}{where}{busy}: {why}"


def _why_unclear(pair: Pair) -> str:
    low, high = pair.gain.interval
    medians = f"their medians differ ({_times(pair.gain.ratio)})"
    if low <= 1 <= high:
        return (
            f"{medians} but their p20-p80 ranges overlap, {_busy(pair)}; measure longer or when "
            "it is quiet"
        )
    return (
        f"{medians}, but where no block is shared the same work differs, too "
        f"({_times(pair.gain.floor)}), {_busy(pair)}"
    )


def _busy(pair: Pair) -> str:
    alone = pair.share is not None and not pair.crowded
    return f"{'its times were not steady' if alone else 'this machine was busy'}{_load(pair)}"


def _load(pair: Pair) -> str:
    if pair.load is None:
        return ""
    got = "" if pair.share is None else f", the process got {pair.share:.0%} of them"
    return f" (load {pair.load[0]:.1f} on {pair.load[1]} cores{got})"


def _allowed(gain: Gain) -> str:
    low, high = gain.interval
    return f"p20 to p80 allow {_times(low)} to {_times(high)}"


def _why_same(pair: Pair) -> str:
    match pair.cause:
        case "same work" | "same bytes":
            return _no_reader(pair)
        case "both fit":
            return "both fit in the cache, so fewer distinct bytes change nothing"
        case "not dram":
            return f"DRAM has to deliver only {_bytes(pair)}, but {_waits(pair)}"
        case "busy":
            return f"{_held(pair)}; with others on the machine no cause is named"
    return f"DRAM has to deliver only {_bytes(pair)}, but DRAM is not what sets the time here"


def _no_reader(pair: Pair) -> str:
    asked, hit, readers = (
        pair.other["workload"][name] for name in ("cache_hit", "realised_hit", "readers_mean")
    )
    saved = f"; the hit of {hit:.2f} saves prefill, not decode" if hit else ""
    if asked and hit == 0:
        saved = f"; the asked hit of {_plain(asked)} did not fill a block"
    few = "no" if pair.gain.fewer == 1 else "hardly a"
    return (
        f"{few} block has a second reader (readers {readers:.2f}), so DRAM has to deliver "
        f"{_size(pair.base)} a layer to both{saved}"
    )


def _why_faster(pair: Pair) -> str:
    fewer, point = _factor(pair.gain.fewer), pair.gain.other
    held = _held(pair)
    match pair.cause:
        case "same bytes":
            return f"both read {_size(pair.base)} a layer, so sharing does not explain it"
        case "fits":
            return f"its {_size(pair.other)} a layer fit in the cache, {_size(pair.base)} do not"
        case "warm" | "both fit":
            return held
        case "unknown":
            return f"{held}; the rate of DRAM is unknown, so no cause is named"
        case "busy":
            return f"{held}; with others on the machine no cause is named"
        case "not dram":
            return f"{held}, but {_waits(pair)}, so the rate of DRAM is not the cause"
        case "dram and more":
            return f"DRAM has to deliver {_bytes(pair)}, but that explains only {fewer}"
    basis = pair.other["device"]["dram_basis"]
    rate = "the DRAM spec" if basis == "spec" else "the measured DRAM rate"
    beyond = f" ({point.gb_per_s:.0f} GB/s, {_factor(point.y)} {rate})" if point.y > 1 else ""
    limit = (
        f"; {fewer} fewer bytes would allow more: cache or arithmetic is the limit now"
        if pair.gain.ratio < 0.5 * pair.gain.fewer
        else ""
    )
    source = "the cache serves the rest"
    if pair.other["case"] == "cascade":
        source = "and its kernel reads the shared run once for all queries"
    return f"DRAM has to deliver {_bytes(pair)}, {source}{beyond}{limit}"


def _why_slower(pair: Pair) -> str:
    if pair.cause == "same bytes":
        return f"both read {_size(pair.base)} a layer, so sharing does not explain it"
    return f"{_held(pair)}, so they are not what sets the time here"


def _held(pair: Pair) -> str:
    return f"its distinct blocks hold {_bytes(pair)}"


def _waits(pair: Pair) -> str:
    return f"{pair.base['case']} asks for only {pair.gain.base.y:.0%} of what DRAM can give"


def _alone(places: list[Place]) -> str:
    cases = sorted({case for place in places for case in place.records})
    if len(cases) > 1:
        return f"{' and '.join(cases)} were measured, but at no point both: nothing to compare."
    if len(places) > 1:
        return f"only {cases[0]} was measured, at {len(places)} points: nothing to compare."
    (record,) = places[0].records.values()
    (point,) = places[0].points.values()
    dram = "" if math.isnan(point.y) else f", {point.y:.0%} of the DRAM rate"
    return (
        f"only {cases[0]} was measured: {record['p50_us']:.1f} us a layer, "
        f"{record['gb_per_s']:.0f} GB/s{dram}; nothing to compare."
    )


def _beside(pair: Pair) -> str:
    """Cascade against shared, at the point that was told."""
    ratio = pair.gain.ratio
    match pair.gain.verdict:
        case "same":
            return f"cascade takes the same time as shared within noise ({_times(ratio)})"
        case "faster":
            return f"cascade is {_factor(ratio)} faster than shared"
        case "slower":
            return f"cascade is {_factor(1 / ratio)} slower than shared"
    return (
        f"cascade and shared cannot be told apart: what is between their medians ({_times(ratio)}) "
        f"is less than the noise"
    )


def _advice(pair: Pair | None) -> str:
    """What the rule of cascade would have taken, beside what was measured."""
    advice = pair.other.get("advice") if pair else None
    if pair is None or advice is None:
        return ""
    kernel = "the paged kernel" if advice["kernel"] == "paged" else "cascade"
    match pair.gain.verdict:
        case "faster":
            measured = f"cascade {_factor(pair.gain.ratio)} faster"
        case "slower":
            measured = f"cascade {_factor(1 / pair.gain.ratio)} slower"
        case "same":
            measured = "the same time"
        case _:
            measured = "too noisy to say"
    return f" The rule would take {kernel} ({advice['basis']}); measured: {measured}."


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
