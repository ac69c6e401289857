"""Compiled kernels of older sources never run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent.parent / "kernels"
PROGRAM = """
import numpy as np
from apclab_kernels.cpu import decode as cpu_decode
cache = np.ones((1, 4, 1, 32), np.float32)
out, lse = np.empty((1, 1, 32), np.float32), np.empty((1, 1), np.float32)
cpu_decode.run(cpu_decode.bind(
    np.zeros((1, 1, 32), np.float32), cache, cache, np.zeros((1, 1), np.int32),
    np.array([4], np.int32), out, lse, scale=1.0))
print(round(float(lse[0, 0]), 4), sum(cpu_decode._decode.stats.cache_hits.values()))
"""

# a file where numba wants its folder beside the sources; XDG_CACHE_HOME is one, too
NO_FOLDER = """
import sys, tempfile
from pathlib import Path
if sys.argv[1] == "nowhere":
    def none(**_how): raise OSError("read-only")
    tempfile.mkdtemp = none
from apclab_kernels.cpu import cache as cpu_cache
print(cpu_cache.CACHED)
print(cpu_cache.CACHE_NOTE)
"""


@pytest.mark.slow  # compiles the kernel anew
@pytest.mark.parametrize(
    ("where", "cached", "words"),
    [("temporary", "True", "in a temporary folder"), ("nowhere", "False", "in memory alone")],
)
def test_without_a_folder_to_write_to_it_runs_and_says_so(
    where: str, cached: str, words: str, tmp_path: Path
) -> None:
    shutil.copytree(KERNELS, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "kernels" / "apclab_kernels" / "cpu" / "__pycache__").touch()
    (tmp_path / "no_cache").touch()
    environment = {
        **os.environ, "PYTHONPATH": str(tmp_path / "kernels"), "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(tmp_path / "no_cache"), "HOME": str(tmp_path / "no_cache"),
    }  # fmt: skip
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", NO_FOLDER + PROGRAM, where],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    said, note, result = done.stdout.strip().splitlines()
    assert said == cached
    assert words in note
    assert "NUMBA_CACHE_DIR" in note
    assert result.split()[0] == "1.3863"


@pytest.mark.slow
def test_a_change_in_a_callee_recompiles_its_callers(tmp_path: Path) -> None:
    shutil.copytree(KERNELS, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))

    def run() -> list[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "kernels")}
        environment.pop("NUMBA_CACHE_DIR", None)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True, text=True, check=True, env=environment,
        )  # fmt: skip
        return done.stdout.split()

    assert run() == ["1.3863", "0"]  # ln 4: four equal scores
    assert run() == ["1.3863", "1"]
    callee = tmp_path / "kernels" / "apclab_kernels" / "cpu" / "tile.py"
    text = callee.read_text()
    assert "np.log(2.0)" in text
    callee.write_text(text.replace("np.log(2.0)", "np.log(4.0)"))
    assert run() == ["2.7726", "0"]
