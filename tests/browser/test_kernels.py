"""Live updates and Cancel with other ipykernels: each runs widget callbacks in its own way."""

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests import notebooks
from tests.browser import servers
from tests.browser.lab import until
from tests.browser.test_stress import PANELS


@pytest.fixture
def another_ipykernel(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the ipykernel of that version; the rest is this environment's."""
    folder = tmp_path / "ipykernel"
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--target", str(folder), f"ipykernel=={request.param}", "nest-asyncio"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot get ipykernel {request.param}: {done.stderr.strip()[-300:]}")
    return folder


# 6.31 hears of a click when the busy cell is over; 7.0.1 loses updates of plain threads
@pytest.mark.slow
@pytest.mark.parametrize("another_ipykernel", ["6.31.0", "7.0.1"], indirect=True)
def test_live_updates_and_cancel(another_ipykernel: Path, tmp_path: Path, page: Page) -> None:
    notebook = notebooks.read(notebooks.FOLDER / "lab_app.ipynb")
    notebook.cells[-1].source = PANELS
    before = str(another_ipykernel)
    with servers.jupyterlab(tmp_path / "server", notebook, before=before) as lab:
        lab.open_and_run_all(page)
        version = lab.ask("__import__('ipykernel').__version__")
        assert list(another_ipykernel.glob(f"ipykernel-{version}.dist-info"))
        lab.button(page, "Run").click()
        until(lambda: "done: 9 of 9" in lab.text(page), "a run", 60)
        until(lambda: lab.points(page) == 9, "its points")

        lab.execute("lab.change(points=8, budget_s=3.0)")
        lab.button(page, "Run").click()
        until(lambda: "measures 8 points" in lab.text(page), "the second run", 60)
        until(lambda: lab.points(page) == 1, "a first point", 60)
        with lab.busy():
            until(lambda: lab.points(page) == 2, "a point beside the busy cell", 60)
            lab.button(page, "Cancel").click()
            page.wait_for_timeout(1000)
        until(lambda: "cancelled: " in lab.text(page), "the cancel", 20)
        assert 0 < lab.points(page) < 8
