"""Every notebook runs from top to bottom, stores the numbers that it should, and is clean."""

import ast
import json
import math
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient

from tests import notebooks

ALL = sorted(notebooks.FOLDER.glob("*.ipynb"))
ROOT = notebooks.FOLDER.parent
# small enough to be quick; overridden only where a notebook has them
SMALL = {"budget_s": 0.05, "batch": 12, "targets": ["sm_90"]}


def decode_lab(numbers: dict[str, Any]) -> None:
    assert numbers["points"] == 9
    # 12 requests, 310 tokens each: 18 full blocks shared by all, 2 of their own
    assert numbers["readers_mean"] == pytest.approx(12 * 20 / (18 + 12 * 2))
    assert numbers["realised_hit"] == pytest.approx(288 / 300)
    # llama-13b in bfloat16 has 20,480 bytes a token in a layer; one copy of 18 blocks stays
    assert numbers["saved_bytes"] == 11 * 18 * 16 * 20_480
    assert numbers["own_readers"] == 1.0
    assert len(numbers["p50_us"]) == 18
    assert all(0 < time < math.inf for time in numbers["p50_us"])


def paged_attention(numbers: dict[str, Any]) -> None:
    has_triton = find_spec("triton") is not None
    assert numbers["backends"] == (["cpu", "triton"] if has_triton else ["cpu"])
    assert len(numbers["within"]) == 3 * len(numbers["backends"])  # three dtypes
    assert all(numbers["within"])
    assert all(0 < used <= 1 for used in numbers["used"])
    assert numbers["unmoved"] == 0.0
    # float16 rounds numbers near 1 by at most 5e-4
    assert numbers["wrong"] > 0.1
    assert len(numbers["by_request"]) == 1 + len(numbers["backends"])
    for first, *others in numbers["by_request"]:
        assert first > 0.0
        assert others == [0.0, 0.0]
    # two shapes in three dtypes, and at least one GPU of the target
    assert len(numbers["spills"]) >= (6 if has_triton else 0)
    assert not any(numbers["spills"])
    assert all(ratio >= 1.5 for ratio in numbers["ratio"])
    assert numbers["records"] == 2


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "02_paged_attention": paged_attention,
    "04_decode_lab": decode_lab,
}


def test_there_are_notebooks() -> None:
    assert CHECKS.keys() <= {path.stem for path in ALL}


def run(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *before: Path) -> Any:
    """Run a notebook in a folder, with what lies in `before` first on the import path."""
    found = (*map(str, before), str(ROOT), str(ROOT / "kernels"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
    notebook = notebooks.read(path)
    notebooks.override(notebook, **SMALL)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()  # an error in a cell raises
    return notebook


def numbers_of(notebook: Any) -> dict[str, Any]:
    (output,) = notebooks.tagged(notebook, "numbers").outputs
    found: dict[str, Any] = ast.literal_eval(output.data["text/plain"])
    return found


# a kernel that just started may warn about its own shutdown
kernel_warns = pytest.mark.filterwarnings("default::DeprecationWarning", "default::ResourceWarning")


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
@kernel_warns
def test_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = run(path, tmp_path, monkeypatch)
    if check := CHECKS.get(path.stem):
        check(numbers_of(notebook))


@kernel_warns
@pytest.mark.slow
def test_paged_attention_runs_without_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide = "import sys\nsys.modules.update(triton=None, torch=None)\n"
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(hide, encoding="utf-8")
    path = notebooks.FOLDER / "02_paged_attention.ipynb"
    notebook = run(path, tmp_path, monkeypatch, tmp_path / "hidden")
    assert numbers_of(notebook)["backends"] == ["cpu"]
    (said,) = next(cell for cell in notebook.cells if cell.id == "interpreter").outputs
    assert "pip install 'triton>=" in said.data["text/plain"]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_is_clean(path: Path) -> None:
    assert path.stat().st_size < 1_000_000
    notebook = notebooks.read(path)
    assert "widgets" not in notebook.metadata
    assert "budget_s" in notebooks.tagged(notebook, "parameters").source
    text = json.dumps(notebook)
    assert not re.search(r"[\"' (](/home/|/root/|/tmp/|/Users/|[A-Z]:\\\\)", text)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr"


def test_parameters_are_overridden() -> None:
    notebook = notebooks.read(notebooks.FOLDER / "04_decode_lab.ipynb")
    notebooks.override(notebook, budget_s=0.25, not_there=1)
    source = notebooks.tagged(notebook, "parameters").source
    assert "budget_s = 0.25  #" in source
    assert "not_there" not in source
