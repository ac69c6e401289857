"""Memory of a measurement: one sum of everything that it takes, before anything is allocated."""

from dataclasses import dataclass
from typing import NamedTuple

from apclab.bench.buffers import held_bytes, scratch_bytes
from apclab.bench.how import How
from apclab.bench.step import Step
from apclab.clock import machine, memory_available, memory_words
from apclab.specs import DTYPE_BYTES, ModelShape

# part of the memory at hand that a measurement may take: the rest is for the notebook and others
_MEMORY_PART = 0.8
# layers that calls cycle over at most: a tiny step would need 100,000 of them, each with its launch
_MOST_LAYERS = 256
# what layers may take, in units of what makes calls cold: a scratch buffer of one unit, which the
# ladder has filled already, does as well; on a GPU layers are launched together, as one graph
_MOST_COLD = {"cpu": 1, "cuda": 4}
# what the pool and the requests of a step take while its tables are made, by tracemalloc: 32 to 90
# bytes a token, and up to 400 a block more where blocks are small
_TOKEN_BYTES, _ENTRY_BYTES = 90, 400


class OutOfMemory(MemoryError):  # noqa: N818 - named as users search for it
    """The measurement does not fit; the message holds the arithmetic."""


class Needs(NamedTuple):
    """What a step takes, whatever keeps its calls cold. Bytes."""

    asked: str  # the step in words, for messages
    num_blocks: int  # of one layer's pool
    block_bytes: int  # K and V of one block
    distinct_bytes: int  # that one call of the shared step reads
    tables: int  # requests, the pool that makes the block tables, the tables
    outputs: int  # queries, outputs and partial states of all cases
    check: int  # keys and values of one head in float64, twice for what is made of them
    copies: int = 1  # of K and V side by side: kernels of others want layouts of their own

    @property
    def pool(self) -> int:
        """K and V of one layer."""
        return self.num_blocks * self.block_bytes

    @property
    def layer(self) -> int:
        """K and V of one layer in all layouts."""
        return self.pool * self.copies

    @property
    def rest(self) -> int:
        """Everything but K and V, and what makes calls cold."""
        return self.tables + self.outputs + self.check


@dataclass(frozen=True)
class Plan:
    """How much is allocated, and how calls are kept cold."""

    layers: int
    num_blocks: int  # of one layer's pool
    pool_bytes: int  # K and V of all layers
    scratch_bytes: int  # read between calls; 0 when cycling over layers is enough, or when warm
    l2: str  # "cold" or "warm", as it will really be
    notes: list[str]


def asked_needs(
    entries: int, batch: int, longest: int, model: ModelShape, how: How, block_size: int
) -> Needs:
    """What a step may take at most, before its tables are made: no block is shared.

    Args:
        entries: blocks that the requests name.
        batch: requests.
        longest: tokens of the longest request.
        model: the shape.
        how: resolved.
        block_size: tokens per block.
    """
    itemsize = DTYPE_BYTES[how.dtype]
    block_bytes = model.token_bytes(how.dtype) * block_size
    # a float32 output or state of every query head; a kernel that splits sequences has no more
    # states than four for each thread besides one a head, a cascade two runs and a tail
    states = batch * model.num_heads + 4 * machine(how.kind)["cores"]
    state = (model.head_size + 1) * 4
    heads = model.num_kv_heads if how.backend == "reference" else 1
    return Needs(
        asked=f"{batch} requests of {longest} tokens",
        num_blocks=entries + 1,  # and the null block
        block_bytes=block_bytes,
        distinct_bytes=entries * block_bytes,
        tables=entries * (_ENTRY_BYTES + block_size * _TOKEN_BYTES),
        outputs=states * state * (2 + 3 * len(how.cases)),
        check=longest * model.head_size * heads * (2 * 8 + 3 * itemsize),
    )


