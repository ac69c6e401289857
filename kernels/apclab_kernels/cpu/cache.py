"""Where numba keeps compiled CPU kernels, and that none of older sources is ever run.

numba compares a compiled function with the file of that function alone. A change in a callee's
file would leave the old machine code in use, under the digest of the new source.
"""

import atexit
import contextlib
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numba


def _place() -> tuple[bool, str]:
    """Whether compiled code can be kept, and a sentence where that is not as usual.

    numba looks for a folder when a function is decorated, and raises where it may write to none: a
    checkout that is read-only and a user without a home.
    """

    def probe() -> None:
        """Nothing; numba looks for a folder, and compiles nothing before a call."""

    with contextlib.suppress(RuntimeError):
        numba.njit(cache=True)(probe)
        return True, ""
    said = "numba has no folder that it may write to (set NUMBA_CACHE_DIR to one), so kernels are"
    try:
        folder = tempfile.mkdtemp(prefix="apclab-numba-")
    except OSError:
        return False, f"{said} compiled in each process and kept in memory alone"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numba.config.CACHE_DIR = folder
    return True, f"{said} compiled in each process, in a temporary folder"


# what `cache` of numba's decorators is, and what a user must know of it: "" where all is as usual
CACHED, CACHE_NOTE = _place()


def drop_stale(dispatcher: Any) -> None:
    """Drop what is cached for this package's CPU kernels if any of their sources changed.

    Args:
        dispatcher: a function compiled with cache=CACHED; tells where the cache lies.
    """
    if not CACHED:
        return
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()
    folder = Path(dispatcher.stats.cache_path)
    stamp = folder / "sources.sha256"
    # a cache that cannot be written cannot have gone stale by our hand either
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text() == digest:
            return
        for index in folder.glob("*.nbi"):
            index.unlink(missing_ok=True)
        for code in folder.glob("*.nbc"):
            code.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest)
