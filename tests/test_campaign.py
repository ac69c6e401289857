"""The campaign: in order, within its budget, whatever fails; and it needs no more than it says."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apclab import bench, campaign, results
from apclab.campaign import Context, Item, Settings, child, command, items, run, run_campaign
from apclab.campaign.table import roofline_rows, screen
from apclab.clock import Cancelled
from apclab.workload import Workload
from tests import campaign_items
from tests.sample_records import sample_calibration, sample_pair, sample_record

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = Settings(backend="reference")
LADDER = [
    {"level": level, "footprint_bytes": 2**24, "gb_per_s": rate, "threads": None}
    for level, rate in (("L2", 4640.0), ("DRAM", 2000.0))
]


def item(act: Callable[[Context], None], share: float = 1.0, least_s: float = 0.0) -> Item:
    return Item(act.__name__, act, share, least_s)


def run_items(path: Path, *acts: Callable[[Context], None], **how: Any) -> campaign.Campaign:
    settings: dict[str, Any] = {"budget_s": 60.0, "settings": REFERENCE} | how
    return run_campaign(path / "c.jsonl", items=[item(act) for act in acts], **settings)


def ends(done: campaign.Campaign) -> dict[str, tuple[str, str]]:
    return {end["item"]: (end["status"], end["reason"]) for end in done.ends}


def test_what_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    acts = ("good", "raises", "exits", "killed", "loses", "partly", "counts")
    done = run_items(tmp_path, *(getattr(campaign_items, name) for name in acts))
    found = ends(done)
    assert found["good"] == ("done", "")
    assert found["raises"] == ("failed", "ZeroDivisionError: one line")
    assert found["exits"] == ("failed", "the process ended with status 7")
    assert found["killed"][0] == "failed"
    assert "killed by signal 9 (out of memory?)" in found["killed"][1]
    assert found["loses"][1].startswith("CUDA error: an illegal memory access")
    assert found["partly"] == ("part", "1/0: ZeroDivisionError: division by zero")
    assert found["counts"] == ("done", "")
    assert found["reuse roofline"] == ("left out", "no step was measured")
    # what came before the crash is kept, and everything is in the file
    assert done.ends[3]["rows"] == [{"seen": True}]
    assert results.load(tmp_path / "c.jsonl", kind="campaign") == (done.ends, [])
    assert not done.wrong


def test_what_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "GRACE_S", 0.3)
    done = run_items(tmp_path, campaign_items.hangs, campaign_items.good, budget_s=5.0)
    assert ends(done)["hangs"] == ("failed", "not done 0 s after its time was over")
    assert ends(done)["good"][0] in ("done", "left out")


def test_a_device_that_is_gone_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, calls = run._start, []

    def once(*arguments: Any) -> Any:
        calls.append(arguments)
        return start(*arguments) if len(calls) == 1 else (None, "CUDA error: unknown error")

    monkeypatch.setattr(run, "_start", once)
    acts = (campaign_items.loses, campaign_items.good, campaign_items.counts)
    done = run_items(tmp_path, *acts)
    assert ends(done)["loses"][0] == "failed"
    for name in ("good", "counts"):
        assert ends(done)[name] == ("lost", "device lost: CUDA error: unknown error")
    assert len(calls) == 2


def test_time_is_shared_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    asked = [item(campaign_items.counts, 0.01), item(campaign_items.good, 10.0)]
    asked.append(item(campaign_items.patient, 1.0, 1e6))
    again = Item("again", campaign_items.counts, 100.0, 0.0)
    done = run_campaign(
        tmp_path / "c.jsonl", budget_s=30.0, items=[*asked, again], settings=REFERENCE
    )
    # its share of the time is less than a second point takes
    status, why = ends(done)["counts"]
    assert (status, why) == ("part", "no time for 4 of 5 points")
    assert ends(done)["good"][0] == "done"
    status, why = ends(done)["patient"]
    assert status == "left out"
    assert why.startswith("no time: ")
    # the same work, asked for again, goes on where it stopped
    assert ends(done)["again"] == ("done", "")
    assert [row["point"] for row in done.ends[3]["rows"]] == [1, 2, 3, 4]


def test_a_wish_to_stop_keeps_what_was_done(tmp_path: Path) -> None:
    begun: list[str] = []

    def stop() -> bool:
        return "patient (2 of 3" in " ".join(begun)

    acts = (campaign_items.good, campaign_items.patient, campaign_items.counts)
    done = run_items(tmp_path, *acts, stop=stop, tell=begun.append)
    assert done.stopped
    assert ends(done)["good"] == ("done", "")
    assert ends(done)["patient"] == ("stopped", "Ctrl-C")
    assert ends(done)["counts"] == ("stopped", "Ctrl-C before it began")
    assert done.seconds < 30


def test_nothing_to_measure_with_is_said(tmp_path: Path) -> None:
    with pytest.raises(child.Missing, match="ValueError: dtype must be one of float32"):
        run_items(tmp_path, campaign_items.good, settings=Settings(dtype="fp8"))


# --- the items


def context(sent: list[tuple[str, Any]], **changes: Any) -> Context:
    now = time.monotonic()
    usual: dict[str, Any] = {
        "settings": REFERENCE, "kind": "cpu", "backend": "cpu", "cases": ("private", "shared"),
        "end": now + 60, "last": now + 60, "first": 0, "asked_to_stop": lambda: False,
        "send": lambda what, thing: sent.append((what, thing)),
    }  # fmt: skip
    return Context(**usual | changes)


def test_each_failure_of_a_measurement_costs_its_point(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [
        bench.OutOfMemory("2,001 blocks"), bench.WrongResult("case shared"), RuntimeError("CUDA"),
        sample_pair(382.0, 252.5),
    ]  # fmt: skip
    released: list[bool] = []

    def compare(*_: Any, **__: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(bench, "compare_decode", compare)
    monkeypatch.setattr(bench, "release", lambda: released.append(True))
    sent: list[tuple[str, Any]] = []
    at = context(sent)
    for number in at.points(range(4)):
        items.compare(at, Workload(), f"point {number}")
    failed = [thing["failed"] for what, thing in sent if what == "row" and "failed" in thing]
    assert failed == [
        "OutOfMemory: 2,001 blocks", "WrongResult: case shared", "RuntimeError: CUDA",
    ]  # fmt: skip
    assert released == [True]
    assert [what for what, _ in sent if what == "records"] == ["records"]
    gains = {"private_us": 382.0, "noisy": [], "shared_us": 252.5, "shared": 382.0 / 252.5}
    assert sent[-1] == ("row", {"point": "point 3"} | gains)
    assert at.done == 1


def test_without_a_cascade_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*_: Any, cases: tuple[str, ...], **__: Any) -> Any:
        if "cascade" in cases:
            raise RuntimeError("no such kernel")
        return sample_pair(382.0, 252.5)

    monkeypatch.setattr(bench, "compare_decode", compare)
    sent: list[tuple[str, Any]] = []
    at = context(sent, cases=("private", "shared", "cascade"))
    assert items.compare(at, Workload(), "issue") is not None
    assert at.failures == ["issue: RuntimeError: no such kernel"]


def test_a_device_that_does_not_answer_ends_the_item(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(bench, "device_answers", fails)
    with pytest.raises(campaign.context.DeviceLost, match=r"ZeroDivisionError.*after it: Runtime"):
        context([], kind="cuda").attempt("x", lambda: 1 / 0)


def test_a_stopped_measurement_hands_on_what_it_has() -> None:
    def stopped() -> None:
        stop = Cancelled()
        stop.records = sample_pair(382.0, 252.5)
        raise stop

    sent: list[tuple[str, Any]] = []
    at = context(sent)
    assert at.attempt("issue", stopped) is None
    assert [what for what, _ in sent] == ["progress", "records"]
    assert at.left_out == "stopped at: issue"


def test_the_grid_begins_with_one_change_at_a_time() -> None:
    points, large = items._grid(Settings())
    assert points[0] == (100, 300, 1.0, "llama-13b")
    changes = [sum(a != b for a, b in zip(p, points[0], strict=True)) for p in points]
    assert changes == sorted(changes)
    assert len(points) == len(set(points))
    # 256 requests of 4000 tokens, 820 kB each: 21 GB
    assert large > 0
    assert (256, 4000, 1.0, "llama-13b") not in points


@pytest.mark.slow
def test_small_and_real(tmp_path: Path) -> None:
    small = Settings(
        backend="cpu", model="qwen3-0.6b", dtype="float32", most_bytes=3 * 10**6,
        workload=Workload(batch=8, input_len=63, output_len=4),
    )  # fmt: skip
    chosen = [one for one in campaign.ITEMS if one.name in ("doctor", "issue 4860")]
    done = run_campaign(tmp_path / "c.jsonl", budget_s=300.0, items=chosen, settings=small)
    by = {end["item"]: end for end in done.ends}
    assert [rung["level"] for rung in by["doctor"]["rows"][1]["ladder"]] == ["L2", "L3", "DRAM"]
    records, problems = results.load(tmp_path / "c.jsonl")
    assert problems == []
    assert records == done.records
    assert {"private", "shared"} <= {record["case"] for record in records}
    assert by["reuse roofline"]["rows"] == roofline_rows(records)
    assert_fits(screen(done))


@pytest.mark.slow
def test_every_item_on_this_machine(tmp_path: Path) -> None:
    small = Settings(
        backend="cpu", model="qwen3-0.6b", dtype="float32", most_bytes=3 * 10**6,
        workload=Workload(batch=8, input_len=63, output_len=4),
    )  # fmt: skip
    asked = [one._replace(least_s=min(one.least_s, 2.0)) for one in campaign.ITEMS]
    done = run_campaign(tmp_path / "c.jsonl", budget_s=60.0, items=asked, settings=small)
    assert done.seconds < 60 + run.GRACE_S
    for name, (status, why) in ends(done).items():
        known = why.startswith(("no time", "needs cuda"))
        assert status == "done" or known, (name, status, why)
    assert ends(done)["ncu"] == ("left out", "needs cuda")
    assert {record["probe"] for record in done.rates} == set(results.PROBES)
    assert_fits(screen(done))


# --- the screen


def assert_fits(text: str) -> None:
    lines = text.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_the_screen_holds_whatever_happens(tmp_path: Path) -> None:
    done = campaign.Campaign(tmp_path / ("x" * 90) / "c.jsonl", 480.0)
    done.facts = {"device": {"name": "a device " * 20, "cores": 2}, "backend": "cpu"}
    done.records = sample_pair(382.0, 252.5) + [
        record for batch in range(2, 40) for record in sample_pair(300.0, 200.0, batch=batch)
    ]
    done.rates = [sample_calibration(probe) for probe in results.PROBES]
    for record in done.records:
        record["device"]["ladder"] = LADDER
    for one in campaign.ITEMS:
        rows: list[dict[str, Any]] = [
            {"point": "p", "shared": 1.5, "cascade": 2.0, "noisy": ["cascade"]}
        ]
        rows.append({"within": True, "used": 0.5})
        run._close(done, one, "part", "why\n" * 50, 123.4, rows)
    run._roofline(done)
    text = screen(done)
    assert_fits(text)
    for one in campaign.ITEMS:
        assert one.name in text
    assert "shared x1.50, cascade x2.00 (cascade: noise)" in text
    assert "own 20, shared 20, one block 20; launch" in text
    assert len(text.splitlines()) == 21


def test_the_roofline_in_numbers() -> None:
    records = sample_pair(382.0, 252.5)
    one, other = roofline_rows(records)
    table = results.frame(records)
    assert [(row["x"], row["y"]) for row in (one, other)] == list(
        zip(table["x"], table["y"], strict=True)
    )
    assert one["x"] == 1.0
    assert other["x"] == pytest.approx(635.904 / 96)
    assert other["y"] == pytest.approx(635_904_000 / 252.5 / 1e3 / 2039)
    # without a rate of DRAM there is no place
    assert roofline_rows(sample_pair(382.0, 252.5, dram_gb_per_s=None)) == []


def test_of_several_points_the_median_gain_is_told_and_how_many_are_noise(tmp_path: Path) -> None:
    done = campaign.Campaign(tmp_path / "c.jsonl", 1.0)
    done.facts = {"device": {"name": "a device", "cores": 2}, "backend": "cpu"}
    gains: tuple[tuple[float, list[str]], ...] = ((1.0, []), (1.4, ["shared"]), (19.3, []))
    rows = [{"point": f"p{i}", "shared": r, "noisy": noisy} for i, (r, noisy) in enumerate(gains)]
    (grid,) = (item for item in campaign.ITEMS if item.name == "grid")
    run._close(done, grid, "done", "", 1.0, rows)
    assert "median of 3: shared x1.40; 1 noisy" in screen(done)


def test_a_gain_within_the_noise_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    records = sample_pair(382.0, 282.0)
    records[1] |= {"samples_us": [200.0, 400.0], "p80_us": 400.0}
    monkeypatch.setattr(bench, "compare_decode", lambda *_, **__: records)
    sent: list[tuple[str, Any]] = []
    items.compare(context(sent), Workload(), "p")
    assert sent[-1][1]["noisy"] == ["shared"]


def test_wrong_results_are_remembered(tmp_path: Path) -> None:
    done = campaign.Campaign(tmp_path / "c.jsonl", 1.0)
    run._close(done, campaign.ITEMS[1], "part", "x", 0.0, [{"within": False}])
    assert done.wrong


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "fine"}, "status must be one of done, part, failed, left out, lost, stopped"),
        ({"status": "done", "reason": "x"}, "reason must say why, and be empty where status is"),
        ({"status": "failed", "reason": ""}, "reason must say why"),
        ({"rows": [1]}, "rows must be a list of objects of plain JSON values"),
        ({"seconds": -1}, "seconds must be a finite number >= 0"),
    ],
)
def test_a_bad_end_of_an_item_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    done = campaign.Campaign(tmp_path / "c.jsonl", 1.0)
    run._close(done, campaign.ITEMS[0], "done", "")
    with pytest.raises(ValueError, match=message):
        results.validate(done.ends[0] | change)


# --- the command


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--time-budget", "0"], "--time-budget must be a number of seconds > 0, got 0"),
        (["--time-budget", "-3"], "--time-budget must be a number of seconds > 0, got -3"),
        (["--time-budget", "nan"], "got nan"),
        (["--time-budget", "inf"], "got inf"),
        (["--time-budget", "soon"], "invalid float value"),
        (["--items", "grid,gird"], "--items must be some of doctor, correctness"),
        (["--model", "lama-13b"], "did you mean llama-13b"),
        (["--dtype", "fp8"], "invalid choice"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_bad_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert campaign.main(["--out", str(tmp_path), *argv]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("apclab: ")
    assert words in line
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert campaign.main(["--out", str(tmp_path / "file" / "folder")]) == 2
    assert "--out: cannot write" in capsys.readouterr().err
    assert campaign.main([]) == 2


def test_help_lists_the_items(capsys: pytest.CaptureFixture[str]) -> None:
    from apclab.cli import run as run_command

    assert run_command(["campaign", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "correctness" in shown
    assert "--time-budget" in shown


# numpy, torch and triton alone, as a GPU machine may have it: what Python finds is cut short, in
# every process that is started
_BLOCKER = """
import importlib.machinery as machinery
find, missing = machinery.PathFinder.find_spec, set({missing!r})
def without(name, path=None, target=None):
    return None if name.partition(".")[0] in missing else find(name, path, target)
