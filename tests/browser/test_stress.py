"""What users do to a panel: hurry, cancel, type, open a second one, lose the kernel."""

import copy
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Page

from tests import notebooks
from tests.browser import servers
from tests.browser.conftest import browser_page
from tests.browser.lab import PICTURES, Lab, until

# one server and one browser for all of them, and still more than `make test` has time for
pytestmark = pytest.mark.stress

# the bench is a stand-in: what is looked at is the panel
PANELS = """
from apclab import DecodeLab, bench
from tests import fakes
bench.compare_decode = fakes.compare_decode
starts = []
def counted(panel):
    start = panel._job.start
    panel._job.start = lambda steps: starts.append(panel.name) or start(steps)
    return panel
lab = counted(DecodeLab(batch=12, budget_s=0.05))
lab
"""
SECOND = "second = counted(DecodeLab(batch=6, budget_s=0.05))\nsecond"


class Desk(NamedTuple):
    """A browser in front of a notebook with two panels, `lab` and `second`."""

    lab: Lab
    page: Page

    def settle(self) -> None:
        """Nothing runs, and the first panel is as it was."""
        self.lab.execute("lab.cancel(); second.cancel(); lab.wait(10); second.wait(10)")
        self.lab.execute("lab.change(batch=12, budget_s=0.05); starts.clear()")

    def says(self, words: str, seconds: float = 20, panel: int = 0) -> float:
        """Wait for words in a panel; seconds that it took."""
        return until(lambda: words in self.lab.text(self.page, panel), repr(words), seconds)

    def picture(self, name: str) -> None:
        """Keep a screenshot for people."""
        PICTURES.mkdir(exist_ok=True)
        self.page.locator(
            ".jp-OutputArea-output", has=self.page.locator(".apclab-lab")
        ).first.screenshot(path=PICTURES / name)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    notebook = notebooks.read(notebooks.FOLDER / "lab_app.ipynb")
    cell = notebook.cells[-1]
    notebook.cells = [cell, copy.deepcopy(cell)]
    notebook.cells[0].source = PANELS
    notebook.cells[1].update(id="second", source=SECOND)
    with (
        servers.jupyterlab(tmp_path_factory.mktemp("stress") / "server", notebook) as lab,
        browser_page() as page,
    ):
        lab.open_and_run_all(page)
        until(lambda: page.locator(".apclab-lab").count() == 2, "two panels")
        yield Desk(lab, page)


@pytest.fixture(autouse=True)
def _settled(desk: Desk) -> None:
    desk.settle()


def test_cancel_while_another_cell_is_busy(desk: Desk) -> None:
    desk.lab.execute("lab.change(budget_s=2.0)")
    desk.lab.button(desk.page, "Run").click()
    until(lambda: desk.lab.points(desk.page) >= 1, "a first point", 30)
    desk.lab.execute("import time; time.sleep(4)", wait=False)
    seen = desk.lab.points(desk.page)
    # points go on coming while the cell blocks the kernel's main thread
    until(lambda: desk.lab.points(desk.page) > seen, "a point beside the busy cell", 30)
    desk.lab.execute("import time; time.sleep(3)", wait=False)
    desk.lab.button(desk.page, "Cancel").click()
    took = desk.says("cancelled: ")
    print(f"cancelled after {took:.1f} s beside a busy cell")
    assert took < 10
    assert 0 < desk.lab.points(desk.page) < 9
    desk.picture("lab-after-cancel.png")
    desk.lab.execute("lab.change(budget_s=0.05)")
    desk.lab.button(desk.page, "Run").click()
    desk.says("done: 9 of 9")


def test_60_fast_key_presses_end_at_the_right_value(desk: Desk) -> None:
    desk.lab.press(desk.page, "batch", *["ArrowRight"] * 60)
    until(lambda: desk.lab.ask("lab.settings.workload.batch") == 72, "72 requests")
    desk.lab.press(desk.page, "cache hit", *["ArrowLeft"] * 60)
    until(lambda: desk.lab.ask("lab.settings.workload.cache_hit") == 0.0, "no hit")
    desk.says("hit asked 0.00")
    until(lambda: len(desk.lab.drawn(desk.page)["readers"]) == 72, "72 rows on the page")
    assert desk.lab.ask("starts") == []
    desk.lab.execute("lab.change(cache_hit=1.0)")


