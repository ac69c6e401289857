"""What memory asks of a kernel and of a step, in formulas: bytes, programs on an SM, rates.

Nothing is measured or compiled here. The numbers of a kernel come from its binary (see
`attention.compile_kernels`), those of a device from `data/sm.csv` and `data/devices.csv`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from apclab import specs

if TYPE_CHECKING:
    import pandas as pd

# bytes in flight, as a multiple of what an idle DRAM needs: a loaded one answers later
LEAST_RATIO = 1.5
# how an SM gives out what it has, sm_80 and later (CUDA's occupancy calculator)
_WARP = 32  # threads
_PARTITIONS = 4  # of an SM, each with a quarter of the registers and one instruction a cycle
_REGISTER_UNIT = 256  # registers, for a warp
_SHARED_UNIT = 128  # bytes
_SHARED_RESERVED = 1024  # bytes of a program, for the driver


class Occupancy(NamedTuple):
    """How many programs fit on one SM at a time, by each of the things that run out."""

    by_registers: int
    by_shared: int
    by_warps: int
    by_programs: int

    @property
    def programs(self) -> int:
        """The least of the four; 0 when one program does not fit."""
        return min(self)

    @property
    def limit(self) -> str:
        """What runs out first."""
        return self._fields[self.index(self.programs)].removeprefix("by_")


def occupancy(sm: specs.SM, *, registers: int, shared_bytes: int, num_warps: int) -> Occupancy:
    """Count the programs that fit on one SM.

    Args:
        sm: what the SM has.
        registers: 32-bit registers of one thread.
        shared_bytes: shared memory of one program, static and dynamic.
        num_warps: warps of one program.
    """
    of_warp = _up(registers * _WARP, _REGISTER_UNIT)
    warps = _PARTITIONS * (sm.registers // _PARTITIONS // of_warp)
    shared = _up(shared_bytes + _SHARED_RESERVED, _SHARED_UNIT)
    return Occupancy(
        warps // num_warps, sm.shared_bytes // shared, sm.max_warps // num_warps, sm.max_programs
    )


def bytes_needed(device: specs.Device, sm: specs.SM) -> float:
    """Bytes that each SM must have under way to keep an idle DRAM busy: bandwidth x latency / SMs.

    This is Little's law; GB/s times ns is bytes.
    """
    return device.dram_gb_per_s * sm.dram_latency_ns / sm.sm_count


class Flight(NamedTuple):
    """Whether a kernel can keep the DRAM of a device busy. Bytes are those of one SM.

    For cascade and prefill the grid is as large as the launcher likes, and is not looked at.
    """

    programs: int  # at a time on an SM
    limit: str  # "registers", "shared", "warps", "programs", or "grid": no more are launched
    bytes_in_flight: int  # K and V that its programs have under way while they wait
    bytes_needed: float
    ratio: float  # in flight / needed
    issue: float  # time to issue a tile's instructions / time in which DRAM delivers the tile
    ratio_least: float  # ratio on average, were all programs to compute at the same time

    @property
    def enough(self) -> bool:
        """Whether the bytes in flight are at least LEAST_RATIO of what is needed."""
        return self.ratio >= LEAST_RATIO


def flight(build: Mapping[str, Any], device: str, *, batch: int) -> Flight:
    """Hold one compiled attention kernel against one device.

    `issue` above 1 means that arithmetic is the limit whatever memory does; it is a lower bound
    of what arithmetic costs, since no instruction waits for another in it. A program has its bytes
    under way while it waits, fewer while it computes: `ratio` is of the first, and `ratio_least`
    takes off the share of time `issue` for the second.

    Args:
        build: a build of `attention.compile_kernels`, for the device's target.
        device: a name of `data/sm.csv`.
        batch: requests of the step; with the KV heads and splits they make the grid.

    Raises:
        ValueError: no such device, or a build for another target.
    """
    sms = specs.sms()
    if device not in sms:
        raise ValueError(f"device must be one of {', '.join(sms)}, got {device!r}")
    sm, rates = sms[device], specs.device(device)
    if build["target"] != sm.target:
        raise ValueError(f"{device} needs a build for {sm.target}, got one for {build['target']}")
    room = occupancy(
        sm, registers=build["registers"], shared_bytes=build["shared_bytes"],
        num_warps=build["num_warps"],
    )  # fmt: skip
    programs, limit = room.programs, room.limit
    if build["kernel"] == "decode":
        launched = batch * build["num_kv_heads"] * build["splits"] // sm.sm_count
        programs, limit = min((programs, limit), (launched, "grid"))
    under_way = programs * build["tiles_in_flight"] * build["tile_bytes"]
    needed = bytes_needed(rates, sm)
    # a multiply-add of a warp takes a partition as many cycles as its lanes need for 32 threads
    extra = _WARP * _PARTITIONS // sm.fp32_lanes - 1
    issued = build["loop_instructions"] + extra * build["loop_fma"]
    issue_ns = issued * build["num_warps"] / _PARTITIONS / sm.clock_mhz * 1000
    dram_ns = build["tile_bytes"] * sm.sm_count / rates.dram_gb_per_s
    ratio, issue = under_way / needed, issue_ns / dram_ns
    # while a program computes on a tile, the buffer of that tile cannot be filled
    least = ratio * max(0.0, 1 - issue / build["tiles_in_flight"])
    return Flight(programs, limit, under_way, needed, ratio, issue, least)


def kernel_table(builds: Iterable[Mapping[str, Any]], *, batch: int) -> list[dict[str, Any]]:
    """One row a compiled attention kernel and device of its target; without a device, one row.

    Args:
        builds: of `attention.compile_kernels`.
        batch: requests of the step.
    """
    rows: list[dict[str, Any]] = []
    taken = (
        *("kernel", "target", "dtype", "num_heads", "num_kv_heads", "head_size", "registers"),
        *("stack_bytes", "spills", "shared_bytes", "async_copies", "wide_loads", "tensor_ops"),
    )
    for build in builds:
        if build["kernel"] == "merge":
            continue
        facts = {field: build[field] for field in taken}
        facts |= {"triton": build["triton"], "faults": list(build["faults"])}
        held: list[dict[str, Any]] = [
            {"device": sm.device, "latency_basis": sm.latency_basis}
            | flight(build, sm.device, batch=batch)._asdict()
            for sm in specs.sms().values()
            if sm.target == build["target"]
        ]
        unknown = dict.fromkeys(("device", "latency_basis", *Flight._fields))
        rows += [facts | one for one in held or [unknown]]
    return rows


def kernel_frame(builds: Iterable[Mapping[str, Any]], *, batch: int) -> "pd.DataFrame":
    """`kernel_table` as a DataFrame, for a notebook."""
    import pandas as pd

    return pd.DataFrame(kernel_table(builds, batch=batch))


def _up(value: int, unit: int) -> int:
    """The least multiple of a unit that is at least the value."""
    return -(-value // unit) * unit


class StepRates(NamedTuple):
    """What a device gives an engine's step.

    Attributes:
        dram_bytes_per_s: weights and distinct KV blocks come from DRAM at this rate.
        cache_bytes_per_s: every request's KV passes the cache at this rate; None: not known, then
            it is no limit.
        flop_per_s: rate of matrix products.
        fixed_s: of a step, whatever it does.
        basis: where the rates are from, in words.
    """

    dram_bytes_per_s: float
    cache_bytes_per_s: float | None
    flop_per_s: float
    fixed_s: float
    basis: str


# Of the data sheet's rates, what kernels reach. DRAM: vLLM's paged attention in issue 4860, 1664 of
# 2039 GB/s on an A100. Cache: the same kernel with shared blocks, 3235 of 5420 GB/s
# (arXiv 2402.15220, Table 3). Products: assumed, as no published prefill of 13B says it.
DRAM_EFFICIENCY = 0.82
CACHE_EFFICIENCY = 0.60
PRODUCT_EFFICIENCY = 0.60


def device_rates(device: specs.Device, *, fixed_s: float = 0.0) -> StepRates:
    """Rates of a device of `data/devices.csv` times what kernels reach of them.

    Args:
        device: a row.
        fixed_s: seconds of a step that nothing below explains (launches, sampling, scheduling).

    Raises:
        ValueError: the row has no rate of products.
    """
    if device.half_tflops is None:
        raise ValueError(f"{device.name}: data/devices.csv has no half_tflops of it")
    cache = device.llc_gb_per_s
    said = f"cache at {CACHE_EFFICIENCY:.0%} of {cache:g}" if cache else "cache rate not known"
    return StepRates(
        DRAM_EFFICIENCY * device.dram_gb_per_s * 1e9,
        CACHE_EFFICIENCY * cache * 1e9 if cache else None,
        PRODUCT_EFFICIENCY * device.half_tflops * 1e12,
        fixed_s,
        f"{device.name}: DRAM at {DRAM_EFFICIENCY:.0%} of {device.dram_gb_per_s:g} GB/s, {said}, "
        f"products at {PRODUCT_EFFICIENCY:.0%} of {device.half_tflops:g} TFLOP/s",
    )


def calibrated_rates(
    records: Iterable[Mapping[str, Any]], dtype: str, *, fixed_s: float = 0.0
) -> StepRates:
    """Rates that `apclab calibrate` measured, so as they are: no efficiency is assumed.

    Args:
        records: of kind "calibration"; the last of each probe and dtype counts.
        dtype: of the KV cache.
        fixed_s: seconds of a step besides its work.

    Raises:
        ValueError: a probe is missing for this dtype.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for record in records:
        if record["model"]["dtype"] == dtype:
            found[record["probe"]] = record
    if missing := [probe for probe in ("distinct", "shared", "product") if probe not in found]:
        raise ValueError(
            f"the calibration lacks {', '.join(missing)} for {dtype}; make one with: "
            f"apclab calibrate --dtype {dtype} --save FILE"
        )
    dram, cache, product = (found[probe]["value"] for probe in ("distinct", "shared", "product"))
    return StepRates(
        dram, cache, product, fixed_s,
        f"{found['distinct']['device']['name']}, calibrated {found['distinct']['created'][:10]}: "
        f"own blocks {dram / 1e9:.3g} GB/s, shared {cache / 1e9:.3g}, products "
        f"{product / 1e12:.3g} TFLOP/s",
    )  # fmt: skip


