"""The decode lab in a real JupyterLab: move, run, cancel, run again, reload, look."""

from statistics import median

import pytest
from playwright.sync_api import Page

from tests.browser.lab import Lab, look, until

TIMES = "[[r['case'], r['workload']['cache_hit'], r['p50_us']] for r in lab.records]"


def test_move_run_cancel_run_again(lab: Lab, page: Page) -> None:
    lab.open_and_run_all(page)
    until(lambda: lab.ask("lab.status") == "done", "the notebook's own run", 120)
    until(lambda: lab.points(page) == 9, "its nine points on the page")
    assert_page_shows_records(lab, page)

    # a slider redraws the block tables and their numbers, and measures nothing
    measured = lab.ask(TIMES)
    before = lab.drawn(page)["readers"]
    assert "realised 0.96" in lab.text(page)  # 18 blocks of 16 tokens, of 300
    lab.press(page, "cache hit", *["ArrowLeft"] * 10)
    until(lambda: "hit asked 0.50" in lab.text(page), "the readout to follow the slider")
    until(lambda: lab.drawn(page)["readers"] != before, "the block tables to follow it")
    assert lab.ask("lab.settings.workload.cache_hit") == 0.5
    assert lab.ask(TIMES) == measured

    # Run: points come one by one; Cancel: it stops at once and keeps complete points
    lab.ask("lab.change(budget_s=0.4)")
    lab.button(page, "Run").click()
    until(lambda: 1 <= lab.points(page) <= 6, "the first points", 60)
    seen = lab.points(page)
    until(lambda: lab.points(page) > seen, "more points", 60)
    lab.button(page, "Cancel").click()
    assert until(lambda: "cancelled" in lab.text(page), "the cancel", 10) < 5
    assert 0 < lab.points(page) < 9
    assert_page_shows_records(lab, page)

    # Run again, with another batch: other records
    lab.ask("lab.change(budget_s=0.05)")
    lab.press(page, "batch", *["ArrowRight"] * 4)
    until(lambda: lab.ask("lab.settings.workload.batch") == 16, "the batch slider")
    lab.button(page, "Run").click()
    until(lambda: "done:" in lab.text(page), "the end of the run", 60)
    until(lambda: lab.points(page) == 9, "all points")
    assert_page_shows_records(lab, page)
    assert lab.ask(TIMES) != measured
    assert lab.ask("[r['workload']['batch'] for r in lab.records]") == [16] * 27

    for width in (1600, 1000):
        page.set_viewport_size({"width": width, "height": 1300})
        page.wait_for_timeout(800)
        assert_figure_fits(lab, page)
        page.locator(".apclab-lab").first.scroll_into_view_if_needed()
        look(page, f"lab-light-{width}.png")

    # a reload shows the present figure, not the first one; in the dark theme too
    page.keyboard.press("Control+s")
    page.wait_for_timeout(500)
    use_dark_theme(page)
    page.reload()
    lab.wait_for_figure(page)
    until(lambda: lab.points(page) == 9, "the points after a reload")
    assert_page_shows_records(lab, page)
    for width in (1000, 1600):
        page.set_viewport_size({"width": width, "height": 1300})
        page.wait_for_timeout(800)
        page.locator(".apclab-lab").first.scroll_into_view_if_needed()
        look(page, f"lab-dark-{width}.png")


def assert_page_shows_records(lab: Lab, page: Page) -> None:
    """The plotted y are the records' p50_us in the order of x; private is one for all hits."""
    records = lab.ask(TIMES)
    traces = lab.drawn(page)["traces"]
    expected = {
        case: sorted((hit, time) for name, hit, time in records if name == case)
        for case in ("private", "shared")
    }
    for case, points in expected.items():
        assert traces[case]["x"] == pytest.approx([hit for hit, _ in points])
    times = [time for _, time in expected["shared"]]
    assert traces["shared"]["y"] == pytest.approx(times, rel=1e-12)
    pooled = median(time for _, time in expected["private"])
    assert traces["private"]["y"] == pytest.approx([pooled] * len(times), rel=1e-12)


def assert_figure_fits(lab: Lab, page: Page) -> None:
    """The figure lies inside the output area of its cell."""
    inner = lab.figure(page).bounding_box()
    outer = page.locator(".jp-OutputArea-output", has=page.locator(".apclab-lab")).bounding_box()
    assert inner is not None
    assert outer is not None
    assert inner["x"] >= outer["x"] - 1
    assert inner["x"] + inner["width"] <= outer["x"] + outer["width"] + 1


def use_dark_theme(page: Page) -> None:
    """JupyterLab's own dark theme, from the next load on."""
    page.evaluate(
        """async () => {
          const cookie = document.cookie.match(/_xsrf=([^;]+)/);
          const base = JSON.parse(document.getElementById('jupyter-config-data').textContent);
          await fetch(base.baseUrl + 'lab/api/settings/@jupyterlab/apputils-extension:themes', {
            method: 'PUT',
            headers: {'Content-Type': 'application/json',
                      'X-XSRFToken': cookie ? cookie[1] : '',
                      'Authorization': 'token ' + (base.token || '')},
            body: JSON.stringify({raw: JSON.stringify({theme: 'JupyterLab Dark'})}),
          });
        }"""
    )
