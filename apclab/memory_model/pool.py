"""How many blocks of KV cache so much memory is, and back. No device is known here."""

from apclab import specs
from apclab.arguments import INT32_MOST, positive, whole_number


def pool_blocks(kv_gb: float, model: str | specs.ModelShape, dtype: str, block_size: int) -> int:
    """Blocks, the null block included, of a KV cache of so many GB (1e9 bytes), all layers.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or not one block fits.
    """
    shape = specs.model(model)
    block_size = whole_number("block_size", block_size, 1, INT32_MOST)
    block = block_size * shape.token_bytes(dtype) * shape.num_layers
    blocks = int(positive("kv_gb", kv_gb) * 1e9 // block)
    if blocks < 1:
        raise ValueError(
            f"kv_gb must hold a block of {block_size} tokens, {block / 1e9:.3g} GB, got {kv_gb:g}"
        )
    return 1 + blocks


def pool_gb(blocks: int, model: str | specs.ModelShape, dtype: str, block_size: int) -> float:
    """GB (1e9 bytes) of KV cache that so many blocks are, all layers."""
    shape = specs.model(model)
    return blocks * block_size * shape.token_bytes(dtype) * shape.num_layers / 1e9
