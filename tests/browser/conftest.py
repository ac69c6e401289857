"""A real JupyterLab on a free port and a real browser, both gone when the tests are."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests import notebooks
from tests.browser.lab import PICTURES, Lab

ROOT = Path(__file__).resolve().parents[2]
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
    work, runtime = tmp_path / "work", tmp_path / "runtime"
    work.mkdir()
    notebook = notebooks.read(notebooks.FOLDER / "04_decode_lab.ipynb")
    notebooks.override(notebook, budget_s=0.05, batch=12)
    notebooks.write(notebook, work / "lab.ipynb")
    settings = tmp_path / "settings"
    news = settings / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    # the question about news would cover the page
    news.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels"))),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"),
    }
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", f"--ServerApp.root_dir={work}"),
    ]
    if os.geteuid() == 0:
        command.append("--allow-root")
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield Lab(_address(server, runtime, tmp_path / "server.log"), runtime)
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _address(server: "subprocess.Popen[bytes]", runtime: Path, log: Path) -> str:
    """URL of the notebook, with the token, once the server says where it listens."""
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                info = json.loads(file.read_text())
            except json.JSONDecodeError:  # half written
                continue
            return f"{info['url']}lab/tree/lab.ipynb?reset&token={info['token']}"
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = browser.new_page(viewport={"width": 1600, "height": 1300})
            yield page
            # what was there last, also when the test failed
            PICTURES.mkdir(exist_ok=True)
            page.screenshot(path=PICTURES / "last.png")
        finally:
            browser.close()
