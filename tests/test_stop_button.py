"""The stop button of a notebook, in a real kernel: an interrupt between cells and inside one."""

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[1]
# a kernel that just started may warn about its own shutdown
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning", "default::ResourceWarning")
PANEL = """
import time
from apclab import DecodeLab, bench
from tests import fakes
bench.compare_decode = fakes.compare_decode
lab = DecodeLab(batch=6, input_len=63, budget_s=0.5)
lab.run()
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Manager and client of a kernel in which a panel measures in the background."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(ROOT / "kernels"))))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    manager, client = start_new_kernel()
    try:
        reply = client.execute(PANEL, reply=True, timeout=120)
        assert reply["content"]["status"] == "ok", reply["content"]
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def status(client: Any) -> str:
    reply = client.execute(
        "", user_expressions={"status": "lab.wait(5) and lab.status"}, reply=True, timeout=60
    )
    words = reply["content"]["user_expressions"]["status"]["data"]["text/plain"]
    return str(ast.literal_eval(words))


def test_between_two_cells(kernel: tuple[Any, Any]) -> None:
    manager, client = kernel
    press_when_idle(manager)  # the panel is not
    assert status(client) == "cancelled"
    # and again: nothing runs, and the next run can be stopped, too
    press_when_idle(manager)
    client.execute("lab.run()", reply=True, timeout=60)
    press_when_idle(manager)
    assert status(client) == "cancelled"


def press_when_idle(manager: Any) -> None:
    """Interrupt as a hand does: for some ms after its reply ipykernel still listens by itself."""
    time.sleep(0.3)
    manager.interrupt_kernel()


def test_inside_of_another_cell(kernel: tuple[Any, Any], tmp_path: Path) -> None:
    manager, client = kernel
    begun = tmp_path / "begun"
    cell = f"open({str(begun)!r}, 'w').close()\ntime.sleep(60)"
    client.execute(cell, stop_on_error=False)
    while not begun.exists():
        time.sleep(0.05)
    manager.interrupt_kernel()
    assert status(client) == "cancelled"
