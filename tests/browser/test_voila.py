"""The decode lab as an app without code, served by Voila."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests import notebooks
from tests.browser import servers
from tests.browser.lab import look, until

TIMES = "[[r['case'], r['p50_us']] for r in lab.records]"


@pytest.mark.slow
def test_the_app_runs_cancels_and_starts_anew(tmp_path: Path, page: Page) -> None:
    notebook = notebooks.read(notebooks.FOLDER / "lab_app.ipynb")
    cell = notebook.cells[-1]
    cell.source = cell.source.replace("DecodeLab()", "DecodeLab(batch=12, budget_s=0.05)")
    with servers.voila(tmp_path / "server", notebook) as lab:
        page.goto(lab.url)
        lab.wait_for_figure(page)
        # the first picture is whole: titles and theme come with the constructor
        assert lab.drawn(page)["titles"][0].startswith("240 entries")
        until(lambda: "press Run to measure 9 points" in lab.text(page), "the status line")
        lab.button(page, "Run").click()
        until(lambda: "done: 9 of 9" in lab.text(page), "the end of the run", 90)
        until(lambda: lab.points(page) == 9, "all points")
        times = [time for case, time in lab.ask(TIMES) if case == "shared"]
        assert lab.drawn(page)["traces"]["shared"]["y"] == pytest.approx(times, rel=1e-12)
        # a visitor's records go home with him, not into this repository
        lab.button(page, "Save").click()
        with page.expect_download() as download:
            page.locator(".apclab-lab a[download]").click()
        content = download.value.path().read_text(encoding="utf-8")
        assert [json.loads(line)["p50_us"] for line in content.splitlines()] == [
            time for _, time in lab.ask(TIMES)
        ]

        lab.press(page, "cache hit", *["ArrowLeft"] * 60)
        until(lambda: "hit asked 0.00" in lab.text(page), "the slider")
        for width in (1600, 1000):
            page.set_viewport_size({"width": width, "height": 1150})
            page.wait_for_timeout(800)
            look(page, f"voila-{width}.png")
            box = lab.figure(page).bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= width

        lab.execute("lab.change(points=8, budget_s=2.0)")
        lab.button(page, "Run").click()
        until(lambda: "measures 8 points" in lab.text(page), "a run", 60)
        until(lambda: 1 <= lab.points(page) < 8, "a point", 60)
        lab.button(page, "Cancel").click()
        until(lambda: "cancelled: " in lab.text(page), "the cancel", 20)

        # each load of the page is a visitor of its own, with a kernel of its own
        lab.button(page, "Run").click()
        until(lambda: "measures 8 points" in lab.text(page), "a run", 60)
        page.reload()
        lab.wait_for_figure(page)
        until(lambda: "press Run to measure 9 points" in lab.text(page), "a fresh panel", 60)
        assert lab.drawn(page)["titles"][0].startswith("240 entries")
        assert "the kernel before this one" not in lab.text(page)  # that was somebody else
