"""A function over a grid of points, here or on a Dask cluster; finished points survive a kill.

Each finished point is appended to the results file under its key, so a sweep that was stopped goes
on where it was. No measuring of its own, no clock.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from apclab.arguments import function_or_none, instance, shown
from apclab.results import append, load

Point = dict[str, Any]
Grid = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
# a point and its key take about 2 kB here, and at least as much of the file
_MOST_POINTS = 100_000
# points that wait on the cluster for each of its threads: enough to keep it busy, little to cancel
_AHEAD = 4


def points_of(grid: Grid) -> list[Point]:
    """Every point of a grid: the product of named values, or the points as they are listed.

    Raises:
        TypeError: it is no grid.
        ValueError: there is no point, there are too many, or JSON cannot hold one.
    """
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            _check_sequence(f"grid[{name!r}]", values)
        count = math.prod(map(len, grid.values()))
    else:
        _check_sequence("grid", grid)
        count = len(grid)
    if not count:
        raise ValueError("grid must hold at least one point, got none")
    if count > _MOST_POINTS:
        raise ValueError(
            f"grid must hold at most {_MOST_POINTS:,} points, got {count:,}; "
            f"cut it into several sweeps"
        )
    if isinstance(grid, Mapping):
        points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    else:
        points = [dict(instance("a point of grid", point, Mapping, "a mapping")) for point in grid]
    for point in points:
        key_of("", point)
    return points


def _check_sequence(name: str, values: object) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a sequence of values, got {shown(values)}")


def key_of(name: str, point: Point) -> str:
    """What a finished point is known by: a digest of the function's name and its arguments.

    Raises:
        ValueError: JSON cannot hold the point.
    """
    try:
        text = json.dumps([name, point], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a point must hold what JSON can, got {point!r}: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sweep(
    function: Callable[..., Any],
    grid: Grid,
    path: Path | str,
    *,
    client: Any = None,
    scheduler: str | None = None,
    check: Callable[[Any], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[dict[str, Any]]:
    """Call a function at every point of a grid and keep each result as soon as it is there.

    Args:
        function: called with the point's values by name; returns what JSON can hold. For a cluster
            it must live in a module that the workers can import, or be one that pickle can carry.
        grid: {name: values}, all combinations; or a list of points.
        path: JSON Lines, a line a finished point; what it holds already is not done again. Points
            that failed are.
        client: a `distributed.Client` to use; it stays open.
        scheduler: address of a Dask scheduler, "tcp://host:8786", instead of a client.
        check: raises ValueError, naming what is wrong, for a result that the file holds and the
            function cannot have given.
        cancelled: asked between points; once true, what is not begun is left out.
        progress: told the part done, 0 to 1, and the point that was finished.

    Returns:
        A row a finished point, in the grid's order: "key", "function", "point", and "result" or
        "error", its words.

    Raises:
        ModuleNotFoundError: a cluster is asked for and dask is missing.
        OSError: the file cannot be written, or no scheduler answers.
        TypeError: an argument is of another type.
        ValueError: the grid is empty, too large or holds what JSON cannot; both client and
            scheduler; the path is a folder; or the file holds something else under a point's key.
    """
    if not callable(function) or not hasattr(function, "__qualname__"):
        raise TypeError(f"function must be a function with a name, got {shown(function)}")
    path = Path(instance("path", path, str | os.PathLike, "a path"))
    for at, value in (("check", check), ("cancelled", cancelled), ("progress", progress)):
        function_or_none(at, value)
    if path.is_dir():
        raise ValueError(f"path must be a file, got the folder {path}")
    if scheduler is not None:
        instance("scheduler", scheduler, str, "an address or None")
    if client is not None and scheduler is not None:
        raise ValueError(f"either client or scheduler, got both (scheduler {scheduler!r})")
    if client is not None and not hasattr(client, "submit"):
        raise TypeError(f"client must be a distributed.Client or None, got {shown(client)}")
    name = f"{function.__module__}.{function.__qualname__}"
    points = {key_of(name, point): point for point in points_of(grid)}
    done = {row["key"]: row for row in _known(path) if "result" in row and row["key"] in points}
    for key, row in done.items():
        _check_known(path, row, name, points[key], check)
    todo = {key: point for key, point in points.items() if key not in done}
    if progress and done:
        progress(len(done) / len(points), f"{len(done)} points were there already")
    for key, outcome in _outcomes(function, todo, client, scheduler, cancelled):
        row = {"key": key, "function": name, "point": points[key], **outcome}
        append(path, [row], check=check_row)
        done[key] = row
        if progress:
            said = ", ".join(f"{at}={value}" for at, value in points[key].items())
            progress(len(done) / len(points), said)
    return [done[key] for key in points if key in done]


def check_row(row: dict[str, Any]) -> None:
    """Check a line of a sweep's file; ValueError names the field."""
    if not isinstance(row, dict):
        raise ValueError(f"a row must be an object, got {type(row).__name__}")
    for name, kind in (("key", str), ("function", str), ("point", dict)):
        if not isinstance(row.get(name), kind):
            raise ValueError(f"{name} must be a {kind.__name__}, got {row.get(name)!r}")
    if ("result" in row) == ("error" in row):
        raise ValueError("a row must hold either result or error")


