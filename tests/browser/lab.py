"""What a test does in JupyterLab: run cells, move sliders, press buttons, ask the kernel."""

import ast
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from playwright.sync_api import Locator, Page

PICTURES = Path(__file__).resolve().parents[2] / "artifacts"

# x and y of a case's medians as the page has them, and the heat map of readers
_TRACES = """() => {
  const figure = document.querySelector('.apclab-lab .js-plotly-plot');
  const map = figure && figure.data && figure.data.find(trace => trace.type === 'heatmap');
  if (!map) return null;
  const traces = {};
  for (const trace of figure.data)
    if (trace.type === 'scatter' && trace.name && trace.yaxis === 'y2')
      traces[trace.name] = {x: Array.from(trace.x || []), y: Array.from(trace.y || [])};
  return {traces, readers: map.z.map(row => Array.from(row)),
          titles: figure.layout.annotations.map(note => note.text)};
}"""


class Lab:
    """A running server with one notebook, `lab.ipynb`, that holds a DecodeLab named `lab`.

    Args:
        url: of the notebook, token included.
        runtime: folder with the connection files of kernels.
        file: the notebook on disk.
    """

    def __init__(self, url: str, runtime: Path, file: Path) -> None:
        self.url, self.file = url, file
        self._runtime = runtime

    def open_and_run_all(self, page: Page) -> None:
        """Open the notebook, run all cells, wait for the panel."""
        page.goto(self.url)
        # the page shows an idle kernel before there is one
        until(self._connection, "a kernel", 120)
        self.ask("1")
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=120_000)
        question = page.locator(".jp-Dialog button.jp-mod-accept")
        # a saved notebook has prompts with numbers before anything has run
        runs = page.locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[\*\]"))
        there = page.locator(".apclab-lab")
        for _ in range(5):
            self.choose(page, "Run", "Run All Cells")
            until(lambda: runs.count() or there.count() or question.count(), "a cell to run", 120)
            if not question.count():
                break
            # asked too early, it wants to know which kernel to take, and then runs nothing
            question.first.click()
            until(lambda: not question.count(), "the question to go")
        self.wait_for_figure(page)

    def choose(self, page: Page, menu: str, item: str) -> None:
        """Choose an item of a menu of JupyterLab."""
        page.locator(".lm-MenuBar-itemLabel", has_text=menu).first.click()
        page.locator(".lm-Menu-itemLabel", has_text=item).first.click()

    def wait_for_figure(self, page: Page) -> None:
        """Wait until the first panel's figure is there, with its traces.

        anywidget gives up a model whose module does not load within 2 s: on a machine that is
        busy enough the figure stays as it was opened, without traces.
        """
        self.figure(page).wait_for(timeout=120_000)
        what = "the traces; did the module of the figure take anywidget more than 2 s to load?"
        until(lambda: page.evaluate(_TRACES) is not None, what)

    def figure(self, page: Page) -> Locator:
        """The page of pictures, of the first panel."""
        return page.locator(".apclab-lab .js-plotly-plot").first

    def button(self, page: Page, text: str, panel: int = 0) -> Locator:
        """A button of a panel."""
        there = page.locator(".apclab-lab").nth(panel)
        return there.locator("button.widget-button", has_text=text)

    def text(self, page: Page, panel: int = 0) -> str:
        """All words of a panel."""
        return page.locator(".apclab-lab").nth(panel).inner_text()

    def press(self, page: Page, slider: str, *keys: str) -> None:
        """Move a slider by keyboard."""
        row = page.locator(".apclab-lab .widget-hslider").filter(
            has=page.locator(".widget-label", has_text=slider)
        )
        row.first.locator(".noUi-handle").focus()
        for key in keys:
            page.keyboard.press(key)

    def drawn(self, page: Page) -> dict[str, Any]:
        """What the page shows: medians of each case, readers of each block, titles."""
        found: dict[str, Any] = page.evaluate(_TRACES)
        return found

    def points(self, page: Page) -> int:
        """Points of the case `shared` that the page shows."""
        return len(self.drawn(page)["traces"]["shared"]["y"])

    def ask(self, expression: str) -> Any:
        """The value of an expression in the notebook's kernel, by way of JSON."""
        asked = {"answer": f"__import__('json').dumps({expression})"}
        with self._client() as client:
            reply = client.execute(
                "", user_expressions=asked, store_history=False, reply=True, timeout=60
            )
        answer = reply["content"]["user_expressions"]["answer"]
        assert answer["status"] == "ok", answer
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    def saved(self) -> str:
        """The notebook's file, "" while there is none."""
        return self.file.read_text(encoding="utf-8") if self.file.exists() else ""

    def execute(self, code: str, *, wait: bool = True) -> None:
        """Run code in the notebook's kernel as a cell would; without `wait` only send it."""
        with self._client() as client:
            if not wait:
                client.execute(code, store_history=False)
                time.sleep(0.5)  # the message goes out in the background
                return
            reply = client.execute(code, store_history=False, reply=True, timeout=60)
        assert reply["content"]["status"] == "ok", reply["content"]

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A cell is busy in the kernel's main thread for as long as the block takes."""
        begun, over = self._runtime / "busy-begun", self._runtime / "busy-over"
        for file in (begun, over):
            file.unlink(missing_ok=True)
        code = (
            "import pathlib, time\n"
            f"pathlib.Path({str(begun)!r}).touch()\n"
            f"while not pathlib.Path({str(over)!r}).exists():\n"
            "    time.sleep(0.05)"
        )
        self.execute(code, wait=False)
        try:
            until(begun.exists, "the busy cell", 60)
            yield
        finally:
            over.touch()

    @contextmanager
    def _client(self) -> Iterator[BlockingKernelClient]:
        """A connection to the newest kernel: with Voila each page load has its own."""
        until(self._connection, "the file of a kernel")
        client = BlockingKernelClient(connection_file=str(self._connection()))
        client.load_connection_file()
        client.start_channels()
        try:
            yield client
        finally:
            client.stop_channels()
            client.context.destroy(linger=0)  # else its files stay open until Python collects it

    def _connection(self) -> Path | None:
        """The newest kernel's connection file, once it is written to its end."""
        files = sorted(self._runtime.rglob("kernel-*.json"), key=lambda file: file.stat().st_mtime)
        whole = files and files[-1].read_text(encoding="utf-8").rstrip().endswith("}")
        return files[-1] if whole else None


def until(condition: Any, what: str, seconds: float = 60) -> float:
    """Wait for a condition; seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"waited {seconds} s for {what}"
        time.sleep(0.1)
    return time.monotonic() - start


def look(what: Page | Locator, name: str) -> None:
    """Keep a screenshot for people."""
    PICTURES.mkdir(exist_ok=True)
    what.screenshot(path=PICTURES / name)
