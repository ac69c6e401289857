"""The background job, without a kernel and without widgets."""

import threading
import time
from collections.abc import Iterator

import pytest

from apclab import jobs
from apclab.jobs import Job


def count_to(n: int, pause: float = 0.0) -> Iterator[tuple[float, int]]:
    for i in range(1, n + 1):
        time.sleep(pause)
        yield i / n, i


def test_runs_to_the_end_in_another_thread() -> None:
    threads: set[int] = set()

    def steps() -> Iterator[tuple[float, int]]:
        threads.add(threading.get_ident())
        yield from count_to(3)

    job = Job("count")
    assert job.status == "idle"
    assert job.start(steps)
    assert job.wait(5)
    assert (job.status, job.progress, job.latest, job.error) == ("done", 1.0, 3, "")
    assert threads != {threading.get_ident()}
    assert job.remaining_s is None


def test_publishing_is_throttled_and_the_last_value_arrives() -> None:
    seen: list[tuple[str, int | None]] = []
    job = Job("flood", lambda: seen.append((job.status, job.latest)))
    job.start(lambda: count_to(1000, 0.0005))
    assert job.wait(10)
    assert len(seen) < 40
    assert seen[0] == ("running", None)
    assert seen[-1] == ("done", 1000)


def test_a_held_back_value_goes_out_with_the_next_look_at_cancelled() -> None:
    seen: list[int | None] = []
    job = Job("late", lambda: seen.append(job.latest), hz=20)

    def steps() -> Iterator[tuple[float, int]]:
        yield 0.5, 1  # too soon after the start
        while 1 not in seen and not job.cancelled():
            time.sleep(0.01)
        yield 1.0, 2

    job.start(steps)
    assert job.wait(5)
    assert seen[0] is None
    assert 1 in seen
    assert seen[-1] == 2


def test_cancel_between_and_inside_steps() -> None:
    job = Job("slow")

    def patient() -> Iterator[tuple[float, int]]:
        yield 0.1, 1
        while not job.cancelled():
            time.sleep(0.01)
        # leaves without a value: the step was given up

    for steps in (lambda: count_to(1000, 0.01), patient):
        assert job.start(steps)
        while job.latest is None:
            time.sleep(0.005)
        job.cancel()
        assert job.wait(2)
        assert job.status == "cancelled"
        assert 0 < job.progress < 1
    job.cancel()  # nothing runs: no effect on the next start
    job.start(lambda: count_to(2))
    assert job.wait(2)
    assert job.status == "done"


def test_an_error_is_kept_in_words_and_as_exception() -> None:
    def steps() -> Iterator[tuple[float, int]]:
        yield 0.5, 1
        raise ValueError("cache_hit must be between 0 and 1, got 1.2")

    job = Job("wrong")
    job.start(steps)
    assert job.wait(2)
    assert job.status == "error"
    assert job.error == "ValueError: cache_hit must be between 0 and 1, got 1.2"
    assert isinstance(job.exception, ValueError)
    assert job.latest == 1
    assert jobs.busy() == ""


def test_one_measuring_job_per_process() -> None:
    stop = threading.Event()

    def steps() -> Iterator[tuple[float, int]]:
        stop.wait(5)
        yield 1.0, 1

    first, second = Job("panel 1"), Job("panel 2")
    assert first.start(steps)
    assert jobs.busy() == "panel 1"
    assert not first.start(steps)
    assert not second.start(steps)
    assert second.status == "idle"
    stop.set()
    assert first.wait(2)
    assert jobs.busy() == ""
    assert second.start(lambda: count_to(1))
    assert second.wait(2)


def test_a_job_that_was_refused_hears_when_the_process_is_free() -> None:
    stop, heard = threading.Event(), list[str]()

    def steps() -> Iterator[tuple[float, int]]:
        stop.wait(5)
        yield 1.0, 1

    first = Job("panel 1")
    second = Job("panel 2", lambda: heard.append(jobs.busy()))
    assert first.start(steps)
    assert not second.start(steps)
    assert heard == []
    stop.set()
    assert first.wait(2)
    deadline = time.monotonic() + 5
    while not heard and time.monotonic() < deadline:
        time.sleep(0.01)
    assert heard == [""]
    assert first.start(lambda: count_to(1))
    assert first.wait(2)
    assert heard == [""]  # once


def test_whatever_runs_can_be_cancelled_without_its_name() -> None:
    assert jobs.cancel() == ""
    job = Job("slow")
    assert job.start(lambda: count_to(1000, 0.01))
    assert jobs.cancel() == "slow"
    assert job.wait(2)
    assert job.status == "cancelled"


def test_a_failing_picture_does_not_stop_the_measurement() -> None:
    def draw() -> None:
        raise ZeroDivisionError("bad picture")

    job = Job("blind", draw)
    assert job.start(lambda: count_to(3))
    assert job.wait(2)
    assert (job.status, job.latest) == ("done", 3)
    assert job.error == "ZeroDivisionError: bad picture"


def test_runs_inline_where_threads_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    job = Job("inline")
    assert job.start(lambda: count_to(3))
    assert (job.status, job.latest) == ("done", 3)


def test_an_interrupt_of_an_inline_run_frees_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    def steps() -> Iterator[tuple[float, int]]:
        yield 0.5, 1
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", refuse)
    job = Job("inline")
    with pytest.raises(KeyboardInterrupt):
        job.start(steps)
    assert job.status == "cancelled"
    assert jobs.busy() == ""


def test_remaining_time_is_that_of_the_last_whole_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job("pace")
    seen: list[float | None] = []
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def steps() -> Iterator[tuple[float, int]]:
        nonlocal now
        now += 30.0  # compiles
        job.report(0.1)
        seen.append(job.remaining_s)
        yield 0.25, 1
        seen.append(job.remaining_s)
        now += 1.5  # fills and checks: most of the time, hardly any progress
        job.report(0.26)
        seen.append(job.remaining_s)
        now += 0.5
        yield 0.5, 2
        seen.append(job.remaining_s)
        now += 1.5
        job.report(0.51)
        seen.append(job.remaining_s)
        now += 9.5  # longer than thought: only the step after it is left
        seen.append(job.remaining_s)
        yield 0.75, 3
        seen.append(job.remaining_s)
        yield 1.0, 4

    job.start(steps)
    assert job.wait(2)
    # a quarter in 2 s, then one in 11 s; nothing is known before the second one is whole
    assert seen == [None, None, None, 4.0, 2.5, 2.0, 11.0]


def test_a_rate_must_be_positive() -> None:
    with pytest.raises(ValueError, match="hz must be positive, got 0"):
        Job("never", hz=0)
