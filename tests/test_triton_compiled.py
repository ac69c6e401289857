"""The Triton kernels compiled ahead of time: no spills, wide copies, tensor cores; no GPU needed.

Each test compiles in a process of its own, since triton decides at its import whether it
interprets.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from apclab_kernels.triton.aot.shipped import (
    BLOCK_SIZES,
    DTYPES,
    GROUPS,
    SPLITS,
    WHICH,
    Shape,
)
from apclab_kernels.triton.variant import HEAD_SIZES, product_rows

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton compiles the kernels, and it is not installed"
)
KERNELS = Path(__file__).resolve().parents[1] / "kernels"
TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
OLDEST = "3.6.0"  # that pyproject.toml allows on a GPU machine


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what triton compiles, nobody else's."""
    return tmp_path_factory.mktemp("triton-cache")


def python(*arguments: str, cache: Path, path: Path | None = None) -> str:
    """Run a new interpreter that compiles, with another triton first where a path says so."""
    here = [str(path)] * (path is not None) + [str(KERNELS), os.environ.get("PYTHONPATH", "")]
    environment = {name: v for name, v in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, here)),
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_DEFAULT_FP_FUSION": "1",
    }
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compiled(target: str, which: str, **how: Any) -> list[dict[str, Any]]:
    """What `triton_compile` prints for one target."""
    command = ("-m", "apclab_kernels.triton.aot.compile", "--targets", target, "--which", which)
    return [json.loads(line) for line in python(*command, **how).splitlines()]


def assert_sound(builds: list[dict[str, Any]], target: str, which: str) -> None:
    """Every variant was compiled for the target, and nothing is wrong with any."""
    asked = list(WHICH[which]())
    assert [build["kernel"] for build in builds] == [kernel for kernel, _ in asked]
    wrong = []
    for build, (_, shape) in zip(builds, asked, strict=True):
        assert Shape(*(build[field] for field in Shape._fields)) == shape
        assert build["target"] == target
        assert build["registers"] > 0
        assert build["instructions"] > 50
        if build["kernel"] != "merge" and target != "gfx942":
            # the loop was found, and its copies are those of at least one tile
            assert 50 < build["loop_instructions"] < build["instructions"]
            assert build["tiles_in_flight"] >= 1
            assert build["shared_bytes"] >= build["tile_bytes"] * build["tiles_in_flight"]
        wrong += [f"{shape}: {fault}" for fault in build["faults"]]
    assert wrong == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_variants_that_differ_most_are_sound(target: str, cache: Path) -> None:
    builds = compiled(target, "quick", cache=cache)
    assert_sound(builds, target, "quick")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_shipped_variant_is_sound(target: str, cache: Path) -> None:
    assert_sound(compiled(target, "shipped", cache=cache), target, "shipped")


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_prefill_and_cascade_are_sound(target: str, cache: Path) -> None:
    assert_sound(compiled(target, "quick_products", cache=cache), target, "quick_products")


# sm_120 gets the matrix instructions of sm_80
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_every_variant_of_prefill_and_cascade_is_sound(target: str, cache: Path) -> None:
    assert_sound(compiled(target, "products", cache=cache), target, "products")


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The oldest triton that is allowed, in a folder of its own."""
    folder = tmp_path_factory.mktemp("triton-oldest")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*pip, f"triton=={OLDEST}"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot get triton {OLDEST}: {done.stderr.strip().splitlines()[-1]}")
    yield folder
    # 640 MB
    subprocess.run([sys.executable, "-c", f"import shutil; shutil.rmtree({str(folder)!r})"])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_variants_are_sound_with_the_oldest_triton(target: str, oldest: Path, cache: Path) -> None:
    # every shipped one for one GPU of each maker, the ones that differ most for the others
    most = target in ("sm_80", "gfx942")
    for which in ("shipped" if most else "quick", "quick_products"):
        builds = compiled(target, which, cache=cache, path=oldest)
        assert {build["triton"] for build in builds} == {OLDEST}
        assert_sound(builds, target, which)


FAULTS = """
import json
from apclab_kernels.triton.aot.compile import (
    Shape, compile_decode, compile_merge, compile_product, faults
)

