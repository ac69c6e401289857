"""One sweep as the steps of a job: the bench measures a point, the job hears of it. No widgets."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from apclab import bench
from apclab.clock import Cancelled
from apclab.jobs import Job
from apclab.results import Record
from apclab.widgets.settings import Settings


class Progress(NamedTuple):
    """Where a sweep is."""

    done: int  # points measured
    points: int  # of the whole sweep
    phase: str  # what the bench is doing, in its words


def sweep(
    settings: Settings, job: Job, add: Callable[[list[Record]], None]
) -> Iterator[tuple[float, Progress]]:
    """Measure every point; the records of a point arrive together.

    Args:
        settings: what to measure.
        job: told of progress inside a point, asked whether to stop.
        add: called with the records of each point, also of one that a cancel cut short.
    """
    xs, steps = settings.xs(), settings.steps()
    parts = len(xs) * len(steps)
    for done, x in enumerate(xs):
        point, records = settings.at(x), list[Record]()
        for part, step in enumerate(steps, start=done * len(steps)):

            def report(fraction: float, phase: str, part: int = part, done: int = done) -> None:
                job.report((part + fraction) / parts, Progress(done, len(xs), phase))

            try:
                records += bench.compare_decode(
                    point.workload,
                    point.shape,
                    cases=point.cases(),
                    backend=point.backend,
                    dtype=point.dtype,
                    block_size=point.block_size,
                    order=point.order,
                    l2=point.l2,
                    step=step,
                    budget_s=point.budget_s / len(steps),
                    cancelled=job.cancelled,
                    progress=report,
                )
            except Cancelled as stop:
                # what was timed before the stop is a measurement, its records say how short
                if kept := records + stop.records:
                    add(kept)
                return
        add(records)
        yield (done + 1) / len(xs), Progress(done + 1, len(xs), "")
