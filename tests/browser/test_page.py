"""What the page says when settings move on, when it is stopped, saved and exported."""

from pathlib import Path
from typing import Any

import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Page

from tests import notebooks
from tests.browser import servers
from tests.browser.lab import Lab, look, until
from tests.browser.test_stress import PANELS

GREY = "rgba(128,128,128,0.6)"
_COLOURS = """() => {
  const figure = document.querySelector('.apclab-lab .js-plotly-plot');
  return figure.data.filter(trace => ['private', 'shared'].includes(trace.name))
    .flatMap(trace => [trace.line, trace.marker]).filter(part => part && part.color)
    .map(part => part.color);
}"""
# pixels of the two cases' colours in a picture
_PIXELS = """async picture => {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
  const context = canvas.getContext('2d');
  context.drawImage(picture, 0, 0);
  const {data} = context.getImageData(0, 0, canvas.width, canvas.height);
  const counts = {width: canvas.width, orange: 0, blue: 0};
  for (let i = 0; i < data.length; i += 4) {
    const pixel = [data[i], data[i + 1], data[i + 2], data[i + 3]].join();
    counts.orange += pixel === '230,159,0,255';
    counts.blue += pixel === '0,114,178,255';
  }
  return counts;
}"""


def looks(page: Page, name: str) -> None:
    """Keep screenshots of the panel, wide and narrow."""
    for width in (1000, 1600):
        page.set_viewport_size({"width": width, "height": 1300})
        page.wait_for_timeout(800)
        page.locator(".apclab-lab").first.scroll_into_view_if_needed()
        look(page, f"page-{name}-{width}.png")


def menu(page: Page, name: str) -> Any:
    """A menu of the panel by its label."""
    row = page.locator(".apclab-lab .widget-dropdown").filter(
        has=page.locator(".widget-label", has_text=name)
    )
    return row.first.locator("select")


def saved_with_picture(lab: Lab, page: Page, words: str) -> None:
    """Save as a user does, until the file holds the picture and the words."""

    def done() -> bool:
        lab.file.unlink(missing_ok=True)
        lab.choose(page, "File", "Save Notebook")
        until(lab.saved, "the file")
        return "data:image/png;base64," in lab.saved() and words in lab.saved()

    until(done, f"{words!r} in the saved page")


@pytest.mark.slow
def test_moved_on_stopped_saved_and_exported(tmp_path: Path, page: Page) -> None:
    notebook = notebooks.read(notebooks.FOLDER / "lab_app.ipynb")
    notebook.cells[-1].source = PANELS
    with servers.jupyterlab(tmp_path / "server", notebook) as lab:
        lab.open_and_run_all(page)
        assert not page.locator(".apclab-gone").first.is_visible()
        lab.button(page, "Run").click()
        until(lambda: "done: 9 of 9" in lab.text(page), "a run", 60)
        until(lambda: lab.points(page) == 9, "its points")
        assert page.evaluate(_COLOURS)
        assert GREY not in page.evaluate(_COLOURS)
        looks(page, "measured")

        # a page without a kernel shows the picture and the sentence
        words = lab.ask("lab._page.words")[:40]
        saved_with_picture(lab, page, words)
        exported = tmp_path / "exported.html"
        exporter = HTMLExporter()  # type: ignore[no-untyped-call]  # nbconvert has no types
        exported.write_text(exporter.from_filename(str(lab.file))[0], encoding="utf-8")
        with page.context.expect_page() as opened:
            page.evaluate("window.open('about:blank')")
        other = opened.value
        other.goto(exported.as_uri())
        picture = other.locator(".apclab-kept img")
        counts = picture.evaluate(_PIXELS)
        assert counts["width"] == 1200
        assert min(counts["orange"], counts["blue"]) > 500
        assert words in other.locator(".apclab-kept").inner_text()
        assert other.get_by_text("is gone").count() == 0
        look(other, "page-exported.png")
        other.close()

        # other settings: grey, and no claim; back again: as before
        menu(page, "dtype").select_option(label="float32")
        until(lambda: "in grey: measured with" in lab.text(page), "the word of grey")
        until(lambda: set(page.evaluate(_COLOURS)) == {GREY}, "grey lines")
        assert words not in lab.text(page)
        looks(page, "moved-on")
        page.reload()
        lab.wait_for_figure(page)
        until(lambda: set(page.evaluate(_COLOURS)) == {GREY}, "grey lines after a reload")
        assert not page.locator(".apclab-gone").first.is_visible()
        menu(page, "dtype").select_option(label="bfloat16")
        until(lambda: GREY not in page.evaluate(_COLOURS), "the colours again")
        until(lambda: words in lab.text(page), "the sentence again")

        # the stop button of the notebook cancels the run
        lab.execute("lab.change(points=8, budget_s=2.0)")
        lab.button(page, "Run").click()
        until(lambda: "measures 8 points" in lab.text(page), "the second run", 60)
        lab.choose(page, "Kernel", "Interrupt Kernel")
        until(lambda: "cancelled: " in lab.text(page), "the cancel", 20)
        looks(page, "stopped")

        # a count may be typed beyond its slider; what cannot be is told and taken back
        field = page.locator(".apclab-lab .widget-text input").nth(1)
        for typed, shown in (("4096", "4096"), ("0", "4096")):
            field.fill(typed)
            field.press("Enter")
            until(lambda shown=shown: field.input_value() == shown, f"{typed} to be taken")
        assert lab.ask("lab.settings.workload.input_len") == 4096
        until(lambda: "input_len must be at least 1, got 0" in lab.text(page), "why not 0")
        looks(page, "typed")


@pytest.mark.slow
def test_a_page_whose_kernel_is_gone_says_so(tmp_path: Path, page: Page) -> None:
    notebook = notebooks.read(notebooks.FOLDER / "lab_app.ipynb")
    with servers.jupyterlab(tmp_path / "server", notebook) as lab:
        lab.open_and_run_all(page)
        saved_with_picture(lab, page, "nothing was measured yet")
        lab.choose(page, "Kernel", "Shut Down Kernel")
        page.reload()
        gone = page.locator(".apclab-gone", has_text="run the cell again for a live one").first
        gone.wait_for(timeout=120_000)
        look(page, "page-gone.png")
