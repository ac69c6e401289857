"""What the Triton kernels compile to, without a GPU: asks a process of its own, imports no triton.

The process is new because triton decides at its import whether it compiles or interprets.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from apclab.attention.launch import Unavailable

Build = dict[str, Any]  # the fields of `apclab_kernels.triton.aot.compile.Build`, and "faults"
TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")


def compile_kernels(
    targets: Sequence[str] = TARGETS,
    *,
    which: str = "default",
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Build]:
    """Compile variants of the Triton kernels for targets that need not be here; about 1 s each.

    Args:
        targets: "sm_80" and so on of NVIDIA, "gfx942" of AMD.
        which: "default" (a model of issue 4860's shape and a grouped one, in each dtype), "doctor"
            (cascade and prefill, too), or another of `apclab_kernels.triton.aot.shipped.WHICH`.
        cancelled: asked after each variant; once true, the rest is left out.
        progress: told the part that is done (0..1) and what was compiled.

    Returns:
        One build a variant and target, as far as they came; `faults` lists what is wrong with it.

    Raises:
        Unavailable: triton is missing, or cannot compile here.
    """
    from apclab_kernels.triton.aot.shipped import WHICH

    if find_spec("triton") is None:
        raise Unavailable(
            f"compiling the kernels needs triton; install it with: "
            f"{sys.executable} -m pip install 'apclab[torch]'"
        )
    total = len(targets) * sum(1 for _ in WHICH[which]())
    command = [sys.executable, "-m", "apclab_kernels.triton.aot.compile", "--which", which]
    builds: list[Build] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        worker = subprocess.Popen(
            [*command, "--targets", ",".join(targets)],
            env=_environment(), stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            assert worker.stdout is not None
            for line in worker.stdout:
                build = json.loads(line)
                builds.append(build)
                if progress:
                    done = f"{build['target']} {build['dtype']} {build['kernel']}"
                    progress(len(builds) / total, done)
                if cancelled and cancelled():
                    return builds
            if worker.wait():
                errors.seek(0)
                said = [line.strip() for line in errors if line.strip()]
                why = said[-1] if said else f"exit status {worker.returncode}"
                raise Unavailable(f"triton cannot compile the kernels here: {why}")
        finally:
            with suppress(ProcessLookupError):
                worker.kill()
            worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()
    return builds


def _environment() -> dict[str, str]:
    """The environment of a process that compiles; triton 3.9 warns if fusion is not chosen."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {"TRITON_DEFAULT_FP_FUSION": "1", **kept}
