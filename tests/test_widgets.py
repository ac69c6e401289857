"""The decode lab without a kernel and without measuring: the bench is a stand-in."""

import base64
import html
import json
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from apclab import bench, figures, results, widgets
from apclab.bench import compare_decode as really_compare
from apclab.bench.buffers import held_bytes
from apclab.clock import Cancelled
from apclab.specs import ModelShape
from apclab.widgets import DecodeLab, Settings
from apclab.workload import ISSUE_4860, OWN_HISTORY, Workload
from tests.fakes import compare_decode, record
from tests.test_alone import another_process


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(bench, "compare_decode", compare_decode)
    monkeypatch.setattr(results.store, "measured_dir", lambda: tmp_path / "saved")
    monkeypatch.setattr(widgets.actions, "measured_dir", lambda: tmp_path / "saved")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    yield
    for thread in threading.enumerate():  # a test that failed leaves no job behind
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(5)


def small(**settings: Any) -> DecodeLab:
    return DecodeLab(**({"batch": 6, "input_len": 63, "budget_s": 0.01} | settings))


def control(lab: DecodeLab, name: str) -> Any:
    return lab._controls.by_name[name]


def click(lab: DecodeLab, text: str) -> None:
    next(b for b in lab._actions.buttons[:3] if b.description == text).click()


def drawn(lab: DecodeLab, case: str) -> tuple[list[float], list[float]]:
    """What the live figure shows as medians of a case."""
    traces = lab._page.figure.data
    (trace,) = (trace for trace in traces if trace.name == case and trace.yaxis == "y2")
    return list(trace.x), list(trace.y)


def test_run_draws_the_records() -> None:
    lab = small()
    assert lab.status == "idle"
    click(lab, "Run")
    assert lab.wait(10)
    assert lab.status == "done"
    assert len(lab.records) == 18
    for case in ("private", "shared"):
        mine = lab.results[lab.results["case"] == case]
        assert drawn(lab, case) == (mine["cache_hit"].tolist(), mine["p50_us"].tolist())
    assert lab._actions.status == "done: 9 of 9 points measured, 18 records to save"
    assert results.finding(lab.records, {"cache_hit": 1.0}) in lab._page.finding.value


