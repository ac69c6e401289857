"""Records by the point that they measured, each with what it takes to compare its cases."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from apclab.results.field import Record
from apclab.results.gain import (
    SAME_PRIVATE,
    Gain,
    Pair,
    Point,
    dram_rates,
    floor_of,
    point_of,
    pooled,
)

# what is asked of a point, in the order in which it is named; seq_len follows from the rest
ASKED = {
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


class Place(NamedTuple):
    """The cases of one point: all that was asked is equal, only the case differs."""

    asked: dict[str, Any]
    records: dict[str, Record]
    points: dict[str, Point]
    floor: float = 1.0  # of its sweep; see `gain.floor_of`

    def pair(self, base: str, other: str) -> Pair:
        """Two of its cases, compared."""
        gain = Gain(self.points[base], self.points[other], self.floor)
        return Pair(self.records[base], self.records[other], gain)

    def answers(self, asked: Mapping[str, Any]) -> bool:
        """Whether this point is the one that was asked for."""
        return all(
            math.isclose(self.asked[name], value)
            if isinstance(value, float)
            else self.asked[name] == value
            for name, value in asked.items()
        )


def places_of(records: list[Record]) -> list[Place]:
    """The points of records, in the order of their first one.

    Of each case the last record of a point counts. `private` does not know what others share, so
    that all points of a sweep measured one thing: they hold what is pooled from all of them.
    """
    places: dict[str, Place] = {}
    for record, rate in zip(records, dram_rates(records), strict=True):
        everything = {**record["workload"], **record["model"], **record}
        asked = {name: everything[name] for name in ASKED}
        asked["device"] = record["device"]["name"]
        place = places.setdefault(repr(asked), Place(asked, {}, {}))
        place.records[record["case"]] = record
        place.points[record["case"]] = point_of(record, rate)
    sweeps: dict[str, list[str]] = {}
    for key, place in places.items():
        work = {name: value for name, value in place.asked.items() if name not in SAME_PRIVATE}
        sweeps.setdefault(repr(work), []).append(key)
    for keys in sweeps.values():
        sweep = [places[key] for key in keys]
        private = [place.points for place in sweep if "private" in place.points]
        whole = pooled([points["private"] for points in private])
        for points, point in zip(private, whole, strict=True):
            points["private"] = point
        floor = floor_of([place.points for place in sweep])
        places |= {key: places[key]._replace(floor=floor) for key in keys}
    return list(places.values())
