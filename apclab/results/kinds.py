"""Records of other kinds: a calibration probe, a kernel among peers, an item of a campaign.

They live in the same files as the records of decode steps and say so in `kind`; a record without
`kind` is that of a decode step. No files here.
"""

import math
from typing import Any

from apclab.results import record as decode
from apclab.results.field import (
    Field,
    Record,
    check_fields,
    flag,
    integer,
    is_plain,
    number,
    one_of,
    or_null,
    positive,
    show,
    text,
)
from apclab.results.record import (
    _ROUNDING,
    RECORD_FIELDS,
    check_bounds,
    check_consistency,
    check_percentiles,
)

KINDS = ("decode", "calibration", "peer", "campaign")
# what a calibration measures, and the unit of its value
PROBES = {
    "distinct": "bytes/s",
    "shared": "bytes/s",
    "one_block": "bytes/s",
    "launch": "s",
    "product": "flop/s",
}
_OBJECT = "an object of plain JSON values"


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and is_plain(value)


_COMMON = ("schema", "apclab", "commit", "dirty", "created", "environment", "notes")
_TIMED = (
    *("kernel_sha256", "backend", "order", "l2", "threads"),
    *("samples_us", "p20_us", "p50_us", "p80_us", "error_bound", "max_error", "checked"),
)
_DEVICE = tuple(name for name in RECORD_FIELDS if name.startswith("device."))
_MODEL = tuple(name for name in RECORD_FIELDS if name.startswith("model."))

CALIBRATION_FIELDS: dict[str, Field] = {
    "kind": one_of("which fields a record has", "calibration"),
    **{name: RECORD_FIELDS[name] for name in (*_COMMON, *_TIMED, *_DEVICE, *_MODEL)},
    "probe": one_of(
        "distinct: every table entry its own block; shared: all requests have the same blocks; "
        "one_block: every entry is one block; launch: the smallest step; product: of matrices",
        *PROBES,
    ),
    "asked": Field(
        "batch and seq_len of the step, or m, n, k and dtype of the product", _OBJECT, _is_object
    ),
    "logical_bytes": integer("KV bytes that a call asks for; 0 for a product", 0),
    "distinct_bytes": integer("KV bytes of its blocks, each counted once; 0 for a product", 0),
    "flops": integer("multiplications and additions of a product; 0 else", 0),
    "value": positive("logical_bytes or flops / p50, or p50 itself"),
    "unit": one_of("of the value", *dict.fromkeys(PROBES.values())),
}

# fields that only a kernel that was timed has
_OF_TIME = (
    *("samples_us", "p20_us", "p50_us", "p80_us", "logical_bytes", "distinct_bytes", "gb_per_s"),
)
PEER_FIELDS: dict[str, Field] = {
    "kind": one_of("which fields a record has", "peer"),
    **{
        name: RECORD_FIELDS[name]
        for name in (*_COMMON, *_DEVICE, *_MODEL, "kernel_sha256", "l2", "step", "seq_len")
    },
    **{name: field for name, field in RECORD_FIELDS.items() if name.startswith("workload.")},
    "model.layout": or_null(
        text("of the kernel's cache, in its own words; null when it never ran")
    ),
    "threads": RECORD_FIELDS["threads"],
    **{name: or_null(RECORD_FIELDS[name]) for name in ("layers", "pool_bytes", *_OF_TIME)},
    **{name: or_null(RECORD_FIELDS[name]) for name in ("max_error", "error_bound", "checked")},
    "kernel.name": text("as the table calls it"),
    "kernel.ours": flag("whether it is one of apclab's"),
    "kernel.versions": Field("of its libraries; null when missing", _OBJECT, _is_object),
    "share.shared": integer("table entries of a request that others name, too", 0),
    "share.entries": integer("table entries of a request, in blocks of 16", 1),
    "status": one_of("what became of it", "timed", "wrong", "failed"),
    "reason": or_null(text("why it was not timed")),
}

CAMPAIGN_FIELDS: dict[str, Field] = {
    "kind": one_of("which fields a record has", "campaign"),
    **{name: RECORD_FIELDS[name] for name in _COMMON},
    "device": Field("what ran it; empty when nothing did", _OBJECT, _is_object),
    "item": text("what was to be done"),
    "status": one_of(
        "how it went; part: not all its points; lost: the device was gone",
        *("done", "part", "failed", "left out", "lost", "stopped"),
    ),
    "reason": Field("why it is not done; empty when it is", "text", lambda v: isinstance(v, str)),
    "seconds": number("time that it took", 0),
    "rows": Field(
        "what it found, besides records of its own",
        "a list of objects of plain JSON values",
        lambda value: isinstance(value, list) and all(map(_is_object, value)),
    ),
}


def kind_of(record: Record) -> str:
    """The kind of a record: "decode" where none is named."""
    return str(record.get("kind", "decode"))


def validate(record: object) -> None:
    """Check that a record of any kind is complete, and consistent with itself.

    Args:
        record: what `json.loads` gave, or what a measurement made.

    Raises:
        ValueError: naming the field, what it should be and what it is.
    """
    kind = record.get("kind") if isinstance(record, dict) and "kind" in record else "decode"
    match kind:
        case "calibration":
            _check_calibration(check_fields(record, CALIBRATION_FIELDS))
        case "peer":
            _check_peer(check_fields(record, PEER_FIELDS))
        case "campaign":
            flat = check_fields(record, CAMPAIGN_FIELDS)
            if (flat["status"] == "done") != (flat["reason"] == ""):
                raise ValueError(
                    f"reason must say why, and be empty where status is done; got "
                    f"{flat['reason']!r} with {flat['status']!r}"
                )
        case "decode":  # a record that says so has a field too many, and is told
            decode.validate(record)
        case other:
            names = ", ".join(KINDS[1:])
            raise ValueError(f"kind must be one of {names}, or left out; got {other!r}")


def _check_peer(flat: dict[str, Any]) -> None:
    timed = flat["status"] == "timed"
    if timed is not (flat["reason"] is None):
        raise ValueError(f"reason must be null exactly when timed, got {show(flat['reason'])}")
    for name in _OF_TIME:
        if timed is (flat[name] is None):
            raise ValueError(f"{name} must be there exactly when timed, got {show(flat[name])}")
    if timed:
        for name in ("max_error", "error_bound", "checked"):
            if flat[name] is None:
                raise ValueError(f"{name} must be there when timed: no speed without a check")
        check_percentiles(flat)
        check_consistency(flat)


def _check_calibration(flat: dict[str, Any]) -> None:
    check_percentiles(flat)
    if flat["unit"] != PROBES[flat["probe"]]:
        raise ValueError(
            f"unit of probe {flat['probe']} must be {PROBES[flat['probe']]}, got {flat['unit']!r}"
        )
    seconds = flat["p50_us"] / 1e6
    amount = {"bytes/s": flat["logical_bytes"], "flop/s": flat["flops"], "s": seconds**2}
    value = amount[flat["unit"]] / seconds
    if not math.isclose(value, flat["value"], rel_tol=_ROUNDING):
        raise ValueError(f"value must be {value:.6g} {flat['unit']}, got {flat['value']}")
    check_bounds(flat)