def test_60_times_enter_is_one_run(desk: Desk) -> None:
    desk.lab.execute("lab.change(budget_s=0.5)")
    desk.lab.button(desk.page, "Run").focus()
    for _ in range(60):
        desk.page.keyboard.press("Enter")
    desk.says("done: 9 of 9")
    assert desk.lab.ask("starts") == [desk.lab.ask("lab.name")]
    # and none of them went to the notebook
    assert desk.page.locator(".jp-Cell").count() == 2


def test_keyboard_only(desk: Desk) -> None:
    page = desk.page
    desk.lab.execute("lab.change(budget_s=0.5)")
    page.locator(".apclab-lab select").first.focus()
    focused = "document.activeElement.textContent.trim()"
    role = "document.activeElement.getAttribute('role')"
    seen = set[str]()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate(role) == "slider" and "slider" not in seen:
            page.keyboard.press("ArrowRight")  # the first one is the batch
            seen.add("slider")
        if page.evaluate(focused) == "Run":
            break
    assert page.evaluate(focused) == "Run"
    until(lambda: desk.lab.ask("lab.settings.workload.batch") == 13, "13 requests")
    page.keyboard.press("Enter")
    desk.says("measures 9 points")
    for _ in range(3):
        page.keyboard.press("Tab")
        if page.evaluate(focused) == "Cancel":
            break
    assert page.evaluate(focused) == "Cancel"
    page.keyboard.press("Enter")
    desk.says("cancelled: ")


def test_the_second_panel_names_the_busy_one(desk: Desk) -> None:
    desk.lab.execute("lab.change(budget_s=2.0)")
    desk.lab.button(desk.page, "Run").click()
    desk.says("measures 9 points")
    desk.lab.button(desk.page, "Run", panel=1).click()
    name = desk.lab.ask("lab.name")
    desk.says(f"{name} is measuring: cancel it or wait for it", panel=1)
    desk.lab.button(desk.page, "Cancel").click()
    desk.says("cancelled: ")
    desk.lab.button(desk.page, "Run", panel=1).click()
    desk.says("done: 9 of 9", panel=1)


def test_an_exception_in_a_callback_reaches_the_status_line(desk: Desk) -> None:
    desk.lab.execute("""
step = bench.decode_step
def broken(*_, **__): raise ZeroDivisionError("planted")
bench.decode_step = broken
""")
    desk.lab.press(desk.page, "batch", "ArrowRight")
    desk.says("ZeroDivisionError: planted")
    desk.lab.execute("bench.decode_step = step")
    desk.lab.press(desk.page, "batch", "ArrowRight")
    desk.lab.button(desk.page, "Run").click()
    desk.says("done: 9 of 9")


def test_6000_updates_lose_no_final_state(desk: Desk) -> None:
    desk.lab.execute("""
def chatty(*rest, progress, **settings):
    for i in range(700):
        progress(i / 700, f"update {i}")
    return fakes.compare_decode(*rest, progress=progress, **settings)
bench.compare_decode = chatty
""")
    desk.lab.button(desk.page, "Run").click()
    desk.says("done: 9 of 9")
    until(lambda: desk.lab.points(desk.page) == 9, "all points on the page")
    bar = desk.page.locator(".apclab-lab .progress-bar").first.evaluate("bar => bar.style.width")
    assert bar == "100%"
    desk.lab.execute("bench.compare_decode = fakes.compare_decode")


def test_the_picture_of_blocks_switches(desk: Desk) -> None:
    def rows() -> int:
        return len(desk.lab.drawn(desk.page)["readers"])

    desk.lab.execute("lab.change(batch=100, prefix_groups=5, cache_hit=0.8)")
    # 5 groups of 20 requests, with 2 empty rows between them
    until(lambda: rows() == 108, "the tables")
    desk.picture("lab-blocks-logical.png")
    menu = desk.page.locator(".apclab-lab select").filter(has_text="by block id").first
    menu.select_option(label="by block id")
    until(lambda: rows() != 108, "the pool")
    assert desk.lab.ask("lab.settings.blocks") == "physical"
    desk.picture("lab-blocks-physical.png")
    desk.lab.execute("lab.change(blocks='logical', prefix_groups=1, cache_hit=1.0)")
