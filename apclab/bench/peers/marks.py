"""The comparison in numbers: each kernel against our best, and whether the marks are met."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from apclab.results import Record

# our best paged kernel against the fastest peer, by shared entries of 19
BARS = {0: 1.0, 9: 1.0, 18: 0.7}

# (shape, dtype, shared entries, entries)
Key = tuple[str, str, int, int]


class Row(NamedTuple):
    """One kernel of one setting."""

    key: Key
    record: Record
    # time of the kernel / time of our best paged kernel: above 1 ours is faster; None if untimed
    ratio: float | None


class Mark(NamedTuple):
    """Our best paged kernel against the fastest peer of a setting."""

    key: Key
    ours: str
    peer: str
    ratio: float | None  # time of the peer / our time; None where one of them has no time
    bar: float

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the bar; None where there is none."""
        return None if self.ratio is None else self.ratio >= self.bar


def rows(records: Iterable[Record]) -> list[Row]:
    """All kernels by setting, the fastest first; of a kernel measured twice the last counts.

    Our paged kernels in other layouts and orders than the best are left out.
    """
    made: list[Row] = []
    for key, group in _groups(records).items():
        best = _fastest(group, ours=True)
        chosen = [r for r in group if not _paged(r) or best is None or r is best]
        chosen.sort(key=lambda r: r["p50_us"] or float("inf"))
        made += [Row(key, r, _ratio(r, best)) for r in chosen]
    return made


def marks(records: Iterable[Record]) -> list[Mark]:
    """A mark a setting whose share has a bar."""
    made = []
    for key, group in _groups(records).items():
        if (bar := BARS.get(key[2])) is None:
            continue
        best, peer = _fastest(group, ours=True), _fastest(group, ours=False)
        ratio = _ratio(peer, best) if peer else None
        made.append(
            Mark(key, best["kernel"]["name"] if best else "-",
                 peer["kernel"]["name"] if peer else "-", ratio, bar)
        )  # fmt: skip
    return made


def _groups(records: Iterable[Record]) -> dict[Key, list[Record]]:
    latest: dict[Key, dict[str, Record]] = {}
    for record in records:
        model, share = record["model"], record["share"]
        key = (model["name"], model["dtype"], share["shared"], share["entries"])
        latest.setdefault(key, {})[record["kernel"]["name"]] = record
    return {key: list(group.values()) for key, group in latest.items()}


def _paged(record: Record) -> bool:
    return record["kernel"]["ours"] and "cascade" not in record["kernel"]["name"]


def _fastest(group: Sequence[Record], *, ours: bool) -> Record | None:
    timed = [
        r
        for r in group
        if r["status"] == "timed" and (_paged(r) if ours else not r["kernel"]["ours"])
    ]
    return min(timed, key=lambda r: r["p50_us"], default=None)


def _ratio(record: Record, best: Record | None) -> float | None:
    if best is None or record["p50_us"] is None:
        return None
    return float(record["p50_us"] / best["p50_us"])