@pytest.mark.parametrize(
    ("settings", "cases"),
    [({}, ("private", "shared", "cascade")), ({"cascade": False}, ("private", "shared"))],
)
def test_cascade_is_measured_unless_it_is_left_out(
    settings: dict[str, Any], cases: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measure(workload: Workload, *_args: Any, **how: Any) -> list[results.Record]:
        asked.append(how["cases"])
        return [record(workload, case) for case in how["cases"]]

    monkeypatch.setattr(bench, "compare_decode", measure)
    lab = small(points=2, **settings)
    lab.run(block=True)
    assert asked == [cases] * 2
    assert len(lab.records) == 2 * len(cases)
    for case in cases:
        assert drawn(lab, case)[0] == [0.0, 1.0]


def test_the_static_twin_shows_the_same() -> None:
    lab = small()
    lab.run()
    lab.wait(10)
    twin = lab.figure()
    assert type(twin) is go.Figure
    assert len(twin.data) == len(lab._page.figure.data)
    for live, static in zip(lab._page.figure.data, twin.data, strict=True):
        assert live.y == static.y
    assert lab.figure(theme="dark").layout.paper_bgcolor == "#111111"


def test_a_slider_redraws_the_blocks_and_measures_nothing() -> None:
    lab = small(input_len=64)
    before = lab._page.figure.data[0].z
    control(lab, "cache_hit").value = 0.5
    assert lab.settings.workload.cache_hit == 0.5
    assert lab._page.figure.data[0].z != before
    words = "realised <b>0.50</b> (32 of 64 tokens of a prompt, in 2 of 4 full blocks)"
    assert f"hit asked 0.50, {words}" in lab._page.readout.value
    assert lab.status == "idle"
    assert lab.records == []


def test_presets_and_groups_move_the_sliders() -> None:
    lab = DecodeLab()
    assert control(lab, "preset").value == "issue 4860"
    control(lab, "preset").value = "own history"
    assert lab.settings.workload == OWN_HISTORY
    assert control(lab, "prefix_groups").value == 100
    assert "no sharing" in lab._page.figure.layout.annotations[0].text
    control(lab, "batch").value = 10
    assert lab.settings.workload.prefix_groups == 10
    assert control(lab, "prefix_groups").value == control(lab, "prefix_groups").max == 10
    assert control(lab, "preset").value == "custom"
    control(lab, "preset").value = "issue 4860"
    assert lab.settings.workload == ISSUE_4860


def test_cancel_keeps_what_was_measured() -> None:
    lab = small(budget_s=0.1)
    click(lab, "Run")
    while len(lab.records) < 4:
        time.sleep(0.01)
    click(lab, "Cancel")
    assert lab.wait(5)
    assert lab.status == "cancelled"
    assert 4 <= len(lab.records) < 18
    assert len(lab.records) % 2 == 0
    assert len(drawn(lab, "shared")[0]) == len(lab.records) / 2
    assert lab._actions.status.startswith("cancelled: ")
    click(lab, "Run")  # and again
    lab.change(budget_s=0.01)
    lab.cancel()
    assert lab.wait(5)


def test_cancel_keeps_a_point_that_it_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(workload: Workload, *_: Any, **__: Any) -> Any:
        stop = Cancelled("stopped")
        stop.records = [record(workload, case) for case in ("private", "shared")]
        lab.cancel()
        raise stop

    lab = small()
    monkeypatch.setattr(bench, "compare_decode", stopped)
    lab.run(block=True)
    assert lab.status == "cancelled"
    assert drawn(lab, "shared") == ([0.0], [lab.records[1]["p50_us"]])
    assert lab._actions.status == (
        "cancelled: 0 of 9 points measured, 1 cut short, 2 records to save"
    )


def test_another_slider_gives_other_records() -> None:
    lab = small(x="batch", points=3)
    lab.run()
    lab.wait(10)
    assert lab.results["batch"].tolist() == [1, 1, 2, 2, 6, 6]
    first = lab.records
    lab.change(input_len=100)
    lab.run()
    lab.wait(10)
    assert lab.results["input_len"].tolist() == [100] * 6
    assert [r["p50_us"] for r in lab.records] != [r["p50_us"] for r in first]
    # the first run can be laid behind the second
    lab._actions._overlay.value = widgets.actions.RUN_BEFORE
    dotted = [t for t in lab._page.figure.data if t.yaxis == "y2" and t.line.dash == "dot"]
    assert sum(len(trace.x or []) for trace in dotted) == 2 * 3


def test_whole_output_measures_three_steps() -> None:
    lab = small(points=2)
    lab.run()
    lab.wait(10)
    control(lab, "view").value = "output"  # the middle step alone is not enough
    assert drawn(lab, "shared")[0] == []
    assert "press Run" in lab._page.figure.layout.annotations[1].text
    lab.run()
    lab.wait(10)
    assert lab.results["step"].tolist() == ["first"] * 2 + ["mid"] * 2 + ["last"] * 2 + (
        ["first"] * 2 + ["mid"] * 2 + ["last"] * 2
    )
    expected = results.decode_times(lab.results, "output", 40)
    assert drawn(lab, "shared")[1] == expected[expected["case"] == "shared"]["p50"].tolist()


def test_errors_reach_the_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: Any, **__: Any) -> Any:
        raise bench.OutOfMemory("6 requests need 9.0 GB, 2.0 GB are free")

    lab = small()
    click(lab, "Save")
    assert lab._actions.status == (
        "ValueError: nothing to save: every record is saved, or none was measured"
    )
    monkeypatch.setattr(bench, "compare_decode", too_large)
    click(lab, "Run")
    assert lab.wait(5)
    assert lab.status == "error"
    assert lab._actions.status == "OutOfMemory: 6 requests need 9.0 GB, 2.0 GB are free"
    with pytest.raises(bench.OutOfMemory):
        lab.run(block=True)
    monkeypatch.setattr(bench, "decode_step", too_large)
    control(lab, "batch").value = 7
    assert lab._actions.status.startswith("OutOfMemory")


