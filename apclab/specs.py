"""Shapes of models and rates of devices, read from `data/`. No formula lives here, no measurement.

Every row carries its source; what the columns mean is in `data/README.md`.
"""

import csv
import difflib
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

from apclab import data_dir
from apclab.arguments import instance, one_of, shown, whole_number

Row = TypeVar("Row")

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class ModelShape:
    """What decode attention needs to know of a model.

    Attributes:
        name: short name, for instance "llama-13b".
        num_layers: attention layers.
        num_heads: query heads; a multiple of num_kv_heads.
        num_kv_heads: key and value heads.
        head_size: elements of one head.
        source: where the numbers were read.
        hidden_size: elements between layers; 0 where only the attention is known.
        intermediate_size: elements inside a feed-forward layer.
        vocab_size: different tokens.
        mlp_matrices: weight matrices of a feed-forward layer.

    Raises:
        TypeError: a number is not an int, or a name no str.
        ValueError: a number is below 1 (a size of weights below 0), or num_kv_heads does not divide
            num_heads.
    """

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    source: str = "given by the user"
    hidden_size: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0
    mlp_matrices: int = 3

    def __post_init__(self) -> None:
        for field in ("name", "source"):
            instance(field, getattr(self, field), str, "a str")
        counted = ("num_layers", "num_heads", "num_kv_heads", "head_size", "mlp_matrices")
        least = dict.fromkeys(counted, 1)
        for field in ("hidden_size", "intermediate_size", "vocab_size"):
            least[field] = 0
        for field, value in least.items():
            object.__setattr__(self, field, whole_number(field, getattr(self, field), value))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, "
                f"got {self.num_heads} and {self.num_kv_heads}"
            )

    @property
    def num_weights(self) -> int:
        """Weights that a step multiplies with: all layers and the output; no embedding, no norms.

        Raises:
            ValueError: only the attention's shape is known.
        """
        if not self.hidden_size:
            raise ValueError(
                f"{self.name}: the step's weights need hidden_size, intermediate_size and "
                f"vocab_size, and only the attention's shape is known"
            )
        heads = 2 * (self.num_heads + self.num_kv_heads) * self.head_size
        layer = self.hidden_size * (heads + self.mlp_matrices * self.intermediate_size)
        return self.num_layers * layer + self.hidden_size * self.vocab_size

    def token_bytes(self, dtype: str) -> int:
        """Bytes of K and V of one token in one layer, all KV heads together.

        Raises:
            TypeError, ValueError: dtype is not one of DTYPE_BYTES.
        """
        one_of("dtype", dtype, DTYPE_BYTES)
        return 2 * self.num_kv_heads * self.head_size * DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class Device:
    """What the memory of a device can deliver.

    Attributes:
        name: as in `data/devices.csv`, for instance "A100-SXM4-80GB".
        dram_gb_per_s: read rate of DRAM, in 1e9 bytes per second.
        dram_basis: where that rate comes from.
        llc_bytes: size of the last-level cache (L2 of most GPUs, Infinity Cache of MI300X).
        llc_gb_per_s: its read rate as measured by others; None where no figure was found.
        source: where the numbers were read.
        half_tflops: dense 16-bit products of its tensor cores, 1e12 operations a second; None where
            no data sheet was found.
    """

    name: str
    dram_gb_per_s: float
    dram_basis: Literal["spec", "measured"]
    llc_bytes: int
    llc_gb_per_s: float | None
    source: str
    half_tflops: float | None = None


