"""The clock: order of calls, cold and warm hooks, cancel, and what it says of the machine."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apclab import clock
from apclab.clock.machine import _commit_of, container_memory_left


def test_cases_alternate_and_layers_cycle() -> None:
    calls: list[str] = []
    cases = {name: [lambda s=f"{name}{i}": calls.append(s) for i in range(2)] for name in "ab"}
    samples = clock.interleave(cases, budget_s=0, min_rounds=3)
    # round 0 warms up; odd rounds go forwards, even ones backwards
    assert calls == ["b0", "a0", "a1", "b1", "b0", "a0", "a1", "b1"]
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}
    assert all(t >= 0 for times in samples.values() for t in times)


def test_between_sees_the_launch_that_comes_next() -> None:
    seen: list[object] = []
    launches = [lambda: None, lambda: None]
    clock.interleave({"a": launches}, budget_s=0, min_rounds=1, between=seen.append)
    assert seen == launches


def test_the_budget_ends_it_and_progress_reaches_one() -> None:
    told: list[float] = []
    samples = clock.interleave(
        {"a": [lambda: None]}, budget_s=0.01, max_rounds=10**7, progress=told.append
    )
    assert len(samples["a"]) >= 5
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_rounds_go_on_while_it_is_unsettled_and_patience_lasts() -> None:
    def rounds(patience: float) -> int:
        # the budget is over before the first round is
        samples = clock.interleave(
            {"a": [lambda: None]}, budget_s=1e-9, min_rounds=2, patience=patience,
            unsettled=lambda so_far: len(so_far["a"]) < 7,
        )  # fmt: skip
        return len(samples["a"])

    assert rounds(patience=1e15) == 7
    assert rounds(patience=1.0) == 2


def test_cancel_is_asked_before_every_call() -> None:
    calls: list[int] = []
    with pytest.raises(clock.Cancelled):
        clock.interleave(
            {"a": [lambda: calls.append(1)], "b": [lambda: calls.append(1)]},
            budget_s=60, cancelled=lambda: len(calls) >= 3,
        )  # fmt: skip
    assert len(calls) == 3


def test_a_case_needs_a_launch() -> None:
    with pytest.raises(ValueError, match=r"at least one launch, got \{'a': 0\}"):
        clock.interleave({"a": []}, budget_s=0)


def test_the_machine_is_described_in_plain_values() -> None:
    machine = clock.cpu()
    assert machine["cores"] >= 1
    assert machine["llc_bytes"] >= machine["l2_bytes"] >= 2**17
    said = clock.environment()
    assert said["python"].startswith("3.")
    assert said["versions"]["numpy"]
    assert clock.memory_available() > 2**20


def test_notebooks_do_not_make_a_checkout_dirty(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    for name in ("pyproject.toml", "apclab/a.py", "notebooks/a.ipynb", "data/notebooks/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "all")
    head, dirty = _commit_of(tmp_path)
    assert head is not None
    assert len(head) == 40
    assert dirty is False
    (tmp_path / "notebooks" / "a.ipynb").write_text("run and saved")
    assert _commit_of(tmp_path) == (head, False)
    for name in ("data/notebooks/a.csv", "apclab/a.py"):
        (tmp_path / name).write_text("new")
        assert _commit_of(tmp_path) == (head, True)
        (tmp_path / name).write_text("old")
    assert _commit_of(tmp_path / "apclab") == (None, None)


def write_group(
    folder: Path, limit: str, used: str, names: tuple[str, str], stat: str = ""
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(limit)
    (folder / names[1]).write_text(used)
    (folder / "memory.stat").write_text(stat)


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_a_container_limit_is_found_in_version_2(tmp_path: Path) -> None:
    member = tmp_path / "cgroup"
    member.write_text("0::/pod/box\n")
    write_group(tmp_path / "pod" / "box", "max\n", "10", V2)
    assert container_memory_left(tmp_path, member) is None
    # the outer group sets the limit; its file cache can be reclaimed
    write_group(tmp_path / "pod", "1000", "700", V2, stat="anon 5\ninactive_file 200\n")
    assert container_memory_left(tmp_path, member) == 500


def test_a_container_limit_is_found_in_version_1(tmp_path: Path) -> None:
    member = tmp_path / "cgroup"
    member.write_text("5:cpu:/x\n4:memory:/box\n")
    write_group(tmp_path / "memory" / "box", "5000", "4000", V1)
    write_group(tmp_path / "memory", str(2**63 - 4096), "1", V1)
    assert container_memory_left(tmp_path, member) == 1000


def test_inside_a_container_the_group_lies_at_the_root(tmp_path: Path) -> None:
    member = tmp_path / "cgroup"
    member.write_text("0::/not/visible/here\n")
    write_group(tmp_path, "300", "100", V2)
    assert container_memory_left(tmp_path, member) == 200


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert container_memory_left(tmp_path, tmp_path / "missing") is None


def test_a_timer_of_ones_own_times_the_launches() -> None:
    given = iter(range(100))
    called: list[int] = []

    def timer(launch: Callable[[], None]) -> float:
        launch()
        return float(next(given))

    samples = clock.interleave(
        {"a": [lambda: called.append(1)]}, budget_s=0, min_rounds=3, timer=timer
    )
    assert samples == {"a": [1.0, 2.0, 3.0]}  # the first was the warm-up
    assert len(called) == 4


def test_memory_is_known_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Any:
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    monkeypatch.setattr("psutil.virtual_memory", gone)
    # the function of that name hides the module
    monkeypatch.setattr(sys.modules["apclab.clock.machine"], "_read", lambda _path: None)
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < clock.memory_available() <= pages


def test_a_neighbour_shows_in_the_share_of_the_cores() -> None:
    with clock.CpuShare(1) as alone:
        total = sum(i * i for i in range(300_000))
    with clock.CpuShare(1) as idle:
        time.sleep(0.05)
    assert total
    assert alone.value is not None
    assert idle.value is not None
    # sleeping is what a process does whose core somebody else has
    assert idle.value < 0.5 * alone.value <= 1.1
