"""Which source files a backend's kernel is made of, and their digest; imports none of them."""

import ast
import hashlib
from pathlib import Path

import apclab_kernels


def kernel_sha256(backend: str, *, cascade: bool = False) -> str:
    """Digest of the kernel's source, so that a record says which code ran.

    Args:
        backend: "reference", "cpu" or "triton".
        cascade: of the prefix-aware kernel, with those that it is made of.
    """
    kernel = "reference" if backend == "reference" else f"{backend}/decode"
    if cascade and backend != "reference":
        kernel = f"{backend}/cascade"
    text = b"".join(file.read_bytes() for file in sources_of(kernel))
    return hashlib.sha256(text).hexdigest()


def sources_of(kernel: str) -> list[Path]:
    """A module of the kernels and all that it imports of them, however far away; by name.

    Args:
        kernel: the module's path in the package, without suffix: "cpu/decode".
    """
    folder = Path(next(iter(apclab_kernels.__path__)))
    todo, found = [folder / f"{kernel}.py"], set()
    while todo:
        if (file := todo.pop()) not in found:
            found.add(file)
            todo += _imported(file, folder)
    return sorted(found)


def _imported(file: Path, folder: Path) -> list[Path]:
    """The modules of the package that a file imports by `from .. import ..`, the house's way."""
    modules = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if module.startswith("apclab_kernels"):
                base = folder.joinpath(*module.split(".")[1:])
                modules += [base.with_suffix(".py"), *(base / f"{n.name}.py" for n in node.names)]
    return [module for module in modules if module.is_file()]
