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
  if (!figure || !figure.data || !figure.data.length) return null;
  const traces = {};
  for (const trace of figure.data)
    if (trace.type === 'scatter' && trace.name && trace.yaxis === 'y2')
      traces[trace.name] = {x: Array.from(trace.x || []), y: Array.from(trace.y || [])};
  const map = figure.data.find(trace => trace.type === 'heatmap');
  return {traces, readers: map.z.map(row => Array.from(row)),
          titles: figure.layout.annotations.map(note => note.text)};
}"""


class Lab:
    """A running server with one notebook, `lab.ipynb`, that holds a DecodeLab named `lab`.

    Args:
        url: of the notebook, token included.
        runtime: folder with the connection files of kernels.
    """

    def __init__(self, url: str, runtime: Path) -> None:
        self.url = url
        self._runtime = runtime

    def open_and_run_all(self, page: Page) -> None:
        """Open the notebook, run all cells, wait for the panel."""
        page.goto(self.url)
        idle = page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")
        idle.wait_for(timeout=60_000)
        # asked too early, JupyterLab wants to know which kernel to take, and then runs nothing
        question = page.locator(".jp-Dialog button.jp-mod-accept")
        page.add_locator_handler(question, lambda button: button.click())
        started = page.locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[[0-9*]+\]"))
        for _ in range(5):
            page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
            page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
            page.wait_for_timeout(1500)
            if started.count():
                break
        self.wait_for_figure(page)

    def wait_for_figure(self, page: Page) -> None:
        """Wait until the first panel's figure is there, with its traces."""
        self.figure(page).wait_for(timeout=60_000)
        until(lambda: page.evaluate(_TRACES) is not None, "the traces")

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
    def _client(self) -> Iterator[BlockingKernelClient]:
        """A connection to the newest kernel: with Voila each page load has its own."""
        files = sorted(self._runtime.rglob("kernel-*.json"), key=lambda file: file.stat().st_mtime)
        client = BlockingKernelClient(connection_file=str(files[-1]))
        client.load_connection_file()
        client.start_channels()
        try:
            yield client
        finally:
            client.stop_channels()


def until(condition: Any, what: str, seconds: float = 30) -> float:
    """Wait for a condition; seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"waited {seconds} s for {what}"
        time.sleep(0.1)
    return time.monotonic() - start
