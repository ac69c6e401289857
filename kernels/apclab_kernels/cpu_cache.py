"""Keeps numba's disk cache honest: compiled code of older sources is dropped before it can run.

numba compares a compiled function with the file of that function alone. A change in a callee's
file would leave the old machine code in use, under the digest of the new source.
"""

import contextlib
import hashlib
from pathlib import Path
from typing import Any


def drop_stale(dispatcher: Any) -> None:
    """Drop what is cached for this package's CPU kernels if any of their sources changed.

    Args:
        dispatcher: a function compiled with cache=True; tells where the cache lies.
    """
    sources = sorted(Path(__file__).parent.glob("cpu_*.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()
    folder = Path(dispatcher.stats.cache_path)
    stamp = folder / "cpu_sources.sha256"
    # a cache that cannot be written cannot have gone stale by our hand either
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text() == digest:
            return
        for index in folder.glob("cpu_*.nbi"):
            index.unlink(missing_ok=True)
        for code in folder.glob("cpu_*.nbc"):
            code.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest)
