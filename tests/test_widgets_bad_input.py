"""The decode lab meets what it should not: every word of it is told, and the lab works on."""

import gc
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apclab import bench, results, widgets
from apclab.widgets import DecodeLab, cut
from apclab.workload import Workload
from tests.fakes import compare_decode, record

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(bench, "compare_decode", compare_decode)
    monkeypatch.setattr(results.store, "measured_dir", lambda: tmp_path / "saved")
    monkeypatch.setattr(widgets.actions, "measured_dir", lambda: tmp_path / "saved")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    yield
    gc.collect()


def small() -> DecodeLab:
    return DecodeLab(batch=6, input_len=63, budget_s=0.01, points=2)


def assert_usable(lab: DecodeLab) -> None:
    lab.change(batch=5)
    lab.run(block=True)
    assert lab.status == "done"
    assert [made["workload"]["batch"] for made in lab.records] == [5] * 4


@pytest.mark.parametrize(
    ("pasted", "words"),
    [
        ({"batch": "12"}, "TypeError: batch must be an int, got '12'"),
        ({"batch": None, "cache_hit": 0.5}, "TypeError: batch must be an int, got None"),
        ({"batch": 10**30}, "ValueError: batch must be at most 32000"),
        ({"cache_hit": math.nan}, "ValueError: cache_hit must be between 0 and 1, got nan"),
        ({"cache_hit": {"a": 1}}, "TypeError: cache_hit must be a number"),
        ({"workload": None}, "TypeError: workload must be a Workload or the name of a preset"),
        ({"workload": ["issue 4860"]}, "TypeError: workload must be a Workload"),
        ({"model": 13}, "TypeError: model must be a name or a ModelShape, got 13"),
        ({"model": "gpt-9"}, "ValueError: unknown model 'gpt-9'"),
        ({"x": []}, "ValueError: x must be one of"),
        ({"points": True}, "ValueError: points must be an int between 2 and 33, got True"),
        ({"budget_s": math.inf}, "ValueError: budget_s must be a positive number, got inf"),
        ({"<img src=x>": 1}, "TypeError: no setting '<img src=x>'"),
    ],
)
def test_a_malformed_state_is_told_and_changes_nothing(pasted: dict[str, Any], words: str) -> None:
    lab = small()
    before = lab.settings
    with pytest.raises((TypeError, ValueError)):
        lab.change(**pasted)
    assert lab._actions.status.startswith(words)
    assert "<img" not in lab._actions.lines[2].value
    assert lab.settings == before
    assert_usable(lab)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 records of "),
        (b"not JSON\n[1, 2]\nnull\n", "not a JSON object"),
        (b'{"schema": 2}\n', "schema must be 1, got 2"),
        (b'{"schema": 1, "case": "sha', "torn last line skipped"),
        (b"\xff\xfe\x00\x01\n", "not UTF-8 text"),
        (b"[" * 100_000 + b"\n", "skipped"),
        (None, "no such file or folder"),
    ],
    ids=["empty", "text", "other schema", "half written", "binary", "deep", "missing"],
)
def test_a_malformed_file_is_told(content: bytes | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    if content is not None:
        file.write_bytes(content)
    lab = small()
    lab.overlay(file)
    assert words in lab._actions.status
    assert_usable(lab)


def test_a_half_written_file_shows_its_whole_records(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    whole = json.dumps(record(Workload(batch=6, input_len=63), "shared"))
    file.write_text(whole + "\n" + whole[: len(whole) // 2])
    lab = small()
    lab.overlay(file)
    assert lab._actions.status.startswith(f"1 records of {file} shown; ")
    assert "torn last line skipped" in lab._actions.status
    assert_usable(lab)


def test_records_of_given_tables_are_told_apart(tmp_path: Path) -> None:
    made = record(Workload(batch=6, input_len=63), "shared")
    lengths = ("input_len", "output_len", "cache_hit", "realised_hit", "prefix_groups")
    file = tmp_path / "records.jsonl"
    results.append(file, [{**made, "workload": {**made["workload"], **dict.fromkeys(lengths)}}])
    lab = small()
    lab.overlay(file)
    assert lab._actions.status.endswith("1 of them lack cache_hit: not drawn")


def test_a_chosen_file_may_be_gone() -> None:
    lab = small()
    lab.run(block=True)
    file = lab.save()
    lab._actions._overlay.value = str(file)
    file.unlink()
    lab.run(block=True)
    other = lab.save(file.with_name("other.jsonl"))  # the menu is read again
    assert lab._actions.status == f"4 records saved to {other}"
    assert lab._actions._overlay.value == widgets.actions.NO_OVERLAY
    lab.overlay(file)
    assert "no such file or folder" in lab._actions.status


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no POSIX permissions")
def test_a_file_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    lab = small()
    lab.run(block=True)
    blocked = tmp_path / "saved"
    if os.geteuid() == 0:  # root may write everywhere, but not below a file
        blocked.write_text("")
    else:
        blocked.mkdir(mode=0o500)
    next(b for b in lab._actions.buttons[:3] if b.description == "Save").click()
    assert "Error: " in lab._actions.status
    assert str(blocked) in lab._actions.status
    lab.overlay(tmp_path)  # a folder is read as a whole
    assert lab._actions.status == f"0 records of {tmp_path} shown"
    assert lab.save(tmp_path / "x.jsonl").exists()  # nothing was lost
    assert_usable(lab)


@pytest.mark.parametrize("error", [bench.OutOfMemory, MemoryError])
def test_out_of_memory_ends_the_run_only(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def second(workload: Workload, *rest: Any, **settings: Any) -> Any:
        if workload.cache_hit == 1.0:
            raise error("6 requests need 9.0 GB, 2.0 GB are free")
        return compare_decode(workload, *rest, **settings)

    lab = small()
    monkeypatch.setattr(bench, "compare_decode", second)
    lab.run()
    assert lab.wait(10)
    assert lab.status == "error"
    assert lab._actions.status == f"{error.__name__}: 6 requests need 9.0 GB, 2.0 GB are free"
    assert len(lab.records) == 2  # the point before it is kept
    assert not lab._actions.buttons[0].disabled
    monkeypatch.setattr(bench, "compare_decode", compare_decode)
    assert_usable(lab)


DYING = """
import os, sys, threading
from apclab import DecodeLab, bench
from tests.fakes import compare_decode
done = []
def dying(*rest, **settings):
    if done:
        os._exit(9)
    done.append(1)
    return compare_decode(*rest, **settings)
bench.compare_decode = dying
DecodeLab(batch=6, input_len=63, budget_s=0.01, points=4).run(block=True)
"""


def test_a_run_that_died_with_its_process_is_told_by_the_next_panel(tmp_path: Path) -> None:
    path = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    environment = {**os.environ, "JPY_SESSION_NAME": "one.ipynb", "PYTHONPATH": path}
    died = subprocess.run([sys.executable, "-c", DYING], env=environment, cwd=tmp_path, check=False)
    assert died.returncode == 9
    with pytest.MonkeyPatch.context() as other:
        other.setenv("JPY_SESSION_NAME", "two.ipynb")
        assert small()._actions.notice.value == ""  # not this notebook's business
    with pytest.MonkeyPatch.context() as same:
        same.setenv("JPY_SESSION_NAME", "one.ipynb")
        lab = small()
        assert "while decode lab 1 was measuring 4 points" in lab._actions.notice.value
        assert "shows its 2 records" in lab._actions.notice.value
        lab._actions._overlay.value = widgets.actions.RUN_BEFORE
        dotted = [t for t in lab._page.figure.data if t.yaxis == "y2" and t.line.dash == "dot"]
        assert sum(len(trace.x or []) for trace in dotted) == 2
        assert "shows its 2 records" in small()._actions.notice.value  # the cell was run again
        with pytest.MonkeyPatch.context() as app:
            app.setenv("SERVER_SOFTWARE", "voila/0.5")
            assert small()._actions.notice.value == ""  # somebody else's run
        assert_usable(lab)
        assert small()._actions.notice.value == ""  # a later run began
        assert "decode lab" not in lab._actions.notice.value  # a whole run settles it
    assert list((tmp_path / "runtime").glob("apclab-run-*")) == []


def test_notes_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    for name, text in (("1", ""), ("2", "{"), ("3", "[]"), ("4", '{"place": 1}')):
        (folder / f"apclab-run-{name}.json").write_text(text)
    assert cut.cut_before() is None


def test_without_a_folder_for_notes_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "file" / "runtime"))
    assert_usable(small())


MANY_RUNS = """
import gc, psutil
from apclab import DecodeLab, bench
from tests.fakes import compare_decode
bench.compare_decode = compare_decode
lab = DecodeLab(batch=6, input_len=63, budget_s=0.001, points=2)
def runs(n):
    for i in range(n):
        lab.change(batch=1 + i % 7)
        lab._actions.buttons[0].click()
        assert lab.wait(10) and lab.status == "done", lab._actions.status
    gc.collect()
    return psutil.Process().memory_info().rss
before = runs(30)
print((runs(200) - before) / 1e6)
"""


@pytest.mark.slow
def test_200_runs_do_not_fill_the_memory(tmp_path: Path) -> None:
    path = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    done = subprocess.run(
        [sys.executable, "-c", MANY_RUNS],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < 10  # MB


def test_6000_updates_lose_no_final_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def chatty(workload: Workload, *rest: Any, progress: Any, **settings: Any) -> Any:
        for i in range(3000):
            progress(i / 3000, f"update {i}")
        return compare_decode(workload, *rest, progress=progress, **settings)

    monkeypatch.setattr(bench, "compare_decode", chatty)
    lab = small()
    said: list[str] = []
    lab._actions.lines[2].observe(lambda change: said.append(change["new"]), "value")
    lab.run(block=True)
    assert len(said) < 200  # of 6,000
    assert lab._actions.lines[0].value == 1.0
    assert lab._actions.status == "done: 2 of 2 points measured, 4 records to save"
