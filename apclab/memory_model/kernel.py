"""What memory asks of a kernel, in formulas: programs on an SM, bytes under way, bytes needed.

Nothing is measured or compiled here. The numbers of a kernel come from its binary (see
`attention.compile_kernels`), those of a device from `data/sm.csv` and `data/devices.csv`.
"""

from collections.abc import Iterable, Mapping
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