half, full = Shape("float16", 40, 40, 128), Shape("float32", 128, 8, 128)
sound = compile_decode(half, "sm_80")
builds = {
    "sound": sound,
    "unaligned": compile_decode(half, "sm_80", aligned=False),
    "large": compile_decode(full, "sm_80", TILE=64),
    "wide": compile_product("prefill", half._replace(queries=64), "sm_80", num_warps=4),
    "old": compile_decode(half, "sm_75"),
    "huge": compile_decode(Shape("float16", 32, 8, 256), "sm_120", TILE=128),
    "narrow": compile_decode(half, "gfx942", aligned=False),
}
print(json.dumps({name: build._asdict() | {"faults": faults(build)}
                  for name, build in builds.items()}))
"""


@pytest.mark.slow
def test_planted_faults_are_found(cache: Path) -> None:
    builds = json.loads(python("-c", FAULTS, cache=cache))

    def said(name: str) -> str:
        return "; ".join(builds[name]["faults"])

    assert said("sound") == ""
    # without what the JIT finds divisible no load is wider than an element
    assert builds["unaligned"]["async_copies"] == builds["unaligned"]["wide_loads"] == 0
    assert "0 asynchronous 128-bit copies, at least 8 wanted" in said("unaligned")
    assert "0 loads of 128 bits, a tile needs 4" in said("narrow")
    # 64 tokens of 128 float32 for 16 rows: more than 255 registers hold
    assert "bytes on a stack in memory" in said("large")
    assert "instructions spill registers" in said("large")
    # 64 rows of 128 elements for 4 warps
    assert "instructions spill registers" in said("wide")
    # sm_75 has neither asynchronous copies nor a matrix instruction that Triton uses
    assert "no tensor-core instruction for float16" in said("old")
    assert "bytes of shared memory, a program may have 101376" in said("huge")


SPECIALISED = """
import json, sys
from triton._C.libtriton import native_specialize_impl
from triton.backends.nvidia.compiler import CUDABackend

print(json.dumps([
    native_specialize_impl(CUDABackend, value, False, True, True) for value in json.load(sys.stdin)
]))
"""


def test_strides_of_contiguous_caches_are_what_the_jit_calls_divisible(cache: Path) -> None:
    strides = set()
    for block_size in (*BLOCK_SIZES, 24):
        for num_kv_heads in (1, 3, 8, 40):
            for head_size in HEAD_SIZES:
                block = block_size * num_kv_heads * head_size
                strides |= {block, num_kv_heads * head_size, head_size}  # NHD
                strides |= {block, head_size, block_size * head_size}  # HND
    code = f"import io, sys; sys.stdin = io.StringIO({json.dumps(sorted(strides))!r})\n"
    found = json.loads(python("-c", code + SPECIALISED, cache=cache))
    assert {tuple(kind) for kind in found} == {("i32", "D")}
    # the check can fail: 100 requests are no multiple of 16, one request is a constant
    code = "import io, sys; sys.stdin = io.StringIO('[100, 1]')\n"
    hundred, one = json.loads(python("-c", code + SPECIALISED, cache=cache))
    assert hundred[1] != "D"
    assert one[0] == "constexpr"


# --- which variants stand for all


def test_products_meet_every_head_size_and_count_of_rows() -> None:
    for kernel in ("prefill", "cascade"):
        shapes = [shape for name, shape in WHICH["products"]() if name == kernel]
        assert len(shapes) == 18
        assert {s.block_size for s in shapes} == set(BLOCK_SIZES)
        assert {s.order for s in shapes} == {"request", "head"}
        assert {s.splits for s in shapes} == {1, SPLITS}
        for head_size in HEAD_SIZES:
            mine = [s for s in shapes if s.head_size == head_size]
            half = [s for s in mine if s.dtype != "float32"]
            assert {
                product_rows(s.dtype, s.num_heads // s.num_kv_heads, s.queries) for s in half
            } == {16, 64}
            assert len(half) < len(mine)


def test_shipped_variants_meet_each_other_as_promised() -> None:
    shapes = [shape for kernel, shape in WHICH["shipped"]() if kernel == "decode"]
    assert len(shapes) < 100
    for dtype in DTYPES:
        for head_size in HEAD_SIZES:
            met = [s for s in shapes if (s.dtype, s.head_size) == (dtype, head_size)]
            assert {s.num_heads // s.num_kv_heads for s in met} >= {*GROUPS, 32}
            assert {s.block_size for s in met} >= set(BLOCK_SIZES)
            assert {s.splits for s in met} == {1, SPLITS}
            assert {s.order for s in met} == {"request", "head"}
    merges = {(s.dtype, s.head_size) for kernel, s in WHICH["shipped"]() if kernel == "merge"}
    assert len(merges) == len(DTYPES) * len(HEAD_SIZES)
