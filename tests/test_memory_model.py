"""The static model against occupancies and bytes that were worked out by hand."""

from typing import Any

import pytest

from apclab import memory_model, specs
from apclab.memory_model import bytes_needed, flight, kernel_frame, kernel_table, occupancy

A100 = "A100-SXM4-80GB"
# issue 4860's shape in bfloat16 on sm_80, compiled by triton 3.7.1: K and V of 32 tokens of 128
BUILD: dict[str, Any] = {
    "kernel": "decode", "target": "sm_80", "triton": "3.7.1", "dtype": "bfloat16",
    "num_heads": 40, "num_kv_heads": 40, "head_size": 128, "block_size": 16, "splits": 1,
    "order": "request", "tile": 32, "num_warps": 4, "registers": 80, "stack_bytes": 0, "spills": 0,
    "shared_bytes": 21632, "async_copies": 16, "wide_loads": 1, "tensor_ops": 16,
    "instructions": 673, "loop_instructions": 251, "loop_fma": 2, "tile_bytes": 2 * 32 * 128 * 2,
    "tiles_in_flight": 1, "faults": [],
}  # fmt: skip


def test_occupancy_by_hand() -> None:
    sm = specs.sms()[A100]
    # 80 registers x 32 threads = 2560 a warp; a quarter of 65536 has room for 6 warps, 24 in all;
    # 21632 + 1024 bytes fit 7 times into 164 KiB; 64 warps are 16 programs of 4
    found = occupancy(sm, registers=80, shared_bytes=21632, num_warps=4)
    assert found == (6, 7, 16, 32)
    assert (found.programs, found.limit) == (6, "registers")
    # 81 registers are given out as 88: 2592 is rounded up to 2816, 5 warps a quarter
    assert occupancy(sm, registers=81, shared_bytes=0, num_warps=4).by_registers == 5
    # 40 registers: 1280 a warp, 12 a quarter; float32 then ends at shared memory: 9 x 17984
    found = occupancy(sm, registers=40, shared_bytes=16960, num_warps=4)
    assert (found.by_registers, found.programs, found.limit) == (12, 9, "shared")
    # 2 warps a quarter are one program of 8 warps, 4 of 2 warps
    assert occupancy(sm, registers=255, shared_bytes=0, num_warps=8).by_registers == 1
    assert occupancy(sm, registers=255, shared_bytes=0, num_warps=2).by_registers == 4
    # one program of 163 KiB fits with its reserved KiB, one byte more does not
    assert occupancy(sm, registers=32, shared_bytes=163 << 10, num_warps=4).programs == 1
    found = occupancy(sm, registers=32, shared_bytes=(163 << 10) + 1, num_warps=4)
    assert (found.programs, found.limit) == (0, "shared")
    # no registers to speak of: Ada has room for 48 warps and 24 programs
    ada = specs.sms()["L40S"]
    assert occupancy(ada, registers=16, shared_bytes=0, num_warps=1).limit == "programs"
    assert occupancy(ada, registers=16, shared_bytes=0, num_warps=8).limit == "warps"


def test_bytes_in_flight_by_hand() -> None:
    device, sm = specs.device(A100), specs.sms()[A100]
    # 2039 GB/s x 404 ns / 108 SMs
    assert bytes_needed(device, sm) == pytest.approx(7627.4, abs=0.1)
    held = flight(BUILD, A100, batch=100)
    assert held.programs == 6
    assert held.bytes_in_flight == 6 * 16384
    assert held.ratio == pytest.approx(98304 / 7627.4, rel=1e-4)
    assert held.enough
    # 251 + 2 more for multiply-adds on half the lanes, by 4 warps on 4 schedulers at 1.41 GHz:
    # 179.4 ns; DRAM brings an SM its 16384 bytes in 867.8 ns
    assert held.issue == pytest.approx(179.43 / 867.81, rel=1e-3)
    assert held.ratio_least == pytest.approx(held.ratio * (1 - held.issue))
    # a second buffer is filled while a program computes on the first
    deep = flight(BUILD | {"tiles_in_flight": 2}, A100, batch=100)
    assert deep.ratio_least == pytest.approx(deep.ratio * (1 - deep.issue / 2))


def test_a_small_grid_is_the_limit() -> None:
    # 10 requests x 40 heads are 3 programs an SM, 2 requests none: not every SM has one
    held = flight(BUILD, A100, batch=10)
    assert (held.programs, held.limit) == (3, "grid")
    assert flight(BUILD, A100, batch=2).programs == 0
    assert not flight(BUILD, A100, batch=2).enough
    assert flight(BUILD | {"splits": 8}, A100, batch=2).programs == 5


def test_a_build_for_another_target_or_device_is_refused() -> None:
    with pytest.raises(ValueError, match="H200 needs a build for sm_90, got one for sm_80"):
        flight(BUILD, "H200", batch=100)
    with pytest.raises(ValueError, match=r"device must be one of A100-SXM4-80GB, .*got 'T4'"):
        flight(BUILD, "T4", batch=100)


def test_table_has_a_row_a_device_and_one_for_a_target_without() -> None:
    builds = [
        BUILD,
        BUILD | {"target": "sm_90"},
        BUILD | {"target": "gfx942"},
        BUILD | {"kernel": "merge"},
    ]
    rows = kernel_table(builds, batch=100)
    devices = [A100, "H100-PCIe-80GB", "H100-SXM5-80GB", "H200", None]
    assert [row["device"] for row in rows] == devices
    assert [row["programs"] for row in rows] == [6, 6, 6, 6, None]
    assert rows[1]["latency_basis"] == "measured"
    frame = kernel_frame(builds, batch=100)
    assert list(frame.columns) == list(rows[0])
    assert len(frame) == 5


def test_a_wide_tile_on_few_registers_is_not_enough_to_pass() -> None:
    # the bar can fail: tiles of 4 KiB, two programs an SM, on the fastest memory
    poor = BUILD | {"target": "sm_100", "tile_bytes": 4096, "registers": 255}
    held = flight(poor, "B200", batch=100)
    assert held.programs == 2
    assert not held.enough
    assert memory_model.LEAST_RATIO == 1.5
