"""Repeated timing of launches, A B A B, so that a drifting machine drifts for both."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, process_time
from types import TracebackType
from typing import Any


class Cancelled(Exception):  # noqa: N818 - somebody's wish, not an error
    """The caller asked to stop.

    Attributes:
        samples: what `interleave` had timed until then, in seconds.
        records: what `apclab.bench` made of it.
    """

    def __init__(
        self, message: str = "stopped", samples: dict[str, list[float]] | None = None
    ) -> None:
        super().__init__(message)
        self.samples = samples or {}
        self.records: list[dict[str, Any]] = []


def wall_time(launch: Callable[[], None]) -> float:
    """Seconds that a call takes; right for launches that return when they are done."""
    begin = perf_counter()
    launch()
    return perf_counter() - begin


class CpuShare:
    """How much of its cores a process got while something ran; below 1 where others had them.

    Attributes:
        value: CPU time of all threads / (time that passed x threads); None before the end.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.value: float | None = None

    def __enter__(self) -> "CpuShare":
        self._wall, self._cpu = perf_counter(), process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wall = max(perf_counter() - self._wall, 1e-9)
        self.value = (process_time() - self._cpu) / wall / self._threads


def interleave(
    cases: Mapping[str, Sequence[Callable[[], None]]],
    *,
    budget_s: float,
    between: Callable[[Callable[[], None]], None] | None = None,
    timer: Callable[[Callable[[], None]], float] | None = None,
    min_rounds: int = 5,
    max_rounds: int = 1000,
    unsettled: Callable[[Mapping[str, Sequence[float]]], bool] | None = None,
    patience: float = 3.0,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, list[float]]:
    """Time each case again and again, one call a case and round, within a budget.

    Every other round goes through the cases backwards, so that no case always follows the same
    one. Round r takes launch r of a case, cycling: the launches of a case differ in the memory
    that they read (layers), not in the work.

    Args:
        cases: name -> launches; a launch takes no argument and returns when it is done.
        budget_s: seconds after which no new round starts, once min_rounds are done.
        between: called untimed before each timed call, with the launch that comes next: to empty
            a cache, or to warm it.
        timer: calls a launch and returns its seconds; the wall's clock if None.
        min_rounds: rounds in any case.
        max_rounds: rounds at most.
        unsettled: asked once the budget is spent, with the samples so far; true asks for one more
            round, until `patience` budgets are spent.
        patience: budgets that may be spent while it is unsettled.
        cancelled: asked between calls; true stops.
        progress: told the part of the work done, 0 to 1.

    Returns:
        Name -> seconds of each timed call, in order. A first round warms up and is left out.

    Raises:
        Cancelled: `cancelled` said so.
        ValueError: no case, or a case without launches.
    """
    if not cases or not all(cases.values()):
        raise ValueError(f"each case needs at least one launch, got {_counts(cases)}")
    samples: dict[str, list[float]] = {name: [] for name in cases}
    forwards = list(cases)
    start = perf_counter()
    for turn in range(max_rounds + 1):
        for name in forwards if turn % 2 else forwards[::-1]:
            if cancelled is not None and cancelled():
                raise Cancelled("stopped between two timed calls", samples)
            launch = cases[name][turn % len(cases[name])]
            if between is not None:
                between(launch)
            if timer is None:  # as `wall_time`, without a call between the clock and the launch
                begin = perf_counter()
                launch()
                seconds = perf_counter() - begin
            else:
                seconds = timer(launch)
            if turn > 0:
                samples[name].append(seconds)
        spent = perf_counter() - start
        if progress is not None:
            progress(min(1.0, max(spent / budget_s if budget_s else 1.0, 0.0)))
        if turn < min_rounds or spent < budget_s:
            continue
        if unsettled is None or spent >= patience * budget_s or not unsettled(samples):
            break
    return samples


def _counts(cases: Mapping[str, Sequence[Callable[[], None]]]) -> dict[str, int]:
    return {name: len(launches) for name, launches in cases.items()}
