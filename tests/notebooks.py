"""How tests treat a notebook: read it, override its parameters, never write it back."""

import re
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def read(path: Path) -> Any:
    """The notebook at a path, in memory."""
    return nbformat.read(path, as_version=4)


def tagged(notebook: Any, tag: str) -> Any:
    """The one cell that has the tag."""
    found = [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]
    assert len(found) == 1, f"one cell tagged {tag!r} expected, got {len(found)}"
    return found[0]


def has(notebook: Any, tag: str) -> bool:
    """Whether a cell has the tag."""
    return any(tag in cell.metadata.get("tags", []) for cell in notebook.cells)


def override(notebook: Any, **values: Any) -> None:
    """Replace assignments in the cell tagged `parameters`; a name that it lacks is left out."""
    cell = tagged(notebook, "parameters")
    for name, value in values.items():
        line = rf"(?m)^{name} = [^#\n]*?(?=\s*(#|$))"
        cell.source = re.sub(line, f"{name} = {value!r}", cell.source)


def write(notebook: Any, path: Path) -> None:
    """Write a copy."""
    nbformat.write(notebook, path)