@dataclass(frozen=True)
class SM:
    """What one streaming multiprocessor (SM) of a device holds, and how far DRAM is from it.

    Attributes:
        device: as in `data/devices.csv`.
        target: what its kernels are compiled for, for instance "sm_90".
        sm_count: SMs of the device.
        clock_mhz: boost clock.
        dram_latency_ns: from a load to its data, of an idle device.
        latency_basis: "measured", "clock inferred" (cycles measured) or "inferred"; see `note`.
        registers: 32-bit registers.
        shared_bytes: shared memory at most.
        max_warps: warps at a time.
        max_programs: programs (thread blocks) at a time.
        fp32_lanes: float32 multiply-adds a cycle.
        note: how the latency was come by.
        source: where the numbers were read.
    """

    device: str
    target: str
    sm_count: int
    clock_mhz: int
    dram_latency_ns: int
    latency_basis: str
    registers: int
    shared_bytes: int
    max_warps: int
    max_programs: int
    fp32_lanes: int
    note: str
    source: str


def models() -> dict[str, ModelShape]:
    """Every model of `data/models.csv` by its short name, in the order of the file."""
    return dict(_models())


def model(model: str | ModelShape) -> ModelShape:
    """The shape of one model: by its name, or as it was given.

    Raises:
        TypeError: neither a name nor a shape.
        ValueError: no such model; the message lists near names.
    """
    return model if isinstance(model, ModelShape) else _named(_models(), model, "model")


def devices() -> dict[str, Device]:
    """Every device of `data/devices.csv` by its name, in the order of the file."""
    return dict(_devices())


def device(device: str | Device) -> Device:
    """The rates of one device: by its name, or as they were given.

    Raises:
        TypeError: neither a name nor rates.
        ValueError: no such device; the message lists near names.
    """
    return device if isinstance(device, Device) else _named(_devices(), device, "device")


def sms() -> dict[str, SM]:
    """Every row of `data/sm.csv` by the name of its device, in the order of the file."""
    return dict(_sms())


def _named(rows: dict[str, Row], name: object, what: str) -> Row:
    if not isinstance(name, str):
        row = type(next(iter(rows.values()))).__name__
        raise TypeError(f"{what} must be a name of data/{what}s.csv or a {row}, got {shown(name)}")
    if name in rows:
        return rows[name]
    lowered = {known.lower(): known for known in rows}
    near = difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(lowered[key] for key in near)}? " if near else ""
    raise ValueError(f"unknown {what} {name!r}: {hint}known are {', '.join(rows)}")


@cache
def _models() -> dict[str, ModelShape]:
    numbers = (
        *("num_layers", "num_heads", "num_kv_heads", "head_size"),
        *("hidden_size", "intermediate_size", "vocab_size", "mlp_matrices"),
    )
    return {
        row["name"]: ModelShape(
            name=row["name"], source=row["source"], **{field: int(row[field]) for field in numbers}
        )
        for row in _rows("models.csv")
    }


@cache
def _devices() -> dict[str, Device]:
    return {
        row["name"]: Device(
            name=row["name"],
            dram_gb_per_s=float(row["dram_gb_per_s"]),
            dram_basis="measured" if row["dram_basis"] == "measured" else "spec",
            llc_bytes=int(row["llc_bytes"]),
            llc_gb_per_s=float(row["llc_gb_per_s"]) if row["llc_gb_per_s"] else None,
            source=row["source"],
            half_tflops=float(row["half_tflops"]) if row["half_tflops"] else None,
        )
        for row in _rows("devices.csv")
    }


@cache
def _sms() -> dict[str, SM]:
    return {
        row["device"]: SM(
            device=row["device"],
            target=row["target"],
            sm_count=int(row["sm_count"]),
            clock_mhz=int(row["clock_mhz"]),
            dram_latency_ns=int(row["dram_latency_ns"]),
            latency_basis=row["latency_basis"],
            registers=int(row["registers_per_sm"]),
            shared_bytes=int(row["shared_bytes_per_sm"]),
            max_warps=int(row["max_warps_per_sm"]),
            max_programs=int(row["max_programs_per_sm"]),
            fp32_lanes=int(row["fp32_lanes_per_sm"]),
            note=row["note"],
            source=row["source"],
        )
        for row in _rows("sm.csv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    with (data_dir() / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
