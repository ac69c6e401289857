"""The CPU kernels on machines other than this one: x86 without AVX-512, and Arm as far as code."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

X86 = platform.machine() in ("x86_64", "AMD64")
ROOT = Path(__file__).parent.parent

# every shape and dtype that takes another path: groups of 4 and less, odd sizes, splits
ON_HASWELL = """
from apclab_kernels.cpu import attend as cpu_attend, decode as cpu_decode
from tests.kernel_cases import DTYPES, Case, assert_exact, truth_of
from tests.test_cpu_merge import decode

for dtype in DTYPES:
    for heads, kv_heads, size, parts in ((2, 2, 128, None), (10, 2, 64, 2), (4, 1, 80, None)):
        case = Case(dtype, heads, kv_heads, size, seq_lens=(1, 63, 0, 148), shared_blocks=2)
        arrays = case.arrays()
        assert_exact(*decode(arrays, parts=parts), truth_of(case, arrays), dtype)
    text = cpu_attend._score.inspect_asm(cpu_attend._score.signatures[-1])
    assert "ymm" in text, "not vectorised"
    assert "zmm" not in text, "AVX-512 in code for a machine without"
print("checked")
"""

# the kernels' code, compiled here and lowered for another machine; reference counts are x86's own
TO_ARM = r"""
import re
import llvmlite.binding as llvm
import numpy as np
from apclab_kernels.cpu import attend as cpu_attend
from numba import njit, typeof

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
triple = "aarch64-unknown-linux-gnu"
machine = llvm.Target.from_triple(triple).create_target_machine(cpu="neoverse-n1", opt=2)
f, i, lens = np.ones(1, np.float32), np.ones(1, np.int64), np.ones(1, np.int32)
for bits in (np.float32, np.int16, np.uint16):
    cache = np.ones(1, bits)
    for kernel in (cpu_attend._score, cpu_attend._weigh):
        one = njit(fastmath=cpu_attend.FASTMATH)(kernel.py_func)
        one.compile(tuple(map(typeof, (cache, i, lens, 1, (1, 1, 1), 1, 1, 1, f, f))))
        (text,) = one.inspect_llvm().values()
        text = re.sub(r"target triple = .*", f'target triple = "{triple}"', text)
        layout = f'target datalayout = "{machine.target_data}"'
        text = re.sub(r"target datalayout = .*", layout, text)
        text = re.sub(r"(tail )?call i8 @llvm\.x86\.atomic[^\n]*", "add i8 0, 1", text)
        text = re.sub(r'"target-(cpu|features)"="[^"]*"', "", text)
        assert "call <16 x float> @llvm.x86" not in text
        module = llvm.parse_assembly(text)
        module.verify()
        made = machine.emit_assembly(module)
        assert made.count("fmla") >= 64, "no vector arithmetic"
        assert "prfm" in made
        assert not re.findall(r"\bbl\s+(fma\w*|__extendhfsf2)", made), "calls for instructions"
print("checked")
"""


def printed(code: str, **environment: str) -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(not X86, reason="an x86 machine's features are switched off")
def test_without_avx512_the_kernels_are_right_and_vectorised(tmp_path: Path) -> None:
    said = printed(
        ON_HASWELL, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="+avx2,+fma,+f16c,+avx,+sse4.2",
        NUMBA_CACHE_DIR=str(tmp_path),
    )  # fmt: skip
    assert said == "checked"


@pytest.mark.slow
def test_the_kernels_lower_to_arm_vector_code(tmp_path: Path) -> None:
    assert printed(TO_ARM, NUMBA_CACHE_DIR=str(tmp_path)) == "checked"
