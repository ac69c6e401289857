"""Runs every notebook and writes its outputs into it, fit to be committed: `make notebooks`.

A notebook that measures has `budget_s` among its parameters. One that has not renders to the same
bytes each time.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
WIDGET = "application/vnd.jupyter.widget-view+json"
_BEGIN = "from docs import pictures as _pictures; _pictures.begin()"
_END = "_pictures.end()"


def hashes(notebook: Any) -> dict[str, str]:
    """sha256 of the source of each code cell by the id of the cell."""
    return {
        cell.id: hashlib.sha256(cell.source.encode()).hexdigest()
        for cell in notebook.cells
        if cell.cell_type == "code"
    }


def measures(notebook: Any) -> bool:
    """Whether its outputs depend on a clock."""
    return any(
        "parameters" in cell.metadata.get("tags", []) and "budget_s" in cell.source
        for cell in notebook.cells
    )


def render(path: Path) -> bool:
    """Run a notebook, tidy it and write it back; says whether the file changed.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed; the file is left as it was.
    """
    before = path.read_bytes()
    notebook = nbformat.reads(before.decode(), as_version=4)
    panels = _execute(notebook)
    _tidy(notebook, panels)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    return path.read_bytes() != before


def _execute(notebook: Any) -> dict[str, str]:
    """Run all cells in a fresh kernel; returns the PNG of each panel by its model id."""
    count = len(notebook.cells)
    # nbclient puts what it ran back into the notebook, so ours need a place in it
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in (_BEGIN, _END)]
    places = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            store_widget_state=False,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        with client.setup_kernel(env={**os.environ, "PYTHONPATH": places}):
            client.execute_cell(notebook.cells[count], count, store_history=False)
            for index in range(count):
                client.execute_cell(notebook.cells[index], index)
            end = client.execute_cell(notebook.cells[count + 1], count + 1, store_history=False)
    del notebook.cells[count:]
    panels: dict[str, str] = json.loads(end.outputs[0].text)
    return panels


def _tidy(notebook: Any, panels: dict[str, str]) -> None:
    """Keep what a reader needs: no state of widgets, no times, no traces of this machine."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {
                "display_name": "Python 3 (ipykernel)",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
            "rendered": hashes(notebook),
        }
    )
    for cell in notebook.cells:
        cell.metadata = {name: cell.metadata[name] for name in ("tags",) if name in cell.metadata}
        own = hashlib.sha256(cell.id.encode()).hexdigest()
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/plain" in data:
                data["text/plain"] = re.sub(r" at 0x[0-9a-f]{6,}", "", data["text/plain"])
            if "text/html" in data:  # pandas gives each styled table a random name
                data["text/html"] = re.sub(r"\bT_[0-9a-f]{5}", f"T_{own[:5]}", data["text/html"])
            if "text/html" in data:  # and a panel to what the file keeps of it
                data["text/html"] = re.sub(
                    r"\bapclab-[0-9a-f]{32}\b", f"apclab-{own[:32]}", data["text/html"]
                )
            if WIDGET in data:
                data["text/plain"] = "a live panel: run the notebook"
                # as it was when the last cell had run, which is what the page shows too
                data["image/png"] = panels.get(data[WIDGET]["model_id"], data.get("image/png"))
                # without its state an id says nothing; a new one each time would be noise in a diff
                data[WIDGET]["model_id"] = own[:32]


def main() -> None:
    """Render the notebooks whose names are given, by default all, and the README's figure."""
    names = sys.argv[1:]
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not names or any(path.name.startswith(name) for name in names):
            print(f"{path.name}: {'changed' if render(path) else 'the same'}", flush=True)
    from docs.pictures import readme_figure

    print(readme_figure().relative_to(ROOT))


if __name__ == "__main__":
    main()
