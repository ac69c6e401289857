"""What users do to a panel: hurry, cancel, type, open a second one, lose the kernel."""

import copy
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests import notebooks
from tests.browser import servers
from tests.browser.conftest import browser_page
from tests.browser.lab import Lab, look, until

# one server and one browser for all of them, and still more than `make test` has time for
pytestmark = pytest.mark.slow

# the bench is a stand-in: what is looked at is the panel
PANELS = """
from apclab import DecodeLab, bench
from tests import fakes
bench.compare_decode = fakes.compare_decode
starts = []
def counted(panel):
    start = panel._runs.job.start
    # a start that is refused, as a run is going on, is none
    panel._runs.job.start = lambda steps: start(steps) and not starts.append(panel.name)
    return panel
lab = counted(DecodeLab(batch=12, budget_s=0.05))
lab
"""
TIMES = "[[r['case'], r['p50_us']] for r in lab.records]"
SECOND = "second = counted(DecodeLab(batch=6, budget_s=0.05))\nsecond"


class Desk:
    """A browser in front of a notebook with two panels, `lab` and `second`.

    Attributes:
        points: of the sweep that ran last.
    """

    def __init__(self, lab: Lab, page: Page) -> None:
        self.lab, self.page = lab, page
        self.points = 3

    def settle(self) -> None:
        """Nothing runs, and the first panel is as it was."""
        self.lab.execute("lab.cancel(); second.cancel(); lab.wait(10); second.wait(10)")
        self.lab.execute("lab.change(batch=12, cache_hit=0.9); starts.clear()")

    def prepare(self, budget_s: float, panel: int = 0) -> None:
        """Let the next sweep have a number of points that none had.

        The page shows the words of a run until it hears of the next one; so what is waited for
        may not look like them.
        """
        self.points += 1
        name = ("lab", "second")[panel]
        self.lab.execute(f"{name}.change(points={self.points}, budget_s={budget_s})")

    def run(self, budget_s: float, panel: int = 0) -> None:
        """Press Run, and see it begin."""
        self.prepare(budget_s, panel)
        self.lab.button(self.page, "Run", panel).click()
        self.says(f" {self.points} points", panel=panel)

    def has_run(self, panel: int = 0) -> None:
        """The run ends, and the page shows all of it."""
        self.says(f"done: {self.points} of {self.points} points", 60, panel)
        if panel == 0:
            until(lambda: self.lab.points(self.page) == self.points, "all points on the page")

    def measured(self, points: int) -> None:
        """So many points of this run are measured, and the page shows them.

        Until the first one is there the run before it stays.
        """
        until(lambda: self.lab.ask("lab._runs.points_done") >= points, "points in the kernel", 60)
        until(lambda: points <= self.lab.points(self.page) < self.points, "points on the page")

    def says(self, words: str, seconds: float = 60, panel: int = 0) -> float:
        """Wait for words in a panel; seconds that it took."""
        return until(lambda: words in self.lab.text(self.page, panel), repr(words), seconds)

    def picture(self, name: str) -> None:
        """Keep a screenshot for people."""
        outputs = self.page.locator(".jp-OutputArea-output")
        look(outputs.filter(has=self.page.locator(".apclab-lab")).first, name)


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
    desk.points = 8  # so that the run is long enough
    desk.run(budget_s=3.0)
    desk.measured(1)
    with desk.lab.busy():
        seen = desk.lab.points(desk.page)
        # points go on coming while the cell blocks the kernel's main thread
        until(lambda: desk.lab.points(desk.page) > seen, "a point beside the busy cell", 30)
        desk.lab.button(desk.page, "Cancel").click()
        # some versions of ipykernel hear of it now, others when the cell is over
        desk.page.wait_for_timeout(1000)
    desk.says("cancelled: ", 10)
    assert 0 < desk.lab.points(desk.page) < desk.points
    desk.picture("lab-after-cancel.png")
    desk.run(budget_s=0.05)
    desk.has_run()


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
    desk.prepare(budget_s=1.0)
    desk.lab.button(desk.page, "Run").focus()
    for _ in range(60):
        desk.page.keyboard.press("Enter")
    desk.has_run()
    assert desk.lab.ask("starts") == [desk.lab.ask("lab.name")]
    # and none of them went to the notebook
    assert desk.page.locator(".jp-Cell").count() == 2


def test_keyboard_only(desk: Desk) -> None:
    page = desk.page
    desk.prepare(budget_s=2.0)
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
    desk.says(f"measures {desk.points} points")
    for _ in range(3):
        page.keyboard.press("Tab")
        if page.evaluate(focused) == "Cancel":
            break
    assert page.evaluate(focused) == "Cancel"
    page.keyboard.press("Enter")
    desk.says(f" of {desk.points} points measured")
    assert desk.lab.ask("lab.status") == "cancelled"


def test_the_second_panel_names_the_busy_one(desk: Desk) -> None:
    desk.run(budget_s=5.0)
    desk.lab.button(desk.page, "Run", panel=1).click()
    name = desk.lab.ask("lab.name")
    desk.says(f"{name} is measuring: cancel it or wait for it", panel=1)
    desk.lab.button(desk.page, "Cancel").click()
    desk.says(f" of {desk.points} points measured")
    assert desk.lab.ask("lab.status") == "cancelled"
    desk.run(budget_s=0.05, panel=1)
    desk.has_run(panel=1)


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
    until(lambda: desk.lab.ask("lab.settings.workload.batch") == 14, "14 requests")
    desk.run(budget_s=0.05)
    desk.has_run()


def test_6000_updates_lose_no_final_state(desk: Desk) -> None:
    desk.lab.execute("""
def chatty(*rest, progress, **settings):
    for i in range(1000):
        progress(i / 1000, f"update {i}")
    return fakes.compare_decode(*rest, progress=progress, **settings)
bench.compare_decode = chatty
""")
    desk.run(budget_s=0.05)
    desk.has_run()
    bar = desk.page.locator(".apclab-lab .progress-bar").first
    until(lambda: bar.evaluate("bar => bar.style.width") == "100%", "the end of the bar")
    times = [us for case, us in desk.lab.ask(TIMES) if case == "shared"]
    assert desk.lab.drawn(desk.page)["traces"]["shared"]["y"] == pytest.approx(times, rel=1e-12)
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


def test_a_kernel_that_died_in_a_run_is_told(desk: Desk) -> None:  # the last one: it kills
    page = desk.page
    assert not page.locator(".apclab-gone").first.is_visible()
    desk.run(budget_s=3.0)
    desk.measured(1)
    desk.lab.execute("import os; os._exit(9)", wait=False)
    told = page.locator(".jp-Dialog", has_text="appears to have died")
    told.locator("button.jp-mod-accept").click(timeout=60_000)
    desk.lab.file.unlink()
    desk.lab.choose(page, "File", "Save Notebook")
    until(lambda: "apclab-gone" in desk.lab.saved(), "the saved page")
    page.reload()
    gone = page.locator(".apclab-gone", has_text="the new panel says so").first
    gone.wait_for(timeout=120_000)
    look(page, "lab-after-kernel-death.png")
    desk.lab.open_and_run_all(page)
    desk.says("the kernel before this one ended (it died or was restarted)")
    desk.says(f"was measuring {desk.points} points")
    desk.says('"overlay the run before" shows its')
    look(page, "lab-after-rerun.png")
