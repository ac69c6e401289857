"""The record of one kernel in a comparison with others: its fields and their check. No files here.

It is a format of its own: a measurement's record is of our kernels alone, and always has a speed.
"""

from typing import Any

from apclab.results.record import (
    RECORD_FIELDS,
    Field,
    Record,
    _flag,
    _integer,
    _number,
    _one_of,
    _or_null,
    _positive,
    _show,
    _text,
)

PEER_SCHEMA = "peer 1"
# fields that mean the same in a measurement's record
_SAME = (
    *("apclab", "commit", "dirty", "created", "environment", "seq_len", "notes", "threads"),
    *("device.name", "device.kind", "device.llc_bytes", "workload.batch", "workload.seed"),
    *("model.name", "model.num_heads", "model.num_kv_heads", "model.head_size", "model.dtype"),
    "model.block_size",
)
# and those that only a kernel that was timed has
_TIMED = (
    *("samples_us", "p20_us", "p50_us", "p80_us", "logical_bytes", "distinct_bytes", "gb_per_s"),
    *("layers", "pool_bytes"),
)
_CHECKED = ("max_error", "error_bound", "checked")

PEER_FIELDS: dict[str, Field] = {
    "schema": Field("version of this table", PEER_SCHEMA, lambda value: value == PEER_SCHEMA),
    **{name: RECORD_FIELDS[name] for name in _SAME},
    "kernel.name": _text("as the table calls it"),
    "kernel.ours": _flag("whether it is one of apclab's"),
    "kernel.versions": RECORD_FIELDS["environment"],
    "kernel.layout": _or_null(_text("of its cache, in its own words; null when it never ran")),
    "share.shared": _integer("table entries of a request that others name, too", 0),
    "share.entries": _integer("table entries of a request, in blocks of 16", 1),
    "share.readers_mean": _number("table entries / distinct blocks of its own tables", 1),
    "status": _one_of("what became of it", "timed", "wrong", "failed"),
    "reason": _or_null(_text("why it was not timed")),
    **{name: _or_null(RECORD_FIELDS[name]) for name in _TIMED},
    "max_error": _or_null(
        _number("largest part of its bound: that element's error; null when it is no number", 0)
    ),
    "error_bound": _or_null(RECORD_FIELDS["error_bound"]),
    "checked": _or_null(RECORD_FIELDS["checked"]),
    "first_call_s": _or_null(_positive("seconds of the first call, compilation included")),
}
_GROUPS = {name.partition(".")[0] for name in PEER_FIELDS if "." in name}


def validate_peer(record: object) -> None:
    """Check that a record is complete, of the right kinds and consistent with itself.

    Raises:
        ValueError: naming the field, what it should be and what it is.
    """
    flat = _flatten(record)
    if unknown := flat.keys() - PEER_FIELDS.keys():
        raise ValueError(f"record has fields that {PEER_SCHEMA} does not know: {sorted(unknown)}")
    for name, field in PEER_FIELDS.items():
        if name not in flat:
            raise ValueError(f"record lacks {name!r} ({field.meaning})")
        if not field.accepts(flat[name]):
            raise ValueError(f"{name} must be {field.expected}, got {_show(flat[name])}")
    timed = flat["status"] == "timed"
    if timed is not (flat["reason"] is None):
        raise ValueError(f"reason must be null exactly when timed, got {_show(flat['reason'])}")
    for name in _TIMED[:4]:
        if timed is (flat[name] is None):
            raise ValueError(f"{name} must be there exactly when timed, got {_show(flat[name])}")
    if timed and (
        any(flat[n] is None for n in _CHECKED) or flat["max_error"] > flat["error_bound"]
    ):
        raise ValueError(
            f"max_error must not exceed error_bound {flat['error_bound']}, "
            f"got {flat['max_error']}: a wrong result has no speed"
        )


def _flatten(record: object) -> Record:
    if not isinstance(record, dict):
        raise ValueError(f"record must be an object, got {type(record).__name__}")
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if name in _GROUPS and isinstance(value, dict):
            flat |= {f"{name}.{field}": item for field, item in value.items()}
        else:
            flat[name] = value
    return flat
