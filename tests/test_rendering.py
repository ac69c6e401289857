"""Every notebook is stored as it was rendered, and rendering is repeatable: `make notebooks`."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

from docs import render
from tests import notebooks

ALL = sorted(notebooks.FOLDER.glob("*.ipynb"))
PLOTLY = "application/vnd.plotly.v1+json"
# a folder of somebody's, or the address of an object
LOCAL = re.compile(
    r"[\"' (](/home/|/root/|/tmp/|/Users/|[A-Z]:\\\\)| at 0x[0-9a-f]{6}|site-packages"
)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_is_clean(path: Path) -> None:
    assert complaints(path) == []


def complaints(path: Path) -> list[str]:
    """What is wrong with a notebook as it is stored; empty when all is well."""
    notebook = notebooks.read(path)
    found = []
    if path.stat().st_size >= 1_000_000:
        found.append("1 MB or more")
    if notebook.metadata.keys() != {"kernelspec", "language_info", "rendered"}:
        found.append(f"metadata {sorted(notebook.metadata)}")
    if notebook.metadata.get("language_info") != {"name": "python"}:
        found.append("language_info says more than the name")
    if notebook.metadata.get("rendered") != render.hashes(notebook):
        found.append("outputs are not those of this source: run make notebooks")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("cells were not run once each from top to bottom")
    if LOCAL.search(json.dumps(notebook)):
        found.append("a path or an address of somebody's machine")
    for cell in code:
        found += [f"{cell.id}: {what}" for what in map(_complaint, cell.outputs) if what]
    lengths = sorted(len(cell.source.splitlines()) for cell in code)
    if lengths[len(lengths) // 2] > 5:
        found.append("more than 5 lines in half of the cells")
    return found


def _complaint(output: Any) -> str:
    if output.output_type == "error" or output.get("name") == "stderr":
        return f"{output.output_type} {output.get('name', '')}"
    data = output.get("data", {})
    if data.keys() & {PLOTLY, render.WIDGET} and not data.get("image/png"):
        return "a figure without a picture for viewers that run no code"
    return ""


def _stored(path: Path, **changes: Any) -> Path:
    """A small rendered notebook, spoilt in one way."""
    cell = nbformat.v4.new_code_cell("1 + 1", id="sum", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("execute_result", changes.pop("data", {}))]
    cell.outputs[0].execution_count = 1
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": {}, "language_info": {"name": "python"}, "rendered": render.hashes(notebook)}
    )
    cell.update(changes.pop("cell", {}))
    notebook.metadata.update(changes)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"cell": {"source": "1 + 2"}}, "make notebooks"),
        ({"cell": {"execution_count": 3}}, "top to bottom"),
        ({"widgets": {}}, "metadata"),
        ({"data": {"text/plain": "x" * 1_000_000}}, "1 MB"),
        ({"data": {"text/plain": "'/home/me/apclab'"}}, "somebody's machine"),
        ({"data": {"text/plain": "<a at 0x7f0012345678>"}}, "somebody's machine"),
        ({"data": {PLOTLY: {}}}, "sum: a figure without a picture"),
        ({"data": {render.WIDGET: {}, "text/plain": "x"}}, "sum: a figure without a picture"),
        ({"cell": {"source": "1 + 1\n" * 6}}, "more than 5 lines"),
    ],
)
def test_a_spoilt_notebook_is_found(
    changes: dict[str, Any], complaint: str | None, tmp_path: Path
) -> None:
    found = complaints(_stored(tmp_path / "spoilt.ipynb", **changes))
    assert (found == []) if complaint is None else any(complaint in what for what in found)


# a kernel that just started may warn about its own shutdown
@pytest.mark.filterwarnings("default::DeprecationWarning", "default::ResourceWarning")
@pytest.mark.slow
def test_renders_to_the_same_bytes_without_a_clock(tmp_path: Path) -> None:
    cells = (
        "from apclab import DecodeLab, Workload",
        "from apclab.bench import decode_step",
        "from apclab.figures import block_picture",
        "step = decode_step(Workload(batch=3, input_len=63, output_len=2, cache_hit=0.8))",
        "block_picture(step.shared)",
        "step.shared.block_tables",
        "DecodeLab(batch=3)",
        "import pandas\npandas.DataFrame({'a': [1.0]}).style.format('{:.2f}')",
        "object()",
    )
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell, id=f"cell{i}") for i, cell in enumerate(cells)]
    )
    notebooks.write(notebook, tmp_path / "still.ipynb")
    for path in ALL:
        if not render.measures(notebooks.read(path)):
            shutil.copy(path, tmp_path)
    still = sorted(tmp_path.glob("*.ipynb"))
    assert {path.stem for path in still} >= {"still", "02_paged_attention"}
    for path in still:
        render.render(path)
        assert complaints(path) == []
        once = path.read_bytes()
        assert not render.render(path)
        assert path.read_bytes() == once


def test_a_notebook_that_measures_takes_a_budget() -> None:
    for path in ALL:
        notebook = notebooks.read(path)
        source = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        clocked = bool(re.search(r"compare_decode\(|\.run\(|measure_\w+\(", source))
        assert render.measures(notebook) == clocked, path.name
