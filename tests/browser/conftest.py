"""A real server and a real browser, both gone when the tests are."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests import notebooks
from tests.browser import servers
from tests.browser.lab import Lab, look

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="chromium is not installed"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """JupyterLab over a folder with a copy of the notebook, and the way to its kernel."""
    notebook = notebooks.read(notebooks.FOLDER / "04_decode_lab.ipynb")
    notebooks.override(notebook, budget_s=0.05, batch=12)
    with servers.jupyterlab(tmp_path / "server", notebook) as lab:
        yield lab


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a headless Chromium."""
    with browser_page() as page:
        yield page


@contextmanager
def browser_page() -> Iterator[Page]:
    """The same for fixtures that live longer than a test."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = browser.new_page(viewport={"width": 1600, "height": 1300})
            try:
                yield page
            finally:  # what was there last, also when the test failed
                look(page, "last.png")
        finally:
            browser.close()
