"""The memory plan and whole commands on machines that are not here: none takes more than it may."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apclab.bench import memory, probes
from apclab.bench.how import How
from apclab.specs import ModelShape, model
from tests.made_up import MACHINES, Machine

ROOT = Path(__file__).parent.parent
# numba starts as many threads as it is told, whatever is here
ALL = pytest.mark.parametrize("machine", MACHINES, ids=str)


def seen(machine: Machine, monkeypatch: pytest.MonkeyPatch, held: int = 0) -> None:
    facts = {"cores": machine.cores, "l2_bytes": 2**20, "llc_bytes": machine.llc_mb * 2**20}
    for module in (memory, probes):
        monkeypatch.setattr(module, "machine", lambda _kind: facts)
    monkeypatch.setattr(memory, "memory_available", lambda _kind: machine.limit_mb * 10**6 - held)
    monkeypatch.setattr(memory, "scratch_bytes", lambda _kind: 0)
    monkeypatch.setattr(memory, "held_bytes", lambda *_args: 0)


@ALL
@pytest.mark.parametrize("cold_caches", [None, 1, 1.5, 5])
@pytest.mark.parametrize(
    ("batch", "length"), [(1, 1), (2, 32), (12, 310), (100, 310), (2, 30_000), (1, 200_000)]
)
def test_a_plan_stays_within_what_it_was_given(
    machine: Machine, cold_caches: float | None, batch: int, length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    seen(machine, monkeypatch)
    how = How(backend="cpu", layout="NHD", order="request")
    shape = model("llama-13b")
    needs = memory.asked_needs(batch * -(-length // 16), batch, length, shape, how, 16)
    may = int(0.8 * machine.limit_mb * 10**6)
    least = needs.layer + needs.rest
    cold = None if cold_caches is None else int(cold_caches * machine.llc_mb * 2**20)
    if least > may:
        with pytest.raises(memory.OutOfMemory, match="for K and V of one layer"):
            memory.plan_memory(needs, how, cold)
        return
    plan = memory.plan_memory(needs, how, cold)
    assert plan.pool_bytes == plan.layers * needs.layer
    assert plan.pool_bytes + plan.scratch_bytes + needs.rest <= may
    # cold is what it is called: so much is read between two calls of one layer
    between = (plan.layers - 1) * needs.distinct_bytes if plan.layers > 1 else plan.scratch_bytes
    if plan.l2 == "cold":
        assert cold is not None
        assert between >= cold - needs.distinct_bytes
    else:
        assert plan.notes[0].startswith("warm: ")


@ALL
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_ladder_stays_within_its_room_and_says_what_it_did_not_find(
    machine: Machine, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates of a made-up read: a cache of the machine's size before DRAM at 30 GB/s."""
    seen(machine, monkeypatch)
    llc = machine.llc_mb * 2**20
    asked: list[int] = []

    def rate(size: int) -> float:
        hit = max(0.0, 1 - max(0, size - llc) / (2 * llc))  # the last of it is gone at 3 caches
        return 1 / (hit / 150 + (1 - hit) / 30)

    def read(sizes: set[int], **_how: Any) -> dict[int, probes.Burst]:
        asked.extend(sizes)
        return {size: probes.Burst(rate(size), share) for size in sizes}

    monkeypatch.setattr(probes, "_read", read)
    monkeypatch.setattr(probes, "_rate_after", lambda _kind, scratch, _size: rate(scratch))
    monkeypatch.setattr(probes, "_known", {})
    room = int(0.8 * machine.limit_mb * 10**6)
    ladder = probes.measure_ladder(room=room)
    assert max(asked) <= room
    if 4 * llc * probes._GROWTH**2 <= room:
        assert ladder.dram_gb_per_s == pytest.approx(30, rel=0.05)
        assert ladder.cold_bytes is not None
        assert rate(ladder.cold_bytes) < 1.05 * 30
        assert ladder.why.startswith("this machine was busy" if share < 0.85 else "")
        assert bool(ladder.why) == (share < 0.85)
    elif 2 * llc > room:
        assert ladder.dram_gb_per_s is None
        assert ladder.cold_bytes is None
        assert ladder.why.startswith("no DRAM rate: ")
    # a rung that still falls is no DRAM rate
    assert ladder.dram_gb_per_s is None or ladder.dram_gb_per_s < 1.2 * 30


def run(machine: Machine, *words: str) -> tuple[int, int, str]:
    """Exit status, peak in bytes, and what a command said."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.made_up", *map(str, machine), *words],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
        env={**os.environ, "PYTHONPATH": path, "NUMBA_NUM_THREADS": str(machine.cores)},
    )  # fmt: skip
    peaks = re.findall(r"(?m)^peak (\d+)$", done.stderr)
    assert peaks, done.stderr
    return done.returncode, max(map(int, peaks)), done.stdout + done.stderr


def check(machine: Machine, *words: str) -> None:
    """The command does what it was asked or refuses it; it takes no more than it may."""
    status, peak, said = run(machine, *words)
    assert peak <= machine.limit_mb * 10**6, said
    assert status in (0, 3), said
    if status == 3:
        assert "for K and V of one layer" in said
        assert "left by a limit" in said


QUICK = ("decode", "--budget", "0.05")
# a small step; the campaign's default; one whose check in float64 is larger than its keys
STEPS = [
    ("--batch", "2", "--input-len", "32"),
    ("--batch", "2", "--input-len", "30000"),
    ("--batch", "1", "--input-len", "60000", "--model", "llama-3.1-8b", "--case", "private"),
]


@pytest.mark.parametrize("machine", [Machine(300, 2, 700), Machine(1, 64, 1000)], ids=str)
def test_a_small_step_takes_little(machine: Machine) -> None:
    check(machine, *QUICK, *STEPS[0])


@pytest.mark.slow
@ALL
@pytest.mark.parametrize("step", STEPS, ids=" ".join)
def test_no_command_takes_more_than_it_may(step: tuple[str, ...], machine: Machine) -> None:
    check(machine, *QUICK, *step)


@pytest.mark.slow
@ALL
def test_a_calibration_takes_no_more_than_it_may(machine: Machine) -> None:
    check(machine, "calibrate", "--budget", "0.05", "--dtype", "float32")
    check(machine, "calibrate", "--budget", "0.05", "--model", "llama-3.1-8b")


def test_a_limit_of_the_caller_is_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    seen(Machine(32, 2, 2000), monkeypatch)
    shape = ModelShape("small", num_layers=2, num_heads=4, num_kv_heads=2, head_size=64)
    how = How(backend="cpu", layout="NHD", order="request", memory_limit=2**26)
    needs = memory.asked_needs(100, 10, 160, shape, how, 16)
    plan = memory.plan_memory(needs, how, 40 * 10**6)
    assert plan.pool_bytes + plan.scratch_bytes + needs.rest <= 2**26
    tight = memory.plan_memory(needs, how, 2**26)
    assert (tight.l2, tight.layers) == ("warm", 1)
