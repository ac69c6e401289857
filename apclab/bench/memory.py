"""Memory of a measurement: the arithmetic, before anything is allocated."""

from dataclasses import dataclass

from apclab.bench.buffers import held_bytes
from apclab.clock import machine, memory_available, memory_words

# what a caller who names no limit lets the K and V of one measurement take: more layers would fill
# for seconds; with fewer, reading a scratch buffer makes the calls cold just as well
POOL_BYTES = {"cpu": 2 * 2**30, "cuda": 16 * 2**30}
# part of the memory at hand that a measurement may take: the rest is for the notebook and others
_MEMORY_PART = 0.8
# layers that calls cycle over at most: a tiny step would need 100,000 of them, each with its launch
_MOST_LAYERS = 256


class OutOfMemory(MemoryError):  # noqa: N818 - named as users search for it
    """The measurement does not fit; the message holds the arithmetic."""


@dataclass(frozen=True)
class Plan:
    """How much is allocated, and how calls are kept cold."""

    layers: int
    pool_bytes: int  # K and V of all layers
    scratch_bytes: int  # read between calls; 0 when cycling over layers is enough, or when warm
    l2: str  # "cold" or "warm", as it will really be
    notes: list[str]


def plan_memory(
    *,
    num_blocks: int,
    block_bytes: int,
    distinct_bytes: int,
    other_bytes: int,
    l2: str,
    limit: int | None,
    asked: str,
    kind: str = "cpu",
) -> Plan:
    """Choose layers and scratch buffer for a step, or refuse.

    Cold calls cycle over ceil(4 x last-level cache / distinct bytes of the shared step) layers. If
    the limit forbids that, a scratch buffer of twice the cache is read between calls; if memory
    forbids even that, the calls are warm and the plan says so.

    Args:
        num_blocks: blocks of one layer's pool.
        block_bytes: K and V of one block.
        distinct_bytes: distinct bytes that one call of the shared step reads.
        other_bytes: query, output and check.
        l2: "cold" or "warm", as asked.
        limit: bytes that K and V may take; None means POOL_BYTES, and more for a single layer.
        asked: the step in words, for the message.
        kind: where it runs, "cpu" or "cuda".

    Raises:
        OutOfMemory: one layer does not fit the memory at hand, or the caller's limit.
    """
    layer = num_blocks * block_bytes
    at_hand = int(memory_available(kind) * _MEMORY_PART) + held_bytes(kind)
    if layer + other_bytes > at_hand or (limit is not None and layer > limit):
        room = (
            f"the limit is {_mb(limit)}"
            if limit is not None and layer > limit
            else (
                f"{_mb(at_hand)} may be used ({_MEMORY_PART:.0%} of what is {memory_words(kind)})"
            )
        )
        raise OutOfMemory(
            f"{asked}: {num_blocks:,} blocks x {block_bytes:,} bytes = {_mb(layer)} for K and V of "
            f"one layer, {_mb(other_bytes)} for the rest, and {room}; "
            f"take a smaller batch, shorter inputs or a model with fewer KV heads"
        )
    if l2 == "warm":
        return Plan(1, layer, 0, "warm", [])
    llc = machine(kind)["llc_bytes"]
    wanted = max(2, -(-4 * llc // max(1, distinct_bytes)))
    most = min(at_hand - other_bytes, POOL_BYTES[kind] if limit is None else limit)
    if wanted <= _MOST_LAYERS and wanted * layer <= most:
        return Plan(wanted, wanted * layer, 0, "cold", [])
    scratch = 2 * llc
    layers = max(
        1, min(wanted, _MOST_LAYERS, (most - scratch) // layer if limit is None else most // layer)
    )
    if layers * layer + scratch + other_bytes > at_hand:
        layers = 1
    if layer + scratch + other_bytes > at_hand:
        return Plan(1, layer, 0, "warm", [
            f"warm: neither {wanted} layers of {_mb(layer)} nor a scratch buffer of "
            f"{_mb(scratch)} fits {_mb(at_hand)}",
        ])  # fmt: skip
    return Plan(layers, layers * layer, scratch, "cold", [
        f"{layers} of {wanted} layers, so a scratch buffer of {_mb(scratch)} is read between calls",
    ])  # fmt: skip


def _mb(size: int | None) -> str:
    size = size or 0
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
