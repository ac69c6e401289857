"""The house keeps its arrows: which room may import which, and one door per heavy dependency."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import apclab

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"apclab": ROOT / "apclab", "apclab_kernels": ROOT / "kernels" / "apclab_kernels"}
MODULES = sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))

DESIGN = ROOT / "docs" / "design.md"
# every room checks what it is given in the same words; kernels are given nothing unchecked
FOR_ALL = {"arguments"}


def arrows_of(text: str) -> dict[str, set[str]]:
    """Room -> the rooms it may import, from the table of the design."""
    rows = re.findall(r"(?m)^\| `(\w+)` \|[^|]+\|([^|]*)\|$", text.partition("## Words")[0])
    everything = {room for room, _ in rows} - {"__main__"}
    made = {}
    for room, allowed in rows:
        names = set(re.findall(r"`(\w+)`", allowed))
        made[room] = everything - names - {room} if "all" in allowed else names
    return made


ARROWS = arrows_of(DESIGN.read_text(encoding="utf-8"))

# what `from apclab import name` may name besides rooms and their exports
OPEN_TO_ALL = {"data_dir", "__version__"}

# heavy dependency -> rooms that may import it; "cpu_*" and "triton_*" are files of apclab_kernels,
# "inside" is for imports within a function only
DOORS: dict[str, set[str]] = {
    "triton": {"triton_*"},
    "numba": {"cpu_*", "cache_sim inside"},
    "llvmlite": {"cpu_*"},
    "torch": {"triton_*", "attention", "clock", "bench", "model"},
    # peers: never dependencies, so that only a comparison that is running may ask for them
    "openvino": {"bench inside"},
    "vllm": {"bench inside"},
    "flashinfer": {"bench inside"},
    "flash_attn": {"bench inside"},
    "flash_attn_interface": {"bench inside"},
    "ipywidgets": {"widgets"},
    "anywidget": {"widgets"},
    "plotly": {"figures", "widgets"},
    "typer": {"cli"},
    "rich": {"cli"},
    "dask": {"sweep"},
    "distributed": {"sweep"},
    # the campaign runs where pandas is missing, so what it needs imports pandas inside only
    "pandas": {
        *("results inside", "memory_model inside", "decompose inside", "metrics inside"),
        *("traces", "replay", "cache_sim", "profiles", "explain", "sweep", "figures", "widgets"),
    },
}
HEAVY = {*DOORS, "numpy", "ml_dtypes", "jupyterlab", "IPython", "matplotlib"}


class Import(NamedTuple):
    """One module that a source file names, and whether that costs at import time."""

    target: str  # dotted, absolute
    inside: bool  # within a function, or for type checkers only
    line: int


def imports_of(module: str, source: str, *, is_package: bool = False) -> Iterator[Import]:
    """Every import in a source file: statements, relative ones, and import_module("literal")."""
    package = module if is_package else module.rpartition(".")[0]

    def visit(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import():
                    for alias in child.names:
                        yield Import(alias.name, inside, child.lineno)
                case ast.ImportFrom():
                    base = child.module or ""
                    if child.level:
                        parts = package.split(".")[: len(package.split(".")) - child.level + 1]
                        base = ".".join([*parts, base] if base else parts)
                    for alias in child.names:
                        yield Import(f"{base}.{alias.name}", inside, child.lineno)
                case ast.Call(
                    func=ast.Name(id="import_module" | "__import__")
                    | ast.Attribute(attr="import_module"),
                    args=[ast.Constant(value=str(target)), *_],
                ):
                    yield Import(target, inside, child.lineno)
            yield from visit(child, inside or _waits(child))

    yield from visit(ast.parse(source), inside=False)


def _waits(node: ast.AST) -> bool:
    """Whether what is in it does not run when the module is imported."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return not node.orelse
    return False


