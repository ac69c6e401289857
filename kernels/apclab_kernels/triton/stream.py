"""Read-bandwidth probe in Triton: a footprint is read some times over by all programs together."""

from typing import Any

import triton
import triton.language as tl

PIECE = 4096  # float32 of one load: 16 KiB a program and step
PROGRAMS_PER_SM = 4


@triton.jit
def stream_kernel(
    words,  # float32 [n], n a multiple of PIECE
    seen,  # int32 [programs]
    pieces,  # n / PIECE
    passes,
    PIECE: tl.constexpr,
):
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    folded = tl.zeros([PIECE], tl.int32)
    for turn in range(passes):
        # each pass starts elsewhere, so that no pass can be left out as a repetition
        for piece in range(program, pieces, programs):
            at = ((piece + turn * 7) % pieces).to(tl.int64) * PIECE + tl.arange(0, PIECE)
            folded ^= tl.load(words + at).to(tl.int32, bitcast=True)
    tl.store(seen + program, tl.xor_sum(folded, 0))


def bind_stream(words: Any, passes: int = 1) -> tuple[Any, ...]:
    """Arguments for `stream`.

    Args:
        words: float32 torch tensor [n], contiguous; a rest below PIECE is not read.
        passes: how often the footprint is read.

    Raises:
        ValueError: fewer words than one piece.
    """
    import torch

    pieces = words.numel() // PIECE
    if pieces < 1:
        raise ValueError(f"words must hold at least {PIECE} float32, got {words.numel()}")
    sm_count = 1  # of the interpreter, which has no SMs
    if words.is_cuda:
        sm_count = torch.cuda.get_device_properties(words.device).multi_processor_count
    programs = min(pieces, sm_count * PROGRAMS_PER_SM)
    seen = torch.empty(programs, dtype=torch.int32, device=words.device)
    return words, seen, pieces, passes


def bytes_read(arguments: tuple[Any, ...]) -> int:
    """Bytes that one `stream` call loads."""
    _, _, pieces, passes = arguments
    return int(pieces) * PIECE * 4 * int(passes)


def stream(arguments: tuple[Any, ...]) -> None:
    """Read the footprint, and compute nothing but the xor of its bits."""
    words, seen, pieces, passes = arguments
    stream_kernel[(seen.numel(),)](words, seen, pieces, passes, PIECE=PIECE, num_warps=8)
