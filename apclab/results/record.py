"""The record of one measured case: its fields, what they mean, and the check. No files here."""

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

SCHEMA = 1
Record = dict[str, Any]

# whole numbers stay exact in every JSON reader and in an int64 column
_LARGEST = 2**63 - 1
# p20..p80 and gb_per_s may have been rounded on their way into the record
_ROUNDING = 0.01


class Field(NamedTuple):
    """One field of a record."""

    meaning: str  # with its unit
    expected: str  # in words, for messages
    accepts: Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _integer(meaning: str, low: int) -> Field:
    return Field(meaning, f"an integer >= {low}", lambda value: _is_int(value) and value >= low)


def _number(meaning: str, low: float, high: float = math.inf) -> Field:
    words = f"a finite number >= {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
    return Field(meaning, words, lambda value: _is_number(value) and low <= value <= high)


def _positive(meaning: str) -> Field:
    return Field(meaning, "a finite number > 0", lambda value: _is_number(value) and value > 0)


def _flag(meaning: str) -> Field:
    return Field(meaning, "true or false", lambda value: isinstance(value, bool))


def _text(meaning: str, pattern: str = r"(?s).+", expected: str = "text, not empty") -> Field:
    whole = re.compile(pattern)
    return Field(
        meaning,
        expected,
        lambda value: isinstance(value, str) and whole.fullmatch(value) is not None,
    )


def _one_of(meaning: str, *names: str) -> Field:
    return Field(
        meaning,
        f"one of {', '.join(names)}",
        lambda value: isinstance(value, str) and value in names,
    )


def _or_null(field: Field) -> Field:
    return Field(
        field.meaning,
        f"{field.expected}, or null",
        lambda value: value is None or field.accepts(value),
    )


def _is_plain(value: Any, depth: int = 20) -> bool:
    match value:
        case dict() | list() if depth == 0:
            return False
        case dict():
            return all(isinstance(k, str) and _is_plain(v, depth - 1) for k, v in value.items())
        case list():
            return all(_is_plain(item, depth - 1) for item in value)
        case None | bool() | str():
            return True
        case _:
            return _is_number(value)


def _is_utc(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).utcoffset() == timedelta(0)
    except (TypeError, ValueError):
        return False


def _is_rung(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"level", "footprint_bytes", "gb_per_s", "threads"}
        and isinstance(value["level"], str)
        and _is_int(value["footprint_bytes"])
        and value["footprint_bytes"] > 0
        and _is_number(value["gb_per_s"])
        and value["gb_per_s"] > 0
        and (value["threads"] is None or _is_int(value["threads"]))
    )


def _is_advice(value: Any) -> bool:
    match value:
        case {"kernel": "paged" | "cascade", "saved_us": saved, "basis": str(), **rest}:
            return _is_number(saved) and not rest
    return value is None


# dotted names are fields of nested objects; null is allowed only where the meaning says when
RECORD_FIELDS: dict[str, Field] = {
    "schema": Field("version of this table", f"{SCHEMA}", lambda v: _is_int(v) and v == SCHEMA),
    "apclab": _text("version of the package"),
    "commit": _or_null(_text("git commit; null outside a checkout", r"[0-9a-f]{7,64}", "hex")),
    "dirty": _or_null(_flag("uncommitted changes; null outside a checkout")),
    "kernel_sha256": _or_null(_text("digest of the kernel's source; null when unknown")),
    "created": Field("time of the measurement", "an ISO 8601 time in UTC", _is_utc),
    "device.name": _text("as the device calls itself"),
    "device.kind": _one_of("what it is", "cpu", "cuda"),
    "device.llc_bytes": _or_null(_integer("last-level cache, bytes; null when unknown", 1)),
    "device.dram_gb_per_s": _or_null(_positive("read rate of DRAM, GB/s; null when unknown")),
    "device.dram_basis": _or_null(_one_of("where that rate comes from", "spec", "measured")),
    "device.ladder": Field(
        "measured read rates by footprint; empty when not measured",
        "a list of {level, footprint_bytes, gb_per_s, threads}",
        lambda value: isinstance(value, list) and all(map(_is_rung, value)),
    ),
    "environment": Field(
        "versions, host, settings",
        "an object of plain JSON values",
        lambda value: isinstance(value, dict) and _is_plain(value),
    ),
    # a step given as block tables has a batch and readers, but nobody asked for lengths or hits
    "workload.batch": _integer("requests", 1),
    "workload.input_len": _or_null(_integer("tokens of a prompt; null for given tables", 1)),
    "workload.output_len": _or_null(_integer("tokens of an answer; null for given tables", 1)),
    "workload.cache_hit": _or_null(_number("asked share of prompt; null for given tables", 0, 1)),
    "workload.realised_hit": _or_null(
        _number("prompt tokens found in the pool / asked; null for given tables", 0, 1)
    ),
    "workload.readers_mean": _number("table entries / distinct blocks of the shared step", 1),
    "workload.prefix_groups": _or_null(_integer("distinct prefixes; null for given tables", 1)),
    "workload.primed": _or_null(_flag("prefixes computed before; null for given tables")),
    "workload.seed": _or_null(_integer("of tokens and placement; null for given tables", 0)),
    "model.name": _text("short name of the shape"),
    "model.num_heads": _integer("query heads", 1),
    "model.num_kv_heads": _integer("key and value heads", 1),
    "model.head_size": _integer("elements of a head", 1),
    "model.dtype": _one_of("of the cache and the query", "float32", "float16", "bfloat16"),
    "model.block_size": _integer("tokens of a block", 1),
    "model.layout": _one_of("of the cache", "NHD", "HND"),
    "case": _one_of("which block tables and kernel", "private", "shared", "cascade"),
    "backend": _one_of("what ran", "reference", "cpu", "triton"),
    "order": _one_of("loop or program order", "request", "head"),
    "l2": _one_of("state of the last-level cache before a timed call", "cold", "warm"),
    "step": _or_null(_one_of("decode step; null for given tables", "first", "mid", "last")),
    "seq_len": _positive("tokens a request attends to, mean over the batch"),
    "layers": _integer("layers the timed calls cycled over", 1),
    "pool_bytes": _integer("KV cache of all those layers, bytes", 1),
    "threads": _or_null(_integer("of the kernel; null on a GPU", 1)),
    "placement": Field(
        "how block ids were permuted",
        "a number, text or object of plain JSON values",
        lambda value: isinstance(value, int | str | dict) and _is_plain(value),
    ),
    "samples_us": Field(
        "time of each timed call, one layer, microseconds",
        "a list of at least one finite number > 0",
        lambda v: isinstance(v, list) and v != [] and all(_is_number(x) and x > 0 for x in v),
    ),
    "p20_us": _positive("20th percentile of the samples, microseconds"),
    "p50_us": _positive("median of the samples, microseconds"),
    "p80_us": _positive("80th percentile of the samples, microseconds"),
    "logical_bytes": _integer("KV bytes of one layer, every table entry counted", 1),
    "distinct_bytes": _integer("KV bytes of one layer, every block counted once", 1),
    "gb_per_s": _positive("logical_bytes / p50_us, in 1e9 bytes per second"),
    "max_error": _number("largest absolute difference from the reference", 0),
    "error_bound": _number("what dtype and length allow that difference to be", 0),
    "checked": _text("what was compared, for instance 'all' or 'sample of 64 pairs'"),
    "advice": Field(
        "what the rule of cascade would take, and what that saves; null or absent without rates",
        "{kernel: paged or cascade, saved_us: number, basis: text}, or null",
        _is_advice,
    ),
    "notes": Field(
        "anything a reader must know",
        "a list of texts",
        lambda value: isinstance(value, list) and all(isinstance(x, str) for x in value),
    ),
}


