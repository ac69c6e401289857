"""Sweeps over a grid, in process and on a real local Dask cluster: resumed, stopped, failing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apclab import results
from apclab.sweep import check_row, key_of, points_of, sweep
from tests.sweep_points import called, product_of

GRID: dict[str, Any] = {"a": [1, 2, 3], "b": [10, 20]}


def test_all_points_are_done_once_and_in_order(tmp_path: Path) -> None:
    path, log = tmp_path / "s.jsonl", tmp_path / "log"
    grid: dict[str, Any] = {**GRID, "log": [str(log)]}
    rows = sweep(product_of, grid, path)
    assert [row["result"]["product"] for row in rows] == [10, 20, 20, 40, 30, 60]
    assert sweep(product_of, grid, path) == rows
    assert len(called(log)) == 6  # the second time all were known


def test_a_stopped_sweep_goes_on(tmp_path: Path) -> None:
    path, log = tmp_path / "s.jsonl", tmp_path / "log"
    grid: dict[str, Any] = {**GRID, "log": [str(log)]}
    told: list[float] = []
    first = sweep(
        product_of, grid, path, cancelled=lambda: len(told) == 2,
        progress=lambda part, _text: told.append(part),
    )  # fmt: skip
    assert len(first) == 2
    assert len(sweep(product_of, grid, path)) == 6
    assert len(called(log)) == 6


def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    """Killed for good in the middle, then resumed: no finished point is lost or done twice."""
    path, log = tmp_path / "s.jsonl", tmp_path / "log"
    code = (
        "from apclab.sweep import sweep; from tests.sweep_points import product_of\n"
        f"sweep(product_of, {{'a': list(range(50)), 'b': [1], 'log': [{str(log)!r}],"
        f" 'wait_s': [0.05]}}, {str(path)!r})"
    )
    root = Path(__file__).resolve().parents[1]
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=root)
    while not path.exists() or path.read_text().count("\n") < 3:
        assert worker.poll() is None
        time.sleep(0.02)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    before, _ = results.load(path, check=check_row)
    assert len(before) < 50
    grid: dict[str, Any] = {"a": list(range(50)), "b": [1], "log": [str(log)], "wait_s": [0.05]}
    rows = sweep(product_of, grid, path)
    assert [row["result"]["product"] for row in rows] == list(range(50))
    # the point that was under way when the kill came may have been done without being kept
    assert 50 <= len(called(log)) <= 51


def test_a_point_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    path, log = tmp_path / "s.jsonl", tmp_path / "log"
    grid: dict[str, Any] = {"a": [1, -1, 2], "b": [1], "log": [str(log)]}
    rows = sweep(product_of, grid, path)
    assert rows[1]["error"] == "ValueError: a must be at least 0, got -1"
    assert [row["result"]["product"] for row in (rows[0], rows[2])] == [1, 2]
    sweep(product_of, grid, path)
    assert len(called(log)) == 4  # only the failed one again


def test_a_torn_line_costs_its_point_alone(tmp_path: Path) -> None:
    path, log = tmp_path / "s.jsonl", tmp_path / "log"
    grid: dict[str, Any] = {**GRID, "log": [str(log)]}
    sweep(product_of, grid, path)
    path.write_text(path.read_text()[:-20])
    assert len(sweep(product_of, grid, path)) == 6
    assert len(called(log)) == 7


def test_another_function_is_another_sweep(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    sweep(product_of, {"a": [1], "b": [1]}, path)
    assert key_of("f", {"a": 1}) != key_of("g", {"a": 1})
    assert key_of("f", {"a": 1, "b": 2}) == key_of("f", {"b": 2, "a": 1})


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="grid must hold at least one point"):
        points_of({"a": []})
    with pytest.raises(ValueError, match="a point must hold what JSON can"):
        sweep(product_of, {"a": [object()], "b": [1]}, tmp_path / "s")
    with pytest.raises(ValueError, match="a point must hold what JSON can"):
        points_of([{"a": float("nan")}])
    with pytest.raises(TypeError, match=r"client must be a distributed\.Client or None"):
        sweep(product_of, GRID, tmp_path / "s", client=object())
    with pytest.raises(ValueError, match="either client or scheduler"):
        sweep(product_of, GRID, tmp_path / "s", client=object(), scheduler="tcp://x:1")
    with pytest.raises(ValueError, match="either result or error"):
        check_row({"key": "k", "function": "f", "point": {}})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
        host="127.0.0.1", silence_logs=50,
    ) as running:  # fmt: skip
        yield running


@pytest.mark.slow
def test_on_a_real_cluster(tmp_path: Path, cluster: Any) -> None:
    from distributed import Client

    path, log = tmp_path / "s.jsonl", tmp_path / "log"
    grid: dict[str, Any] = {"a": list(range(30)), "b": [2], "log": [str(log)]}
    with Client(cluster) as client:
        some = sweep(product_of, {**grid, "a": [3, 4]}, path, client=client)
        assert [row["result"]["product"] for row in some] == [6, 8]
        rows = sweep(product_of, grid, path, client=client)
        assert [row["result"]["product"] for row in rows] == [2 * a for a in range(30)]
        assert len(called(log)) == 30
        # by more than one process, none of them this one
        assert len({row["result"]["pid"] for row in rows} - {os.getpid()}) == 2
        assert client.status == "running"  # the caller's client stays open
        bad = sweep(product_of, {**grid, "a": [-5]}, path, client=client)
        assert bad[0]["error"] == "ValueError: a must be at least 0, got -5"


@pytest.mark.slow
def test_by_the_address_of_a_scheduler(tmp_path: Path, cluster: Any) -> None:
    rows = sweep(product_of, GRID, tmp_path / "s.jsonl", scheduler=cluster.scheduler_address)
    assert len(rows) == 6
    stopped = sweep(
        product_of, {"a": list(range(200)), "b": [1]}, tmp_path / "t.jsonl",
        scheduler=cluster.scheduler_address, cancelled=lambda: True,
    )  # fmt: skip
    assert len(stopped) == 1
    assert len(sweep(product_of, GRID, tmp_path / "s.jsonl", scheduler="tcp://nowhere:1")) == 6


@pytest.mark.slow
def test_a_point_that_kills_its_worker_is_told(tmp_path: Path, cluster: Any) -> None:
    from distributed import Client

    with Client(cluster) as client:
        grid = [{"a": 1, "b": 1}, {"a": 2, "b": 1, "die": True}, {"a": 3, "b": 1}]
        rows = sweep(product_of, grid, tmp_path / "s.jsonl", client=client)
        assert len(rows) == 3
        assert "KilledWorker" in rows[1]["error"]
        # who shared a worker with it may have been counted out, too, and is done the next time
        others = sweep(product_of, [grid[0], grid[2]], tmp_path / "s.jsonl", client=client)
    assert [row["result"]["product"] for row in others] == [1, 3]
