"""How a KV cache lies in memory: its layout's dimensions and strides, and the types of arrays."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
# float32, float16 or ml_dtypes.bfloat16
Elements = NDArray[Any]


class CacheShape(NamedTuple):
    """Dimensions of a key or value cache, whatever their order in memory."""

    num_blocks: int
    block_size: int  # tokens
    num_kv_heads: int
    head_size: int


def cache_shape(cache: Any, layout: str) -> CacheShape:
    """Dimensions of a cache of NumPy or torch.

    Args:
        cache: [num_blocks, block_size, num_kv_heads, head_size] in layout NHD,
            [num_blocks, num_kv_heads, block_size, head_size] in HND.
        layout: "NHD" or "HND".
    """
    blocks, tokens, heads, size = map(int, cache.shape)
    return CacheShape(blocks, *((tokens, heads) if layout == "NHD" else (heads, tokens)), size)


def by_token(cache: Any, layout: str) -> Any:
    """The cache, or some of its blocks, as [num_blocks, block_size, num_kv_heads, head_size]."""
    return cache if layout == "NHD" else cache.swapaxes(1, 2)


def strides_of(cache: Any, layout: str) -> tuple[int, int, int]:
    """Elements from block to block, token to token and head to head of a contiguous cache."""
    _, block_size, heads, size = cache_shape(cache, layout)
    token, head = (heads * size, size) if layout == "NHD" else (size, block_size * size)
    return block_size * heads * size, token, head
