"""What peers are asked: a shape, a dtype, a share; its step, and the same in larger blocks."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from apclab.attention import as_torch
from apclab.bench.bound import Bound
from apclab.bench.step import Step, allocate, decode_step
from apclab.blocks import BlockTable
from apclab.specs import ModelShape
from apclab.workload import Workload

BLOCK_SIZE = 16  # of our kernels, and the unit in which shares are counted
# one layer of Llama-13B, and of the usual 8B models with grouped queries
SHAPES = {
    "MHA 40": ModelShape("MHA 40", 1, 40, 40, 128),
    "GQA 32/8": ModelShape("GQA 32/8", 1, 32, 8, 128),
}
SHARES = (0, 9, 18)  # shared of a request's 19 table entries


@dataclass(frozen=True)
class Setting:
    """What is measured: a shape, a dtype, and how many blocks of a request's table are shared."""

    shape: ModelShape = SHAPES["MHA 40"]
    dtype: str = "float32"
    shared: int = 0
    batch: int = 64
    seq_len: int = 304
    seed: int = 0

    def __post_init__(self) -> None:
        """Check that the last block, which the next token goes into, is a request's own."""
        if not 0 <= self.shared * BLOCK_SIZE < self.seq_len:
            raise ValueError(
                f"shared must leave a request a block of its own of {self.entries}, "
                f"got {self.shared}"
            )

    @property
    def entries(self) -> int:
        """Table entries of a request."""
        return -(-self.seq_len // BLOCK_SIZE)

    def workload(self, prefix: int) -> Workload:
        """The requests with a shared prefix of so many tokens; one token is generated."""
        prompt = self.seq_len - 1  # the first step attends to the prompt and one token more
        return Workload(self.batch, prompt, 2, cache_hit=prefix / prompt, seed=self.seed)

    def step(self) -> Step:
        """The first decode step, in blocks of 16."""
        work = self.workload(self.shared * BLOCK_SIZE)
        return decode_step(work, block_size=BLOCK_SIZE, step="first")

    def table(self, block_size: int) -> BlockTable:
        """Tables of a real pool at a larger block size; ids permuted, as many as are distinct.

        A prefix that ends inside a larger block is longer for some requests and shorter for the
        others, whole blocks each, so that a peer with larger blocks reads the same bytes as we do.
        """
        prefix = self.shared * BLOCK_SIZE
        down = prefix // block_size * block_size
        up = down if down == prefix or down + block_size >= self.seq_len else down + block_size
        longer = round(self.batch * (prefix - down) / block_size)
        short, long = self.workload(down), self.workload(up)
        prompts = [*long.prompts()[:longer], *short.prompts()[longer:]]
        answers = [answer[:1] for answer in long.generated()]
        table, _ = allocate(long.primers(), prompts, answers, block_size)
        return table.permuted(self.seed)


def settings(
    shapes: tuple[str, ...] = tuple(SHAPES),
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    shares: tuple[int, ...] = SHARES,
) -> list[Setting]:
    """Every combination, in the order of the table.

    Raises:
        ValueError: a shape is unknown, or a share leaves no block of a request's own.
    """
    for name in shapes:
        if name not in SHAPES:
            raise ValueError(f"shapes must be some of {', '.join(SHAPES)}, got {name!r}")
    return [
        Setting(SHAPES[shape], dtype, shared)
        for shape in shapes
        for dtype in dtypes
        for shared in shares
    ]


@dataclass(frozen=True, eq=False)
class Larger:
    """Keys or values of all layers in larger blocks: each layer is a copy, made when asked for."""

    pools: Any  # [layers, num_blocks, 16, num_kv_heads, head_size]
    parts: Any  # [larger blocks, block_size / 16], which blocks of `pools` a larger one is made of

    def __len__(self) -> int:
        """Layers."""
        return len(self.pools)

    def __getitem__(self, layer: int) -> Any:
        """[larger blocks, block_size, num_kv_heads, head_size]."""
        pool = self.pools[layer]
        return pool[self.parts].reshape(len(self.parts), -1, *pool.shape[2:])


def with_blocks_of(bound: Bound, setting: Setting, block_size: int) -> Bound:
    """The same step and numbers for a kernel whose blocks are a multiple of 16 tokens."""
    if block_size == BLOCK_SIZE:
        return bound
    table, factor = setting.table(block_size), block_size // BLOCK_SIZE
    ids = bound.tables["shared"].block_tables
    wide = np.zeros((len(ids), table.block_tables.shape[1] * factor), np.int32)
    wide[:, : ids.shape[1]] = ids
    # [entries]: where a block's first reader names it; what that one reads is in it
    distinct, first = np.unique(table.block_tables, return_index=True)
    parts: Any = np.zeros((int(distinct[-1]) + 1, factor), np.int64)
    parts[distinct] = wide.reshape(-1, factor)[first]
    parts[0] = 0  # the null block, which pads the tables
    if bound.how.kind == "cuda":
        parts = as_torch(parts).cuda()
    layer = len(parts) * block_size * bound.model.token_bytes(bound.how.dtype)
    return replace(
        bound,
        step=replace(
            bound.step, block_size=block_size, shared=table, private=table.private(),
            realised_hit=None, readers_mean=table.sharing().readers_mean,
        ),
        memory=replace(
            bound.memory, num_blocks=len(parts), pool_bytes=bound.memory.layers * layer
        ),
        tables={"shared": table},
        keys=Larger(bound.keys, parts),
        values=Larger(bound.values, parts),
    )  # fmt: skip