def room_of(dotted: str) -> str | None:
    """The room a dotted name lives in; None for other people's modules and for what all may use."""
    package, _, rest = dotted.partition(".")
    if package == "apclab_kernels":
        return package
    if package != "apclab" or rest in OPEN_TO_ALL:
        return None
    name = rest.partition(".")[0]
    return apclab._EXPORTS.get(name, name or "apclab")


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What a module imports against the design, as sentences; empty when all is well."""
    room = room_of(module) or "apclab"
    if room not in ARROWS and room != "apclab":
        return [f"{module}: the design has no room {room}"]
    found = []
    for item in imports_of(module, source, is_package=is_package):
        target = room_of(item.target)
        # the package itself holds nothing but lazy names; kernels do without it all the same
        if target == "apclab" and room != "apclab_kernels":
            continue
        allowed = ARROWS.get(room, set()) | (FOR_ALL if room != "apclab_kernels" else set())
        if target and target != room and target not in allowed:
            found.append(f"{module}:{item.line}: {room} may not import {target}")
        library = item.target.partition(".")[0]
        if library in DOORS and not _may_open(module, room, library, inside=item.inside):
            found.append(f"{module}:{item.line}: {library} has its door elsewhere")
    return found


def _may_open(module: str, room: str, library: str, *, inside: bool) -> bool:
    doors = DOORS[library]
    if room == "apclab_kernels":
        file = module.split(".")[1] if "." in module else ""
        return f"{file.partition('_')[0]}_*" in doors
    return room in doors or (inside and f"{room} inside" in doors)


def _module_name(path: Path) -> str:
    folder = next(folder for folder in PACKAGES.values() if path.is_relative_to(folder))
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def test_the_design_names_every_room_and_arrows_point_down() -> None:
    rooms = {room_of(_module_name(path)) for path in MODULES} - {"apclab"}
    assert rooms == ARROWS.keys()
    for allowed in ARROWS.values():
        assert allowed <= ARROWS.keys()
    built: set[str] = set()
    while left := {room for room in ARROWS if room not in built}:
        floor = {room for room in left if ARROWS[room] - {room} <= built}
        assert floor, f"a circle among {sorted(left)}"
        built |= floor
    assert ARROWS["attention"] == {"apclab_kernels"}
    assert "cli" not in ARROWS["widgets"]
    assert "bench" not in ARROWS["figures"]


@pytest.mark.parametrize("path", MODULES, ids=_module_name)
def test_module_keeps_arrows_and_doors(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    is_package = path.name == "__init__.py"
    assert violations(_module_name(path), source, is_package=is_package) == []


@pytest.mark.parametrize("path", MODULES, ids=_module_name)
def test_module_is_short_and_says_what_it_is(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 300
    assert ast.get_docstring(ast.parse(source))


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("apclab.blocks.pool", "import apclab.bench", "blocks may not import bench"),
        ("apclab.blocks.pool", "from .. import results", "blocks may not import results"),
        ("apclab.blocks", "from apclab import Workload", "blocks may not import workload"),
        ("apclab.clock", "def f():\n    from apclab.attention import plan", "import attention"),
        ("apclab.figures", "from apclab.bench import Step", "figures may not import bench"),
        ("apclab.bench", "import apclab_kernels.reference", "may not import apclab_kernels"),
        ("apclab_kernels.reference", "import apclab", "apclab_kernels may not import apclab"),
        ("apclab_kernels.runs", "import apclab.arguments", "may not import arguments"),
        ("apclab_kernels.reference", "import numba", "numba has its door elsewhere"),
        ("apclab_kernels.cpu_decode", "from triton import jit", "triton has its door elsewhere"),
        ("apclab.bench", "def f():\n    import numba", "numba has its door elsewhere"),
        ("apclab.cache_sim", "import numba", "numba has its door elsewhere"),
        ("apclab.bench.peers", "import openvino", "openvino has its door elsewhere"),
        ("apclab.results", "import pandas as pd", "pandas has its door elsewhere"),
        ("apclab.widgets", "import rich.table", "rich has its door elsewhere"),
        ("apclab.jobs", "import importlib\nimportlib.import_module('torch')", "torch has"),
        ("apclab.utils", "", "the design has no room utils"),
    ],
)
def test_a_planted_import_is_found(module: str, source: str, complaint: str) -> None:
    found = violations(module, source)
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("apclab.specs", "import apclab\nfrom apclab import data_dir"),
        ("apclab.blocks.pool", "from .keys import PrefixKeys"),
        ("apclab.cache_sim", "def f():\n    import numba"),
        ("apclab.results", "def f():\n    import pandas as pd"),
        ("apclab_kernels.triton_decode", "import torch\nimport triton.language as tl"),
        ("apclab_kernels.cpu_stream", "import numba\nfrom apclab_kernels.cpu_decode import _dot"),
        ("apclab.attention", "def f():\n    from apclab_kernels import cpu_decode"),
        ("apclab.cli.decode", "from apclab.bench import compare_decode\nfrom rich import print"),
    ],
)
def test_an_allowed_import_is_not_found(module: str, source: str) -> None:
    assert violations(module, source) == []


def _loaded_by(code: str) -> set[str]:
    """Which heavy libraries a fresh interpreter has loaded after running `code`."""
    report = f"{code}\nimport sys\nprint(*({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", report], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_import_is_light() -> None:
    assert _loaded_by("import apclab; dir(apclab)") == set()


def test_light_import_test_can_fail() -> None:
    assert "numpy" in _loaded_by("import apclab; apclab.BlockTable")


def test_every_exported_name_resolves() -> None:
    for name in apclab.__all__:
        assert getattr(apclab, name) is not None
        # also when the room was imported before, which has the name of what it exports
        import_module(f"apclab.{apclab._EXPORTS.get(name, 'specs')}")
        assert not isinstance(getattr(apclab, name), ModuleType)
    assert set(apclab.__all__) <= set(dir(apclab))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed(package: str) -> None:
    assert (PACKAGES[package] / "py.typed").is_file()


def test_only_the_clock_reads_the_clock() -> None:
    readers = {
        room_of(_module_name(path))
        for path in MODULES
        if "perf_counter" in path.read_text(encoding="utf-8")
    }
    assert readers <= {"clock"}


def test_no_module_edits_the_import_path() -> None:
    assert [path for path in MODULES if "sys.path" in path.read_text(encoding="utf-8")] == []
