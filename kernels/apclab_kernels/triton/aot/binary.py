"""Reads what a compiled kernel uses from its binary: registers, memory, kinds of instructions.

It compiles nothing and imports no triton. A number is that of one thread, warp or program, as said
at the fields of `compile.Build`.
"""

import re
import subprocess
import tempfile
from pathlib import Path

_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.\w+)*)(.*)")


def read_cubin(binary: bytes, dynamic_shared: int, tools: Path) -> dict[str, int]:
    """Read a cubin of NVIDIA.

    Args:
        binary: the cubin.
        dynamic_shared: bytes of shared memory that the launch adds.
        tools: the folder of cuobjdump and nvdisasm.
    """
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary)

        def say(*command: str | Path) -> str:
            done = subprocess.run([*command, cubin], capture_output=True, text=True, check=True)
            return done.stdout

        usage = say(tools / "cuobjdump", "--dump-resource-usage")
        lines = say(tools / "nvdisasm", "-c").splitlines()
    (numbers,) = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    registers, stack, static, local = map(int, numbers)
    # sm_90 and later count the 1024 bytes that the driver keeps as static shared memory
    static -= 1024 if static >= 1024 else 0
    loop = _loop(lines)
    return {
        "registers": registers,
        "stack_bytes": stack + local,
        "spills": _count(lines, r"(STL|LDL)\b"),
        "shared_bytes": static + dynamic_shared,
        "async_copies": _count(lines, r"LDGSTS\.\S*128"),
        "wide_loads": _count(lines, r"LDG\.\S*128"),
        "tensor_ops": _count(lines, r"(HMMA|HGMMA|UTCHMMA|UTCMMA)\b"),
        "instructions": _count(lines, ""),
        "loop_instructions": _count(loop, ""),
        "loop_fma": _count(loop, r"FFMA\b"),
    }


def _count(lines: list[str], pattern: str) -> int:
    """How many instructions begin with a pattern; what pads the end of a function is left out."""
    found = (_SASS.search(line) for line in lines)
    return sum(
        re.match(pattern, match[1]) is not None
        for match in found
        if match and not match[1].startswith("NOP")
    )


def _loop(lines: list[str]) -> list[str]:
    """The lines of the longest loop: from a label to the last branch back to it."""
    labels: dict[str, int] = {}
    longest: tuple[int, int] = (0, 0)
    for at, line in enumerate(lines):
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = at
        elif (back := re.search(r"BRA.*`\((\.L_x_\d+)\)", line)) and back[1] in labels:
            longest = max(longest, (labels[back[1]], at), key=lambda span: span[1] - span[0])
    return lines[slice(*longest)]


def read_amdgcn(text: str, shared: int) -> dict[str, int]:
    """Read an assembly listing of AMD.

    Args:
        text: the listing.
        shared: bytes of shared memory (LDS) of a program.
    """

    def note(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s+(\d+)", text)[-1])

    # the listing of the code ends where its description begins
    code = re.findall(r"^\s+([a-z]\w+)(.*)$", text[: text.find(".amdgpu_metadata")], re.MULTILINE)
    code = [(name, rest) for name, rest in code if re.match(r"(s|v|ds|global|buffer)_", name)]

    def count(pattern: str, *, to_lds: bool | None = None) -> int:
        return sum(
            re.match(pattern, name) is not None and to_lds in (None, bool(re.search(r"\blds\b", r)))
            for name, r in code
        )

    wide = r"(global|buffer)_load_(lds_)?(dwordx4|b128)"
    return {
        # a CDNA thread has vector and accumulation registers; both hold values
        "registers": note("vgpr_count"),
        "stack_bytes": note("private_segment_fixed_size"),
        "spills": note("vgpr_spill_count") + note("sgpr_spill_count"),
        "shared_bytes": shared,
        "async_copies": count(wide, to_lds=True) + count(r"global_load_lds_dwordx4"),
        "wide_loads": count(wide, to_lds=False),
        "tensor_ops": count(r"v_mfma"),
        "instructions": len(code),
        "loop_instructions": 0,
        "loop_fma": 0,
    }