def _check_known(
    path: Path, row: dict[str, Any], name: str, point: Point, check: Callable[[Any], None] | None
) -> None:
    """ValueError where the file has something else under a key than what the key stands for."""
    try:
        if (row["function"], row["point"]) != (name, point):
            raise ValueError(f"it is of {row['function']} at {shown(row['point'])}")
        if check is not None:
            check(row["result"])
    except ValueError as error:
        raise ValueError(
            f"{path}: what it holds under the key {row['key']} is no result of {name} at "
            f"{shown(point)}: {error}; take another file, or remove that line"
        ) from None


def _known(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows, _ = load(path, check=check_row)
    return rows


def _outcomes(
    function: Callable[..., Any],
    todo: dict[str, Point],
    client: Any,
    scheduler: str | None,
    cancelled: Callable[[], bool] | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and {"result"} or {"error"} of each point, as they come."""
    if client is None and scheduler is None:
        for key, point in todo.items():
            if cancelled and cancelled():
                return
            yield key, _attempt(function, point)
        return
    if client is not None:
        yield from _on_cluster(function, todo, client, cancelled)
        return
    if not todo:
        return
    from distributed import Client

    with Client(scheduler, timeout="10s") as opened:
        yield from _on_cluster(function, todo, opened, cancelled)


def _attempt(function: Callable[..., Any], point: Point) -> dict[str, Any]:
    try:
        result = function(**point)
        json.dumps(result, allow_nan=False)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"result": result}


def _on_cluster(
    function: Callable[..., Any],
    todo: dict[str, Point],
    client: Any,
    cancelled: Callable[[], bool] | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A few points a thread are on the cluster at a time; a point whose worker died is an error."""
    from distributed import as_completed

    waiting = iter(todo.items())
    keys: dict[Any, str] = {}

    def submit() -> Any:
        for key, point in waiting:
            # the point's own key, so that two sweeps over one cluster share nothing by accident
            future = client.submit(_attempt, function, point, key=f"apclab-{key}", pure=False)
            keys[future] = key
            return future
        return None

    ahead = max(1, sum(client.nthreads().values())) * _AHEAD
    running = as_completed([future for future in (submit() for _ in range(ahead)) if future])
    try:
        for future in running:
            key = keys.pop(future)
            try:
                outcome = future.result()
            except Exception as error:
                outcome = {"error": f"{type(error).__name__}: {error}"}
            future.release()
            yield key, outcome
            if cancelled and cancelled():
                return
            if (following := submit()) is not None:
                running.add(following)
    finally:
        client.cancel(list(keys))
