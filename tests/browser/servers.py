"""JupyterLab and Voila on free ports over a folder with one notebook; gone when the test is."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import notebooks
from tests.browser.lab import Lab

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def jupyterlab(folder: Path, notebook: Any, *, before: str = "") -> Iterator[Lab]:
    """A JupyterLab with the notebook.

    Args:
        folder: empty, for everything that the server writes.
        notebook: what is opened.
        before: a folder that Python looks into before its own, for another ipykernel.
    """
    work, runtime = folder / "work", folder / "runtime"
    work.mkdir(parents=True)
    notebooks.write(notebook, work / "lab.ipynb")
    news = folder / "settings" / "@jupyterlab" / "apputils-extension"
    news.mkdir(parents=True)
    # the question about news would cover the page
    (news / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    command = [
        *("-m", "jupyterlab", "--no-browser"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", f"--ServerApp.root_dir={work}"),
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]

    def address() -> str | None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                info = json.loads(file.read_text())
            except json.JSONDecodeError:  # half written
                continue
            return f"{info['url']}lab/tree/lab.ipynb?reset&token={info['token']}"
        return None

    with _served(command, work, before, address) as url:
        yield Lab(url, runtime, work / "lab.ipynb")


@contextmanager
def voila(folder: Path, notebook: Any) -> Iterator[Lab]:
    """A Voila that serves the notebook as an app; each page load has a kernel of its own."""
    work = folder / "work"
    work.mkdir(parents=True)
    notebooks.write(notebook, work / "lab.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"

    def address() -> str | None:
        try:
            # a path that starts no kernel
            urllib.request.urlopen(f"{url}voila/static/none", timeout=1)
        except urllib.error.HTTPError:
            pass
        except OSError:
            return None
        return url

    runtime = folder / "runtime"
    runtime.mkdir()
    command = [
        *("-m", "voila", "lab.ipynb", "--no-browser", f"--port={port}"),
        f"--Voila.connection_dir_root={runtime}",
    ]
    with _served(command, work, "", address) as found:
        yield Lab(found, runtime, work / "lab.ipynb")


@contextmanager
def _served(
    command: list[str], work: Path, before: str, address: Callable[[], str | None]
) -> Iterator[str]:
    """Run a server until the block ends; the address once it answers."""
    folder = work.parent
    paths = [*([before] if before else []), str(ROOT), str(ROOT / "kernels")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
    }
    log = folder / "server.log"

    def start() -> "subprocess.Popen[bytes]":
        with log.open("a") as output:
            return subprocess.Popen(
                [sys.executable, *command],
                cwd=work,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    server = start()
    try:
        try:
            found = _wait(server, address, log)
        except RuntimeError:  # a busy machine; a start that fails twice is no accident
            _stop(server)
            server = start()
            found = _wait(server, address, log)
        yield found
    finally:
        _stop(server)


def _stop(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _wait(server: "subprocess.Popen[bytes]", address: Callable[[], str | None], log: Path) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        if found := address():
            return found
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}")
