"""Which variant of the Triton kernel a shape gets: tile, warps, stages, splits. Arithmetic only."""

from typing import Any, NamedTuple

# rows of a tile of queries: the least that a tensor core multiplies, so a group is padded to it
ROWS = 16
MOST_ROWS = 64
HEAD_SIZES = (64, 96, 128, 256)
# query heads of one KV head; 64 rows of float32 spill on some GPUs whatever the tile
MOST_GROUP = {"float32": 32, "float16": 64, "bfloat16": 64}
MOST_BLOCK = 256
MOST_SPLITS = 64
MERGE_WARPS = 8
# of a thread, on every NVIDIA GPU; 8 warps of them fit
MOST_REGISTERS = 255
LOG2_E = 1.4426950408889634


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << (n - 1).bit_length()


class Variant(NamedTuple):
    """What is fixed when the kernel is compiled."""

    constants: dict[str, Any]  # the constexpr arguments of `decode_kernel`
    num_warps: int
    num_stages: int
    max_registers: int | None  # of a thread; None leaves it to the assembler

    @property
    def options(self) -> dict[str, int]:
        """What the compiler is told; a limit of registers is an option of NVIDIA's alone."""
        limit = {} if self.max_registers is None else {"maxnreg": self.max_registers}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **limit}


def variant(
    dtype: str,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    splits: int = 1,
    partial: bool | None = None,
    head_first: bool = False,
    interpreted: bool = False,
    amd: bool = False,
) -> Variant:
    """Choose tile, warps and stages for a shape.

    float32 keeps all its bits, so no tensor core of NVIDIA multiplies it: rows that pad a group
    would cost what the group costs, and make arithmetic the limit instead of memory. It has no
    padding there, and half the tokens in a tile: 32 tokens of 128 elements spill registers to
    memory on some GPUs. More than 16 rows (8 of float32) have twice the warps, for the same
    reason. There and for float32 the assembler spills a few registers to fit more programs; naming
    a limit stops that. Elsewhere the limit would make it use more of them than it needs.

    Args:
        dtype: "float32", "float16" or "bfloat16".
        num_heads: query heads.
        num_kv_heads: heads of the cache.
        head_size: elements of one head.
        block_size: tokens of one block.
        splits: programs that share the tokens of one sequence.
        partial: leave states to merge; None means where there are splits.
        head_first: programs follow each other head by head.
        interpreted: run by Triton's interpreter.
        amd: for a GPU of AMD, whose matrix cores multiply float32.

    Raises:
        ValueError: a shape that the kernel cannot do; the message lists what it can.
    """
    group = num_heads // num_kv_heads
    if head_size not in HEAD_SIZES:
        known = ", ".join(map(str, HEAD_SIZES))
        raise ValueError(
            f"head_size must be one of {known} for the triton backend, got {head_size}"
        )
    if group > MOST_GROUP[dtype]:
        raise ValueError(
            f"num_heads / num_kv_heads must be at most {MOST_GROUP[dtype]} for triton and {dtype}, "
            f"got {group}"
        )
    if not 1 <= block_size <= MOST_BLOCK:
        raise ValueError(f"block_size must be 1 to {MOST_BLOCK} for triton, got {block_size}")
    on_cores = amd or dtype != "float32"
    rows = max(ROWS if on_cores else 1, power_of_two(group))
    wide = rows > (ROWS if on_cores else ROWS // 2)
    tile, stages = (64 if head_size <= 64 else 32), 3
    if dtype == "float32":
        tile, stages = tile // 2, 2
    constants = {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "ROWS": rows,
        "HEAD_SIZE": head_size,
        "HEAD_PAD": power_of_two(head_size),
        "BLOCK_SIZE": block_size,
        "TILE": tile,
        "SPLITS": splits,
        "PARTIAL": splits > 1 if partial is None else partial,
        "HEAD_FIRST": head_first,
        "PRECISION": "ieee",
        "UPCAST": interpreted and dtype == "bfloat16",
    }
    return Variant(
        constants,
        num_warps=8 if wide else 4,
        num_stages=stages,
        max_registers=MOST_REGISTERS if not amd and (wide or not on_cores) else None,
    )


def product_rows(dtype: str, group: int, queries: int) -> int:
    """Rows of a tile of queries for kernels that pack several queries of a KV head into one.

    16, or 64 where so many are at hand: half precision needs 64 for a matrix instruction of Hopper
    and Blackwell. float32 has no such instruction, and few rows keep its sums in registers.

    Args:
        dtype: as in `variant`.
        group: query heads of one KV head.
        queries: of a request or run, that see the same tokens.
    """
    if dtype == "float32":
        return max(ROWS, power_of_two(group))
    return ROWS if queries * group <= ROWS else MOST_ROWS


def product_variant(
    dtype: str,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    rows: int,
    splits: int = 1,
    head_first: bool = False,
    interpreted: bool = False,
    amd: bool = False,
) -> Variant:
    """Choose tile, warps and stages for the kernels of prefill and of cascade.

    Found by compiling prefill for sm_80, sm_90, sm_100 and gfx942, head size 128, float16. 64 rows
    with 4 warps: tiles of 64 tokens spill on sm_80, with tiles of 32 all 255 registers are taken.
    With 8 warps and tiles of 64 it has about 180 registers there and on sm_90, and no spill. 128
    rows spill on sm_80 and gfx942. Three stages cost no more shared memory than two: the third is
    that of the block table. Tiles of 32 tokens of 256 elements spilled on gfx942 and sm_80, there
    also with 16 rows (prefill, split); tiles of 64 of 128 on gfx942.
    float32 has the decode kernel's tiles, and 8 warps: with 4, 16 rows spilled.

    Args:
        dtype: as in `variant`.
        num_heads: query heads.
        num_kv_heads: heads of the cache.
        head_size: elements of one head.
        block_size: tokens of one block.
        rows: of a tile of queries, from `product_rows`.
        splits: programs that share the tokens of a prefill's tile.
        head_first: programs follow each other head by head.
        interpreted: run by Triton's interpreter.
        amd: for a GPU of AMD.

    Raises:
        ValueError: a shape that the kernels cannot do; the message lists what they can.
    """
    base = variant(
        dtype, num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=head_size,
        block_size=block_size, splits=splits, head_first=head_first, interpreted=interpreted,
        amd=amd,
    )  # fmt: skip
    constants = base.constants | {"ROWS": rows}
    if dtype == "float32":
        limit = None if amd else MOST_REGISTERS
        return Variant(constants, num_warps=8, num_stages=2, max_registers=limit)
    if head_size > 128:
        constants["TILE"] = 16
    if rows > ROWS:
        # CDNA has no copy past the registers: what is under way of a tile is held in them
        wide = 32 if amd else 64
        if head_size <= 128:
            constants["TILE"] = 64 if head_size <= 64 else wide
        return Variant(constants, num_warps=8, num_stages=2 if amd else 3, max_registers=None)
    return Variant(constants, num_warps=4, num_stages=3, max_registers=None)


def choose_splits(batch: int, num_kv_heads: int, most_tokens: int, tile: int, sm_count: int) -> int:
    """How many programs share the tokens of one sequence, from shapes alone.

    Four programs an SM keep enough loads in flight; more splits than fill that only add to the
    merge. A split has at least four tiles, so that its pipeline gets going. Lengths are not looked
    at: the launch is the same at each step, and a CUDA graph may replay it.

    Args:
        batch: requests.
        num_kv_heads: heads of the cache.
        most_tokens: tokens that the width of the block table allows.
        tile: tokens of a tile.
        sm_count: streaming multiprocessors of the device.
    """
    wanted = -(-4 * sm_count // (batch * num_kv_heads))
    return max(1, min(wanted, most_tokens // (4 * tile), MOST_SPLITS))