def validate(record: object) -> None:
    """Check that the record of a decode step is complete and consistent with itself.

    Args:
        record: what `json.loads` gave, or what a measurement made.

    Raises:
        ValueError: naming the field, what it should be and what it is.
    """
    # records that were made before there was advice have none
    known = {"advice": None, **record} if isinstance(record, dict) else record
    flat = check_fields(known, RECORD_FIELDS)
    check_percentiles(flat)
    _check_consistency(flat)


def check_fields(record: object, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Hold a record against a table of fields.

    Returns:
        The record's values by the names of the table.

    Raises:
        ValueError: a field is missing, unknown, or not what it should be.
    """
    flat = _flatten(record, fields)
    for name, field in fields.items():
        if name not in flat:
            raise ValueError(f"record lacks {name!r} ({field.meaning})")
        if not field.accepts(flat[name]):
            raise ValueError(f"{name} must be {field.expected}, got {_show(flat[name])}")
    return flat


def _flatten(record: object, fields: Mapping[str, Field]) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ValueError(f"record must be an object, got {type(record).__name__}")
    # another version may have other fields: say that first
    if (schema := record.get("schema")) != SCHEMA:
        raise ValueError(f"schema must be {SCHEMA}, got {_show(schema)}")
    groups = {name.partition(".")[0] for name in fields if "." in name}
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if name not in groups:
            inner: dict[Any, Any] = {name: value}
        elif isinstance(value, dict):
            inner = {f"{name}.{field}": item for field, item in value.items()}
        else:
            raise ValueError(f"{name} must be an object, got {_show(value)}")
        if not inner.keys() <= fields.keys() or (name not in groups and "." in name):
            raise ValueError(
                f"record has a field that schema {SCHEMA} does not know, in {_show(name)}"
            )
        flat |= inner
    return flat


def _show(value: object) -> str:
    text = reprlib.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_percentiles(flat: Mapping[str, Any]) -> None:
    """Check that the percentiles rise within the samples.

    Raises:
        ValueError: they do not.
    """
    low, high = min(flat["samples_us"]), max(flat["samples_us"])
    low, high = low * (1 - _ROUNDING), high * (1 + _ROUNDING)
    p20, p50, p80 = (flat[name] for name in ("p20_us", "p50_us", "p80_us"))
    if not low <= p20 <= p50 <= p80 <= high:
        raise ValueError(
            f"p20_us, p50_us, p80_us must rise within the samples, got {p20}, {p50}, {p80}"
        )


def _check_consistency(flat: Mapping[str, Any]) -> None:
    if flat["model.num_heads"] % flat["model.num_kv_heads"]:
        raise ValueError(
            "model.num_heads must be a multiple of model.num_kv_heads, "
            f"got {flat['model.num_heads']} and {flat['model.num_kv_heads']}"
        )
    if flat["distinct_bytes"] > flat["logical_bytes"]:
        raise ValueError(
            f"distinct_bytes must not exceed logical_bytes {flat['logical_bytes']}, "
            f"got {flat['distinct_bytes']}"
        )
    # bytes per microsecond / 1e3 = 1e9 bytes per second
    rate = flat["logical_bytes"] / flat["p50_us"] / 1e3
    if not math.isclose(rate, flat["gb_per_s"], rel_tol=_ROUNDING):
        raise ValueError(
            f"gb_per_s must be logical_bytes / p50_us = {rate:.6g}, got {flat['gb_per_s']}"
        )
    if flat["max_error"] > flat["error_bound"]:
        raise ValueError(
            f"max_error must not exceed error_bound {flat['error_bound']}, "
            f"got {flat['max_error']}: a wrong result has no speed"
        )
