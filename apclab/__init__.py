"""apclab: why, and by how much, decode gets faster when prefix caching is on.

Names are imported when first used: `import apclab` costs milliseconds and loads no heavy library.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# public name -> the room it lives in
_EXPORTS = {
    "BlockPool": "blocks",
    "BlockTable": "blocks",
    "DecodeLab": "widgets",
    "ISSUE_4860": "workload",
    "Workload": "workload",
    "calibrate": "bench",
    "compare_decode": "bench",
    "load_results": "results",
    "paged_attention_decode": "attention",
    "paged_attention_prefill": "attention",
    "read_trace": "traces",
    "replay": "replay",
    "simulate": "decompose",
}
__all__ = ["__version__", "data_dir", *sorted(_EXPORTS)]


def data_dir() -> Path:
    """Folder of the data tables: the checkout's `data/`, else the copy inside the wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / "data"
    # an editable install may leave a stale copy in the package, so the checkout comes first
    if (package.parent / "pyproject.toml").is_file() and checkout.is_dir():
        return checkout
    return package / "_data"


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"apclab.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'apclab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})


class _Package(ModuleType):
    """Keeps a public name when a room of the same name is imported (`apclab.replay`)."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _EXPORTS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