def roofline_step(
    model: specs.ModelShape,
    rates: StepRates,
    *,
    dtype: str = "float16",
    block_size: int = 16,
    reuse: bool = True,
) -> Callable[[Any], float]:
    """A cost of an engine's step: weights and attention one after the other, each at its roof.

    Weights: the longer of reading them all once and multiplying the step's tokens with them.
    Attention: the longest of reading distinct blocks from DRAM, every request's own KV through the
    cache, and the products of queries with keys and values. A first cost: it knows no wave tails,
    no overlap and no limit of one request.

    Args:
        model: whose weights and heads.
        rates: of the device.
        dtype: of weights and KV cache.
        block_size: tokens per block.
        reuse: False: as if each request had its own copy of what it shares (the case `private`).

    Returns:
        A function of `engine.StepWork` that returns seconds.

    Raises:
        ValueError: only the attention's shape of the model is known, or another dtype.
    """
    token_bytes = model.token_bytes(dtype) * model.num_layers
    head = model.hidden_size * model.vocab_size
    weights = model.num_weights
    weight_bytes = weights * specs.DTYPE_BYTES[dtype]
    pair_flop = 4 * model.num_heads * model.head_size * model.num_layers

    def cost(work: Any) -> float:
        tokens = work.prefill_tokens + work.decode_tokens
        products = 2 * ((weights - head) * tokens + head * work.sampled)
        linear = max(weight_bytes / rates.dram_bytes_per_s, products / rates.flop_per_s)
        logical = work.context_tokens * token_bytes
        distinct = min(logical, work.distinct_blocks * block_size * token_bytes)
        attention = (distinct if reuse else logical) / rates.dram_bytes_per_s
        if rates.cache_bytes_per_s is not None:
            attention = max(attention, logical / rates.cache_bytes_per_s)
        attention = max(attention, work.pairs * pair_flop / rates.flop_per_s)
        seconds: float = linear + attention + rates.fixed_s
        return seconds

    return cost
