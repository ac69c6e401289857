"""One decode step in memory, as kernels of one block size see it: tables of a pool, K and V."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apclab.attention import as_torch, dtype_of
from apclab.bench.buffers import key_value_pool
from apclab.bench.step import blocks_of
from apclab.blocks import BlockPool, BlockTable
from apclab.clock import machine
from apclab.specs import ModelShape
from apclab.workload import Workload

Array = NDArray[Any]

BLOCK_SIZE = 16  # of our kernels, and the unit in which shares are counted
# one layer of Llama-13B, and of the usual 8B models with grouped queries
SHAPES = {
    "MHA 40": ModelShape("MHA 40", 1, 40, 40, 128),
    "GQA 32/8": ModelShape("GQA 32/8", 1, 32, 8, 128),
}
SHARES = (0, 9, 18)  # shared of a request's 19 table entries
# layouts that hold copies of K and V side by side: NHD, HND, vLLM's two, OpenVINO's
_COPIES = 5


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

    def table(self, block_size: int) -> BlockTable:
        """Tables of a real pool at a block size; ids permuted, just as many as are distinct.

        A prefix that ends inside a larger block is longer for some requests and shorter for the
        others, whole blocks each, so that a peer with larger blocks reads the same bytes as we do.
        """
        prompt = self.seq_len - 1  # the first step attends to the prompt and one token more
        prefix = self.shared * BLOCK_SIZE
        down = prefix // block_size * block_size
        up = down if down == prefix or down + block_size > prompt else down + block_size
        longer = round(self.batch * (prefix - down) / block_size)
        short, long = (
            Workload(self.batch, prompt, 2, cache_hit=tokens / prompt, seed=self.seed)
            for tokens in (down, up)
        )
        room = blocks_of(self.batch + 1, self.seq_len, block_size)
        pool = BlockPool(room + 1, block_size=block_size)
        for primer in long.primers():
            pool.allocate_slots("primer", primer)
            pool.free("primer")
        prompts = [*long.prompts()[:longer], *short.prompts()[longer:]]
        for request, (tokens, answer) in enumerate(zip(prompts, long.generated(), strict=True)):
            pool.allocate_slots(request, tokens)
            pool.append_tokens(request, answer[:1])
        return pool.block_table().permuted(self.seed)


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


class Layer(NamedTuple):
    """Keys and values of one layer."""

    keys: Any  # [num_blocks, block_size, num_kv_heads, head_size], or heads first in HND
    values: Any


@dataclass(frozen=True, eq=False)
class Problem:
    """The arrays of a setting for kernels of one block size.

    Attributes:
        setting: what they are made for.
        table: block tables and lengths.
        query: [batch, num_heads, head_size].
        keys: of all layers, [layers, num_blocks, 16, num_kv_heads, head_size].
        values: as keys.
        kind: "cpu" for NumPy arrays, "cuda" for tensors on the GPU.
        threads: of a CPU kernel.
        parts: [num_blocks, block_size / 16], which blocks of `keys` a larger block is made of.
    """

    setting: Setting
    table: BlockTable
    query: Any
    keys: Any
    values: Any
    kind: str
    threads: int
    parts: Any = None

    @property
    def layers(self) -> int:
        """Layers that timed calls cycle over."""
        return len(self.keys)

    @property
    def num_blocks(self) -> int:
        """Blocks of a layer's pool, the null block included."""
        return int(self.table.block_tables.max()) + 1

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.setting.shape.head_size**-0.5)

    @property
    def device_tables(self) -> tuple[Any, Any]:
        """Block tables and lengths as torch tensors where K and V lie."""
        arrays = (as_torch(self.table.block_tables), as_torch(self.table.seq_lens))
        ids, lens = (array.cuda() if self.kind == "cuda" else array for array in arrays)
        return ids, lens

    def layer(self, index: int, layout: str = "NHD") -> Layer:
        """Keys and values of a layer in a layout; a copy unless it is NHD with 16 tokens."""
        made = []
        for pool in (self.keys[index], self.values[index]):
            if self.parts is not None:  # [num_blocks, parts, 16, heads, size]
                pool = pool[self.parts].reshape(self.num_blocks, -1, *pool.shape[2:])
            if layout == "HND":
                pool = pool.swapaxes(1, 2)
                pool = np.ascontiguousarray(pool) if self.kind == "cpu" else pool.contiguous()
            made.append(pool)
        return Layer(*made)

    def with_blocks_of(self, block_size: int) -> "Problem":
        """The same step and numbers for a kernel whose blocks are a multiple of 16 tokens."""
        if block_size == self.table.block_size:
            return self
        table, factor = self.setting.table(block_size), block_size // BLOCK_SIZE
        ids = self.table.block_tables
        wide = np.zeros((len(ids), table.block_tables.shape[1] * factor), np.int32)
        wide[:, : ids.shape[1]] = ids
        # [entries]: where a block's first reader names it; what that one reads is in it
        distinct, first = np.unique(table.block_tables, return_index=True)
        parts = np.zeros((int(distinct[-1]) + 1, factor), np.int64)
        parts[distinct] = wide.reshape(-1, factor)[first]
        parts[0] = 0  # the null block, which pads the tables
        return replace(
            self, table=table, parts=as_torch(parts).cuda() if self.kind == "cuda" else parts
        )


def make_problem(
    setting: Setting, *, kind: str = "cpu", threads: int = 1, memory_limit: int = 5 * 10**9
) -> Problem:
    """Allocate and fill; the layers are as many as four last-level caches need, or as fit.

    Args:
        setting: what to make.
        kind: "cpu" or "cuda".
        threads: of a CPU kernel.
        memory_limit: bytes of K and V in all layouts together.
    """
    table = setting.table(BLOCK_SIZE)
    shape = setting.shape
    num_blocks = int(table.block_tables.max()) + 1
    layer_bytes = num_blocks * BLOCK_SIZE * shape.token_bytes(setting.dtype)
    wanted = max(2, -(-4 * machine(kind)["llc_bytes"] // layer_bytes))
    layers = max(1, min(wanted, memory_limit // (_COPIES * layer_bytes)))
    size = [layers, num_blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_size]
    keys, values = (
        flat.reshape(size) for flat in key_value_pool(int(np.prod(size)), setting.dtype, kind)
    )
    query: Any = np.random.default_rng(setting.seed).standard_normal(
        (setting.batch, shape.num_heads, shape.head_size), np.float32
    ).astype(dtype_of(setting.dtype))  # fmt: skip
    if kind == "cuda":
        query = as_torch(query).cuda()
    return Problem(setting, table, query, keys, values, kind, threads)
