"""What the Triton kernels become for a GPU that is not here: compiled, disassembled, counted.

No GPU and no torch: triton brings the assemblers. This must be a process of its own, one in which
triton does not interpret; `python -m apclab_kernels.triton.aot.compile --help` is that process.
"""

import argparse
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from apclab_kernels.triton import cascade, decode, merge, prefill
from apclab_kernels.triton.aot.binary import read_amdgcn, read_cubin
from apclab_kernels.triton.aot.shipped import WHICH, Shape
from apclab_kernels.triton.variant import (
    MERGE_WARPS,
    Variant,
    power_of_two,
    product_rows,
    product_variant,
    variant,
)

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
LEAST_COPIES = 8
# bytes of shared memory that one program may have (CUDA programming guide, compute capabilities;
# of AMD the LDS of a CDNA 3 compute unit)
MOST_SHARED = {
    "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10,
    "sm_100": 227 << 10, "sm_120": 99 << 10, "gfx942": 64 << 10,
}  # fmt: skip
_KERNELS = {
    "decode": decode.decode_kernel,
    "prefill": prefill.prefill_kernel,
    "cascade": cascade.cascade_kernel,
}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class Build(NamedTuple):
    """One kernel in one variant for one target, as the binary tells it."""

    kernel: str  # "decode", "merge", "cascade" or "prefill"
    target: str
    triton: str  # version
    dtype: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    splits: int
    order: str
    queries: int
    tile: int  # tokens of a tile; 0 for the merge
    num_warps: int
    registers: int  # of a thread
    stack_bytes: int  # of a thread
    spills: int  # instructions that store or load what the registers could not hold
    shared_bytes: int  # of a program, static and dynamic; what the driver reserves is not in it
    async_copies: int  # 128-bit copies from memory to shared memory that no thread waits for
    wide_loads: int  # 128-bit loads from memory into registers
    tensor_ops: int  # matrix instructions
    instructions: int
    loop_instructions: int  # of a warp, for one tile
    loop_fma: int  # of these, scalar float32 multiply-adds
    tile_bytes: int  # K and V of one tile of one KV head
    tiles_in_flight: int  # tiles whose copies a program can have under way


def parse_target(name: str) -> GPUTarget:
    """A target by its usual name: "sm_80" and so on of NVIDIA, "gfx942" and so on of AMD.

    Raises:
        ValueError: a name of neither kind.
    """
    if match := re.fullmatch(r"sm_(\d+)", name):
        return GPUTarget("cuda", int(match[1]), 32)
    if re.fullmatch(r"gfx9\w+", name):
        return GPUTarget("hip", name, 64)
    raise ValueError(f"target must be like sm_80 or gfx942, got {name!r}")


def compile_decode(shape: Shape, target: str, *, aligned: bool = True, **changes: Any) -> Build:
    """Compile the decode kernel as the launcher would have it compiled.

    Args:
        shape: what the launcher is asked for.
        target: a name that `parse_target` knows.
        aligned: False leaves out what the JIT finds divisible, to show what that costs.
        changes: other values of TILE, num_warps or num_stages than `variant` chooses.
    """
    chosen = variant(
        shape.dtype, num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size, block_size=shape.block_size, splits=shape.splits,
        head_first=shape.order == "head",
        amd=target.startswith("gfx"),
    )  # fmt: skip
    return _compile_attention("decode", chosen, shape, target, aligned=aligned, **changes)


def compile_product(kernel: str, shape: Shape, target: str, **changes: Any) -> Build:
    """Compile the kernel "prefill" or "cascade"; arguments as of `compile_decode`."""
    group = shape.num_heads // shape.num_kv_heads
    chosen = product_variant(
        shape.dtype, num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size, block_size=shape.block_size, splits=shape.splits,
        rows=product_rows(shape.dtype, group, shape.queries), head_first=shape.order == "head",
        amd=target.startswith("gfx"),
    )  # fmt: skip
    return _compile_attention(kernel, chosen, shape, target, **changes)


