"""The record of one measured case: its fields, what they mean, and the check. No files here."""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from apclab.results.field import (
    SCHEMA,
    Field,
    check_fields,
    flag,
    integer,
    is_int,
    is_number,
    is_plain,
    number,
    one_of,
    or_null,
    positive,
    text,
)

# p20..p80 and gb_per_s may have been rounded on their way into the record
_ROUNDING = 0.01


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
        and is_int(value["footprint_bytes"])
        and value["footprint_bytes"] > 0
        and is_number(value["gb_per_s"])
        and value["gb_per_s"] > 0
        and (value["threads"] is None or is_int(value["threads"]))
    )


def _is_advice(value: Any) -> bool:
    match value:
        case {"kernel": "paged" | "cascade", "saved_us": saved, "basis": str(), **rest}:
            return is_number(saved) and not rest
    return value is None


# dotted names are fields of nested objects; null is allowed only where the meaning says when
RECORD_FIELDS: dict[str, Field] = {
    "schema": Field("version of this table", f"{SCHEMA}", lambda v: is_int(v) and v == SCHEMA),
    "apclab": text("version of the package"),
    "commit": or_null(text("git commit; null outside a checkout", r"[0-9a-f]{7,64}", "hex")),
    "dirty": or_null(flag("uncommitted changes; null outside a checkout")),
    "kernel_sha256": or_null(text("digest of the kernel's source; null when unknown")),
    "created": Field("time of the measurement", "an ISO 8601 time in UTC", _is_utc),
    "device.name": text("as the device calls itself"),
    "device.kind": one_of("what it is", "cpu", "cuda"),
    "device.llc_bytes": or_null(integer("last-level cache, bytes; null when unknown", 1)),
    "device.dram_gb_per_s": or_null(positive("read rate of DRAM, GB/s; null when unknown")),
    "device.dram_basis": or_null(one_of("where that rate comes from", "spec", "measured")),
    "device.ladder": Field(
        "measured read rates by footprint; empty when not measured",
        "a list of {level, footprint_bytes, gb_per_s, threads}",
        lambda value: isinstance(value, list) and all(map(_is_rung, value)),
    ),
    "environment": Field(
        "versions, host, settings",
        "an object of plain JSON values",
        lambda value: isinstance(value, dict) and is_plain(value),
    ),
    # a step given as block tables has a batch and readers, but nobody asked for lengths or hits
    "workload.batch": integer("requests", 1),
    "workload.input_len": or_null(integer("tokens of a prompt; null for given tables", 1)),
    "workload.output_len": or_null(integer("tokens of an answer; null for given tables", 1)),
    "workload.cache_hit": or_null(number("asked share of prompt; null for given tables", 0, 1)),
    "workload.realised_hit": or_null(
        number("prompt tokens found in the pool / asked; null for given tables", 0, 1)
    ),
    "workload.readers_mean": number("table entries / distinct blocks of the shared step", 1),
    "workload.prefix_groups": or_null(integer("distinct prefixes; null for given tables", 1)),
    "workload.primed": or_null(flag("prefixes computed before; null for given tables")),
    "workload.seed": or_null(integer("of tokens and placement; null for given tables", 0)),
    "model.name": text("short name of the shape"),
    "model.num_heads": integer("query heads", 1),
    "model.num_kv_heads": integer("key and value heads", 1),
    "model.head_size": integer("elements of a head", 1),
    "model.dtype": one_of("of the cache and the query", "float32", "float16", "bfloat16"),
    "model.block_size": integer("tokens of a block", 1),
    "model.layout": one_of("of the cache", "NHD", "HND"),
    "case": one_of("which block tables and kernel", "private", "shared", "cascade"),
    "backend": one_of("what ran", "reference", "cpu", "triton"),
    "order": one_of("loop or program order", "request", "head"),
    "l2": one_of("state of the last-level cache before a timed call", "cold", "warm"),
    "step": or_null(one_of("decode step; null for given tables", "first", "mid", "last")),
    "seq_len": positive("tokens a request attends to, mean over the batch"),
    "layers": integer("layers the timed calls cycled over", 1),
    "pool_bytes": integer("KV cache of all those layers, bytes", 1),
    "threads": or_null(integer("of the kernel; null on a GPU", 1)),
    "placement": Field(
        "how block ids were permuted",
        "a number, text or object of plain JSON values",
        lambda value: isinstance(value, int | str | dict) and is_plain(value),
    ),
    "samples_us": Field(
        "time of each timed call, one layer, microseconds",
        "a list of at least one finite number > 0",
        lambda v: isinstance(v, list) and v != [] and all(is_number(x) and x > 0 for x in v),
    ),
    "p20_us": positive("20th percentile of the samples, microseconds"),
    "p50_us": positive("median of the samples, microseconds"),
    "p80_us": positive("80th percentile of the samples, microseconds"),
    "logical_bytes": integer("KV bytes of one layer, every table entry counted", 1),
    "distinct_bytes": integer("KV bytes of one layer, every block counted once", 1),
    "gb_per_s": positive("logical_bytes / p50_us, in 1e9 bytes per second"),
    "max_error": number("largest absolute difference from the reference", 0),
    "error_bound": number("what dtype and length allow that difference to be", 0),
    "checked": text("what was compared, for instance 'all' or 'sample of 64 pairs'"),
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
    check_consistency(flat)


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


def check_consistency(flat: Mapping[str, Any]) -> None:
    """Check that the fields of a timed step agree with each other.

    Raises:
        ValueError: they do not.
    """
    if flat["model.num_heads"] % flat["model.num_kv_heads"]:
        raise ValueError(
            "model.num_heads must be a multiple of model.num_kv_heads, "
            f"got {flat['model.num_heads']} and {flat['model.num_kv_heads']}"
        )
    # bytes per microsecond / 1e3 = 1e9 bytes per second
    rate = flat["logical_bytes"] / flat["p50_us"] / 1e3
    if not math.isclose(rate, flat["gb_per_s"], rel_tol=_ROUNDING):
        raise ValueError(
            f"gb_per_s must be logical_bytes / p50_us = {rate:.6g}, got {flat['gb_per_s']}"
        )
    check_bounds(flat)


def check_bounds(flat: Mapping[str, Any]) -> None:
    """Check that distinct bytes are part of the logical ones, and that the result was right.

    Raises:
        ValueError: it is not so.
    """
    if flat["distinct_bytes"] > flat["logical_bytes"]:
        raise ValueError(
            f"distinct_bytes must not exceed logical_bytes {flat['logical_bytes']}, "
            f"got {flat['distinct_bytes']}"
        )
    if flat["max_error"] > flat["error_bound"]:
        raise ValueError(
            f"max_error must not exceed error_bound {flat['error_bound']}, "
            f"got {flat['max_error']}: a wrong result has no speed"
        )