def test_status_shows_text_not_markup() -> None:
    lab = small()
    lab._actions.say("<b>&</b>", bad=True)
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in lab._actions.lines[2].value


def test_a_second_lab_is_told_who_measures() -> None:
    first, second = small(budget_s=0.2), small()
    first.run()
    click(second, "Run")
    assert second._actions.status.endswith(f"{first.name} is measuring: cancel it or wait for it")
    assert second.status == "idle"
    first.cancel()
    assert first.wait(5)
    second.run(block=True)
    assert second.status == "done"


def test_blocking_run_prints_points(capsys: pytest.CaptureFixture[str]) -> None:
    lab = small(points=2, budget_s=0.3)
    lab.run(block=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{lab.name}: 1/2")
    assert lines[-1] == "done: 2 of 2 points measured, 4 records to save"


def test_an_interrupt_cancels_a_blocking_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = small(budget_s=0.1)
    job = lab._runs.job
    wait, calls = job.wait, iter(range(100))

    def interrupted(timeout: float | None = None) -> bool:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return wait(timeout)

    monkeypatch.setattr(job, "wait", interrupted)
    lab.run(block=True)
    assert lab.status == "cancelled"
    assert 0 < len(lab.records) < 18


def test_save_and_overlay(tmp_path: Path) -> None:
    lab = small(points=3)
    lab.run(block=True)
    file = lab.save()
    assert file.is_relative_to(tmp_path / "saved")
    assert results.load(file) == (lab.records, [])
    with pytest.raises(ValueError, match="nothing to save"):
        lab.save()
    assert str(file) in [value for _, value in lab._actions._overlay.options]
    fresh = small()
    fresh._actions._overlay.value = str(file)
    dotted = [t for t in fresh._page.figure.data if t.yaxis == "y2" and t.line.dash == "dot"]
    assert [len(trace.x or []) for trace in dotted] == [3, 3, 0]
    fresh._actions._overlay.value = widgets.actions.NO_OVERLAY
    assert [len(trace.x or []) for trace in dotted] == [0, 0, 0]


def test_an_unwritable_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lab = small(points=2)
    lab.run(block=True)
    with pytest.raises(OSError, match="file"):
        lab.save(tmp_path / "file" / "x.jsonl")
    lab.save(tmp_path / "x.jsonl")  # nothing was lost


def test_problems_of_an_overlay_are_told(tmp_path: Path) -> None:
    file = tmp_path / "torn.jsonl"
    lab = small()
    results.append(file, [record(Workload(batch=6, input_len=63), "shared")])
    with file.open("a") as stream:
        stream.write('{"schema": 1')
    lab.overlay(file)
    assert lab._actions.status.startswith(f"1 records of {file} shown; ")
    assert "torn" in lab._actions.status


def test_the_figure_is_made_once_and_changed_in_place() -> None:
    lab = small(points=2)
    figure, traces = lab._page.figure, len(lab._page.figure.data)
    for hit in (0.1, 0.5, 0.9):
        control(lab, "cache_hit").value = hit
    lab.run(block=True)
    assert lab._page.figure is figure
    assert len(figure.data) == traces


def test_a_new_view_gets_the_present_figure() -> None:
    lab = small(points=2)
    lab.run(block=True)
    # a view that reports its defaults makes plotly drop properties of its own copy
    lab._page.figure.data[2]._props.pop("textposition")
    bundle = lab._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in str(bundle)
    handed = lab._page.figure._widget_data
    assert handed[2]["textposition"]
    assert handed[2]["y"] == drawn(lab, "private")[1]
    assert [trace["uid"] for trace in handed] == [trace.uid for trace in lab._page.figure.data]


def test_callbacks_may_come_from_any_thread() -> None:
    lab = small(points=2)
    failed: list[str] = []

    def use(hit: float) -> None:
        try:
            control(lab, "cache_hit").value = hit
            click(lab, "Run")
        except Exception:
            failed.append(traceback.format_exc())

    threads = [threading.Thread(target=use, args=(i / 10,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lab.wait(5)
    assert failed == []
    assert lab.status == "done"


def test_what_is_typed_beyond_a_slider_is_taken() -> None:
    lab = small()
    lab._controls.typed["input_len"].value = 4096
    assert lab.settings.workload.input_len == control(lab, "input_len").value == 4096
    assert "realised <b>1.00</b> (4,080 of 4,096 tokens of a prompt" in lab._page.readout.value
    lab._controls.typed["batch"].value = 300
    assert lab.settings.workload.batch == control(lab, "prefix_groups").max == 300
    lab._controls.typed["input_len"].value = 8
    assert lab.settings.changed(x="input_len").xs() == [8]
    lab.change(input_len=64)
    assert (control(lab, "input_len").min, control(lab, "input_len").max) == (16, 1024)


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("batch", 0, "ValueError: batch must be at least 1, got 0"),
        ("batch", 10**7, "ValueError: batch must be at most 32000"),
        ("prefix_groups", 7, "ValueError: prefix_groups must be at most batch (6), got 7"),
        ("input_len", 10**8, "ValueError: batch x (input + output) must be at most"),
    ],
)
def test_what_cannot_be_is_told_and_not_shown(name: str, typed: int, words: str) -> None:
    lab = small()
    before = lab.settings
    lab._controls.typed[name].value = typed
    assert lab._actions.status.startswith(words)
    assert lab.settings == before
    assert lab._controls.typed[name].value == getattr(before.workload, name)
    control(lab, "cache_hit").value = 0.5  # and the message goes with the next move
    assert lab._actions.status == f"{lab.name}: press Run to measure 9 points"


def colours(lab: DecodeLab) -> set[str]:
    """Of what was measured, as the live page shows it."""
    traces = [trace for trace in lab._page.figure.data if trace.name in ("private", "shared")]
    return {part.color for trace in traces for part in (trace.line, trace.marker) if part.color}


OF_OTHERS: list[dict[str, Any]] = [
    {"preset": "own history"},
    {"model": "llama-3.1-8b"},
    {"dtype": "float32"},
    {"l2": "warm"},
    {"block_size": 32},
    {"order": "head"},
    {"batch": 5},
    {"output_len": 40},
    {"x": "batch"},
]
OF_THE_SAME: list[dict[str, Any]] = [
    {"cache_hit": 0.5},  # the x axis
    {"view": "token"},
    {"blocks": "physical"},
    {"cascade": False},
]


@pytest.mark.parametrize("moved", [*OF_OTHERS, *OF_THE_SAME], ids=str)
def test_measurements_of_other_settings_turn_grey(moved: dict[str, Any]) -> None:
    lab = small(points=2)
    lab.run(block=True)
    found = lab._page.finding.value
    mine = {figures.COLOURS["private"], figures.COLOURS["shared"]}
    assert colours(lab) == mine
    before = lab.settings
    for name, value in moved.items():
        control(lab, name).value = value
    if moved in OF_THE_SAME:
        assert colours(lab) == mine
        assert lab._page.finding.value == found
        return
    assert colours(lab) == {"rgba(128,128,128,0.6)"}
    assert "in grey: measured with " in lab._page.finding.value
    assert "llama-13b, bfloat16, l2 cold, made-up device" in lab._page.finding.value
    titles = [note.text for note in lab._page.figure.layout.annotations]
    assert "measured with other settings" in titles[1]
    assert not any("faster" in title or "×" in title for title in titles[1:])
    assert "press Run to measure" in lab._actions.status
    assert "4 records to save" in lab._actions.status
    back = {name: getattr(before, name) for name in moved if hasattr(before, name)}
    lab.change(workload=before.workload, **back)
    assert colours(lab) == mine
    assert lab._page.finding.value == found


def test_the_caption_says_with_what() -> None:
    lab = small(points=2, l2="warm", dtype="float32")
    lab.run(block=True)
    caption = lab._page.figure.layout.xaxis2.title.text
    assert "llama-13b, float32, l2 warm, made-up device" in caption
    assert "63 in" in caption


def test_a_run_destroys_nothing_that_was_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise bench.OutOfMemory("too large")

    lab = small(points=2)
    lab.run(block=True)
    first = lab.records
    lab.change(batch=5)
    monkeypatch.setattr(bench, "compare_decode", refused)
    with pytest.raises(bench.OutOfMemory):
        lab.run(block=True)
    assert lab.records == first
    assert colours(lab) == {"rgba(128,128,128,0.6)"}
    click(lab, "Run")
    lab.cancel()
    lab.wait(5)
    lab.overlay(None)
    assert lab._actions.status.endswith("4 records of earlier runs to save")
    monkeypatch.setattr(bench, "compare_decode", compare_decode)
    lab.run(block=True)
    second = lab.records
    assert lab._actions.status == (
        "done: 2 of 2 points measured, 8 records to save (4 of earlier runs)"
    )
    file = lab.save(tmp_path / "all.jsonl")
    assert results.load(file) == ([*first, *second], [])


def test_a_run_that_another_process_forbids_loses_nothing() -> None:
    lab = small(points=2)
    lab.run(block=True)
    measured = lab.records
    with another_process() as process:
        click(lab, "Run")
        assert lab.wait(10)
        assert "another measurement runs on this machine since" in lab._actions.status
        assert f"pid {process.pid}" in lab._actions.status
    assert lab.records == measured
    lab.run(block=True)
    assert lab.status == "done"


def test_a_refused_panel_forgets_it_when_the_other_is_done() -> None:
    first, second = small(budget_s=0.2), small()
    first.run()
    click(second, "Run")
    assert "is measuring" in second._actions.status
    first.cancel()
    assert first.wait(5)
    deadline = time.monotonic() + 5
    while "is measuring" in second._actions.status and time.monotonic() < deadline:
        time.sleep(0.01)
    assert second._actions.status == f"{second.name}: press Run to measure 9 points"


def test_messages_go_with_what_they_speak_of(tmp_path: Path) -> None:
    lab = small(points=2)
    lab.run(block=True)
    file = lab.save(tmp_path / "some.jsonl")
    lab.overlay(file)
    assert "shown" in lab._actions.status
    lab.overlay(None)
    assert lab._actions.status == "done: 2 of 2 points measured"


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_buffers_go_with_the_run(cancelled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "compare_decode", really_compare)
    lab = small(points=3, budget_s=0.5 if cancelled else 0.01, backend="cpu", cascade=False)
    lab.run()
    while not held_bytes("cpu"):
        time.sleep(0.005)
    if cancelled:
        lab.cancel()
    assert lab.wait(60)
    assert lab.status == ("cancelled" if cancelled else "done")
    assert held_bytes("cpu") == 0


def test_a_visitor_takes_the_records_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5")
    lab = small(points=2)
    click(lab, "Save")
    assert lab._actions.status == "nothing was measured yet"
    lab.run(block=True)
    click(lab, "Save")
    assert lab._actions.status == "download 4 records"
    link = lab._actions.lines[2].value
    content = base64.b64decode(link.split("base64,")[1].split('"')[0])
    assert [json.loads(line) for line in content.splitlines()] == lab.records
    assert 'download="2026-01-01-0123456.jsonl"' in link
    assert not (tmp_path / "saved").exists()


def test_the_file_of_the_notebook_holds_a_picture_and_the_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []

    def keep(what: Any, *, display_id: str) -> None:
        assert display_id in what.data  # by which the live panel hides it
        shown.append(what.data)

    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    monkeypatch.setattr("IPython.display.display", keep)
    monkeypatch.setattr("IPython.display.update_display", keep)
    lab = small(points=2)
    camera, asked = lab._kept._camera, lab._kept._camera.asked
    lab._repr_mimebundle_()
    assert "No panel here?" in shown[-1]
    control(lab, "cache_hit").value = 0.5
    assert camera.asked == asked + 1
    lab.run(block=True)
    assert camera.asked > asked + 1
    sent = "data:image/png;base64,iVBORw0KGgo="
    camera._handle_custom_msg({"picture": sent}, [])
    assert f'src="{sent}"' in shown[-1]
    assert html.escape(results.finding(lab.records)) in shown[-1]
    assert "No panel here?" not in shown[-1]
    for forged in ("javascript:alert(1)", 'data:image/png;base64,"><script>', 5, None):
        camera._handle_custom_msg({"picture": forged}, [])
    assert len(shown) == 2


def test_every_control_is_an_argument() -> None:
    chosen: dict[str, Any] = {
        "batch": 4,
        "input_len": 20,
        "output_len": 3,
        "cache_hit": 0.25,
        "prefix_groups": 2,
        "dtype": "float32",
        "block_size": 32,
        "backend": "cpu",
        "order": "head",
        "l2": "warm",
        "x": "block_size",
        "view": "token",
    }
    lab = DecodeLab("no sharing", model="llama-3.1-8b", **chosen)
    for name, value in chosen.items():
        assert control(lab, name).value == value
    assert control(lab, "model").value == "llama-3.1-8b"
    assert lab.settings.xs() == [8, 16, 32, 64, 128, 256]


def test_a_shape_of_ones_own() -> None:
    shape = ModelShape("toy", 2, 4, 2, 64)
    lab = small(model=shape, view="token", points=2)
    assert control(lab, "model").value == "toy"
    lab.run(block=True)
    assert lab.results["model"].tolist() == ["toy"] * 4
    assert drawn(lab, "shared")[1][0] == pytest.approx(lab.records[1]["p50_us"] * 2 / 1e3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cache_hit": 1.2}, "cache_hit must be between 0 and 1, got 1.2"),
        ({"batch": 40_000}, "batch must be at most 32000, got 40000"),
        ({"batch": 4, "prefix_groups": 5}, "prefix_groups must be at most batch"),
        ({"input_len": 0}, "input_len must be at least 1, got 0"),
        ({"input_len": 10**6}, "at most 16,777,216 tokens in a panel, got 100,002,000"),
        ({"workload": "isue"}, "workload must be one of issue 4860, own history, .*, got 'isue'"),
        ({"model": "lama-13b"}, "llama-13b"),
        ({"dtype": "int8"}, "dtype must be one of float32, float16, bfloat16, got 'int8'"),
        ({"block_size": 17}, "block_size must be one of 8, 16, .*, got 17"),
        ({"x": "hit"}, "x must be one of cache_hit, .*, got 'hit'"),
        ({"points": 1}, "points must be an int between 2 and 33, got 1"),
        ({"budget_s": 0}, "budget_s must be a positive number, got 0"),
        ({"theme": "neon"}, "theme must be one of auto, light, dark, got 'neon'"),
    ],
)
def test_misuse_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodeLab(**arguments)


def test_unknown_names_are_named() -> None:
    with pytest.raises(TypeError, match="no setting 'bach'; there are batch, input_len"):
        DecodeLab(bach=3)
    with pytest.raises(TypeError, match="no setting 'points_'"):
        small().change(points_=3)


def test_the_sweep_of_each_axis() -> None:
    settings = Settings().changed(batch=100, points=5)
    assert settings.xs() == [0, 0.25, 0.5, 0.75, 1]
    assert settings.changed(x="batch").xs() == [1, 3, 10, 32, 100]
    assert settings.changed(x="prefix_groups").xs() == [1, 3, 10, 32, 100]
    assert settings.changed(x="input_len").xs() == [16, 33, 69, 144, 300]
    assert settings.changed(x="batch", batch=1).xs() == [1]
    own = settings.changed(workload=OWN_HISTORY, x="batch")
    assert own.at(10).workload.prefix_groups == 10
    assert own.at(100).workload.prefix_groups == 100


def test_views_of_the_page_are_known_to_results() -> None:
    assert tuple(figures.VIEWS) == results.tables.VIEWS