def _compile_attention(
    kernel: str, chosen: Variant, shape: Shape, target: str, *, aligned: bool = True, **changes: Any
) -> Build:
    function = _KERNELS[kernel]
    constants = chosen.constants | {k: v for k, v in changes.items() if k in chosen.constants}
    constants = {name: v for name, v in constants.items() if name in function.arg_names}
    options = chosen.options | {k: v for k, v in changes.items() if k in chosen.options}
    element = f"*{TYPES[shape.dtype]}"
    types = dict.fromkeys(function.arg_names, "i32")
    types |= dict.fromkeys(("query", "key_cache", "value_cache"), element)
    lists = ("block_tables", "seq_lens", "query_start_loc", "requests", "blocks", "pieces")
    types |= dict.fromkeys(lists, "*i32") | {"scale": "fp32"}
    types |= dict.fromkeys(("lse", "partial", "partial_lse"), "*fp32")
    # one split leaves the result in place of a state
    types["out"] = element if shape.splits == 1 else "*fp32"
    types = {name: types[name] for name in function.arg_names if name not in constants}
    # The JIT looks at the values. An allocation starts at a multiple of 256 bytes. Each stride of a
    # contiguous cache, in either layout, is a multiple of head_size elements, and every head_size
    # that is allowed is a multiple of 16. Batch and the width of a table can be anything; they
    # do not reach the addresses of K and V within a token.
    even = {name for name, kind in types.items() if kind[0] == "*"}
    even |= {"block_stride", "token_stride", "head_stride"}
    compiled = _compile(function, types, constants, even if aligned else set(), target, options)
    tile, head_pad = constants["TILE"], constants["HEAD_PAD"]
    rings = re.findall(rf"local_alloc : .*memdesc<(\d+)x{tile}x{head_pad}x", compiled.asm["ttgir"])
    return _build(
        compiled, shape, target, kernel=kernel, tile=tile, num_warps=options["num_warps"],
        tile_bytes=2 * tile * shape.head_size * BYTES[shape.dtype],
        tiles_in_flight=min(map(int, rings), default=0),
    )  # fmt: skip


def compile_merge(shape: Shape, target: str) -> Build:
    """Compile the kernel that merges the splits of a shape."""
    constants = {
        "HEAD_SIZE": shape.head_size, "HEAD_PAD": power_of_two(shape.head_size),
        "SPLITS": shape.splits, "SPLITS_PAD": power_of_two(shape.splits),
    }  # fmt: skip
    types = {
        "partial": "*fp32", "partial_lse": "*fp32", "out": f"*{TYPES[shape.dtype]}", "lse": "*fp32",
    }  # fmt: skip
    kernel = _compile(
        merge.merge_kernel, types, constants, set(types), target, {"num_warps": MERGE_WARPS}
    )
    return _build(
        kernel, shape, target, kernel="merge", num_warps=MERGE_WARPS,
        tile=0, tile_bytes=0, tiles_in_flight=0,
    )  # fmt: skip


def _compile(
    function: Any, types: dict[str, str], constants: dict[str, Any], even: set[str],
    target: str, options: dict[str, int],
) -> Any:  # fmt: skip
    place = {name: (i,) for i, name in enumerate(function.arg_names)}
    source = ASTSource(
        fn=function,
        signature={name: types.get(name, "constexpr") for name in place},
        constexprs={place[name]: value for name, value in constants.items()},
        attrs={place[name]: [["tt.divisibility", 16]] for name in even},
    )
    return triton.compile(source, target=parse_target(target), options=options)


def faults(build: Build) -> list[str]:
    """What is wrong with a build, as sentences; empty when nothing is."""
    found = []
    if build.stack_bytes:
        found.append(f"a thread keeps {build.stack_bytes} bytes on a stack in memory")
    if build.spills:
        found.append(f"{build.spills} instructions spill registers")
    if build.shared_bytes > (most := MOST_SHARED.get(build.target, build.shared_bytes)):
        found.append(f"{build.shared_bytes} bytes of shared memory, a program may have {most}")
    if build.kernel != "merge":
        nvidia = build.target.startswith("sm_")
        if nvidia and build.async_copies < LEAST_COPIES:
            found.append(
                f"{build.async_copies} asynchronous 128-bit copies, at least {LEAST_COPIES} wanted"
            )
        # AMD: as many as a thread needs for its part of one tile, 64 threads a warp
        wide = build.async_copies + build.wide_loads
        needed = math.ceil(build.tile_bytes / (build.num_warps * 64) / 16)
        if not nvidia and wide < needed:
            found.append(f"{wide} loads of 128 bits, a tile needs {needed}")
        if build.dtype != "float32" and not build.tensor_ops:
            found.append(f"no tensor-core instruction for {build.dtype}")
    return found


def _look(kernel: Any, target: str) -> dict[str, Any]:
    shared = kernel.metadata.shared
    if target.startswith("gfx"):
        return read_amdgcn(kernel.asm["amdgcn"], shared)
    return read_cubin(kernel.asm["cubin"], shared, _TOOLS)


def _build(compiled: Any, shape: Shape, target: str, **facts: Any) -> Build:
    facts |= {"target": target, "triton": triton.__version__}
    return Build(**shape._asdict(), **facts, **_look(compiled, target))


def main(argv: Sequence[str] | None = None) -> None:
    """Compile and print one JSON object a line: a build, with what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated names")
    parser.add_argument("--which", choices=tuple(WHICH), default="default", help="which variants")
    given = parser.parse_args(argv)
    for target in given.targets.split(","):
        for kernel, shape in WHICH[given.which]():
            match kernel:
                case "decode":
                    build = compile_decode(shape, target)
                case "merge":
                    build = compile_merge(shape, target)
                case _:
                    build = compile_product(kernel, shape, target)
            print(json.dumps(build._asdict() | {"faults": faults(build)}), flush=True)


if __name__ == "__main__":
    main()
