"""KV cache blocks: who holds which, what is cached, what is shared. Bookkeeping only, no KV data.

`BlockPool` hands out blocks as vLLM 0.33 does, `BlockTable` is what a decode kernel sees of them,
`Sharing` counts how often a block is read. Pure Python; NumPy for tokens and exports.
"""

from apclab.blocks.keys import PrefixKeys
from apclab.blocks.pool import BlockPool, Hit
from apclab.blocks.table import CSR, BlockTable, Int32, Sharing

__all__ = ["CSR", "BlockPool", "BlockTable", "Hit", "Int32", "PrefixKeys", "Sharing"]