machinery.PathFinder.find_spec = staticmethod(without)
"""
_MISSING = (
    *(
        "typer",
        "click",
        "rich",
        "pandas",
        "plotly",
        "psutil",
        "packaging",
        "ipywidgets",
        "anywidget",
    ),
    *("IPython", "jupyterlab", "dask", "scipy", "kaleido", "pytest", "hypothesis"),
)


def environment(tmp_path: Path, *missing: str) -> dict[str, str]:
    (tmp_path / "sitecustomize.py").write_text(_BLOCKER.format(missing=[*_MISSING, *missing]))
    paths = [str(tmp_path), str(ROOT), str(ROOT / "kernels")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.slow
def test_it_needs_numpy_and_a_backend_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = [sys.executable, "-m", "apclab", "campaign", "--out", str(out), "--backend", "cpu"]
    argv += ["--dtype", "float32", "--time-budget", "15", "--items", "correctness"]
    done = subprocess.run(
        argv, env=environment(tmp_path, "torch", "triton"), capture_output=True, text=True,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "within their bounds" in done.stdout
    assert_fits(done.stdout)
    (records,) = out.glob("*.jsonl")
    assert done.stdout.strip() == records.with_suffix(".txt").read_text().strip()
    # and without numba there is no backend
    done = subprocess.run(
        argv, env=environment(tmp_path, "numba"), capture_output=True, text=True, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3
    assert "the cpu backend needs numba; install it with: pip install numba" in done.stderr
    assert done.stdout == ""


def test_what_a_gpu_needs_is_numpy_torch_and_triton_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import sys, torch
from apclab import bench, campaign, results, memory_model, specs
from apclab.attention import Launch, compare_on_device
from apclab.clock import environment, memory_available
assert environment()["memory_available_bytes"] > 0 and memory_available() > 0
arrays = {name: torch.from_numpy(a) for name, a in bench.step_arrays(
    bench.decode_step(bench.correct._STEPS["mha"][0]), bench.correct._STEPS["mha"][1],
    dtype="float32").items()}
for name in ("query", "key_cache", "value_cache"):
    arrays[name] = arrays[name].bfloat16()
launch = Launch(lambda: None, "triton", out=arrays["query"].clone())
found = compare_on_device(launch, **arrays)
assert not found.ok and found.checked.startswith("all pairs"), found
loaded = {name.partition(".")[0] for name in sys.modules}
missing = {"typer", "rich", "pandas", "plotly", "psutil", "numba", "ml_dtypes", "packaging"}
print(sorted(loaded & missing))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path, "numba", "ml_dtypes", "llvmlite"),
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_ctrl_c_keeps_the_table(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "apclab", "campaign", "--out", str(tmp_path / "out")]
    argv += ["--backend", "cpu", "--dtype", "float32", "--items", "correctness,grid"]
    process = subprocess.Popen(
        argv, cwd=ROOT, env=environment(tmp_path), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    while not process.stderr.readline().startswith("correctness"):
        assert process.poll() is None
    # as a terminal does: to the whole group, the process that measures included
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Ctrl-C" in out
    assert_fits(out)
    (records,) = (tmp_path / "out").glob("*.jsonl")
    found, problems = results.load(records, kind="campaign")
    assert problems == []
    assert [end["item"] for end in found] == ["correctness", "grid", "reuse roofline"]
    assert found[1]["status"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_worker_ends_with_its_campaign(tmp_path: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "apclab", "campaign", "--out", str(tmp_path / "out")]
    argv += ["--backend", "cpu", "--dtype", "float32", "--items", "correctness,grid"]
    process = subprocess.Popen(
        argv, cwd=ROOT, env=environment(tmp_path), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    while not process.stderr.readline().startswith("correctness"):
        assert process.poll() is None
    process.send_signal(number)
    # stderr ends when nobody has it any more, the process that measures included
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    if number == signal.SIGTERM:
        assert process.returncode == 143, err
        assert "SIGTERM" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_a_full_disk_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [item(campaign_items.measures), item(campaign_items.good)]
    monkeypatch.setattr(command, "_chosen", lambda _names: chosen)
    monkeypatch.setattr(command, "_file", lambda folder: folder / "c.jsonl")
    (tmp_path / "c.jsonl").symlink_to("/dev/full")
    assert campaign.main(["--out", str(tmp_path), "--backend", "cpu"]) == 3
    shown = capsys.readouterr()
    assert "No space left on device; the records that it lacks are on stdout" in shown.err
    records = [json.loads(line) for line in shown.out.splitlines() if line.startswith("{")]
    assert records[0] == sample_record()
    ends = [record for record in records[1:] if record["kind"] == "campaign"]
    assert [(end["item"], end["status"]) for end in ends[:2]] == [
        ("measures", "stopped"),
        ("good", "stopped"),
    ]
    assert ends[1]["reason"] == "No space left on device before it began"


def test_no_process_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_context: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("multiprocessing.context.SpawnContext.Event", fail)
    with pytest.raises(child.Missing, match="Read-only file system; it needs a /dev/shm"):
        run_items(tmp_path, campaign_items.good)


def test_records_of_a_campaign_do_not_disturb_the_lab(tmp_path: Path) -> None:
    done = campaign.Campaign(tmp_path / "c.jsonl", 1.0)
    run._keep(done, [sample_record(), sample_calibration("launch")])
    run._close(done, campaign.ITEMS[0], "done", "")
    assert len(results.load_results(tmp_path)) == 1