def step_needs(step: Step, model: ModelShape, how: How) -> Needs:
    """What a step takes whose tables are made; arguments as in `asked_needs`."""
    sharing, lens = step.shared.sharing(), step.shared.seq_lens
    needs = asked_needs(
        sharing.table_entries, len(lens), int(lens.max()), model, how, step.block_size
    )
    asked = f"{len(lens)} requests of {step.seq_len:.0f} tokens"
    distinct = sharing.distinct_bytes(model.token_bytes(how.dtype))
    return needs._replace(asked=asked, distinct_bytes=distinct, tables=0)


def at_hand(kind: str, dtype: str | None = None, pool_bytes: int = 0) -> int:
    """Bytes that a measurement may take, with what an earlier one left; see `held_bytes`."""
    return int(memory_available(kind) * _MEMORY_PART) + held_bytes(kind, dtype, pool_bytes)


def room(how: How, pool_bytes: int = 0) -> int:
    """Bytes that a measurement may take: of what is at hand, within the caller's limit."""
    most = at_hand(how.kind, how.dtype, pool_bytes)
    return most if how.memory_limit is None else min(most, how.memory_limit)


def check_room(needs: Needs, how: How) -> int:
    """Refuse what cannot fit.

    Returns:
        Bytes that are left beside one layer: for what makes calls cold.

    Raises:
        OutOfMemory: one layer and the rest do not fit the memory at hand, or the caller's limit.
    """
    may = room(how, needs.pool)
    left = may - needs.layer - needs.rest
    if left >= 0:
        return left
    words = (
        f"the limit is {_mb(may)}"
        if may == how.memory_limit
        else f"{_mb(may)} may be used ({_MEMORY_PART:.0%} of what is {memory_words(how.kind)})"
    )
    rest = {
        "for the pool and its tables": needs.tables,
        "for queries, outputs and states": needs.outputs,
        "for the check in float64": needs.check,
    }
    said = "".join(f", {_mb(size)} {what}" for what, size in rest.items() if size >= 5e5)
    layouts = f" x {needs.copies} layouts" if needs.copies > 1 else ""
    raise OutOfMemory(
        f"{needs.asked}: {needs.num_blocks:,} blocks x {needs.block_bytes:,} bytes{layouts} = "
        f"{_mb(needs.layer)} for K and V of one layer{said}, and {words}; "
        f"take a smaller batch, shorter inputs or a model with fewer KV heads"
    )


def plan_memory(needs: Needs, how: How, cold_bytes: int | None) -> Plan:
    """Choose layers and scratch buffer for a step, or refuse.

    Cold calls cycle over so many layers that `cold_bytes` lie between two calls of one layer, or a
    scratch buffer of that size is read between calls, whichever is filled sooner. Where neither
    fits, the calls are warm and the plan says so.

    Args:
        needs: of the step.
        how: resolved.
        cold_bytes: reading so much leaves nothing of before in the caches; None where no such size
            was found.

    Raises:
        OutOfMemory: as `check_room`.
    """
    left = check_room(needs, how)

    def one_layer(scratch: int, l2: str, *notes: str) -> Plan:
        return Plan(1, needs.num_blocks, needs.pool, scratch, l2, list(notes))

    if how.l2 == "warm":
        return one_layer(0, "warm")
    if cold_bytes is None:
        why = f"warm: no read within {_mb(left)} was found to empty the caches"
        return one_layer(0, "warm", why)
    wanted = max(2, -(-cold_bytes // max(1, needs.distinct_bytes)))
    # what the ladder has read stays for the next measurement
    most = min(
        left + needs.layer - scratch_bytes(how.kind),
        _MOST_COLD[how.kind] * cold_bytes + needs.layer,
    )
    if wanted <= _MOST_LAYERS and wanted * needs.layer <= most:
        return Plan(wanted, needs.num_blocks, wanted * needs.pool, 0, "cold", [])
    if cold_bytes <= left:
        note = f"a scratch buffer of {_mb(cold_bytes)} is read between calls"
        return one_layer(cold_bytes, "cold", note)
    why = (
        f"warm: neither {wanted} layers of {_mb(needs.layer)} nor a scratch buffer of "
        f"{_mb(cold_bytes)} fits {_mb(left + needs.layer)}"
    )
    return one_layer(0, "warm", why)


def _mb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
