"""KV cache blocks: who holds which, what is cached, what is shared. Bookkeeping only, no KV data.

`BlockPool` hands out blocks as vLLM 0.33 does, `BlockTable` is what a decode kernel sees of them,
`Sharing` counts how often a block is read. Pure Python; NumPy for tokens and exports.

    pool        BlockPool, what a scheduler asks for; the v0 pool of May 2024 has the same face
    requests    its requests: tokens become known, are hashed once, and wait for blocks
    store       its blocks: reference counts, keys, free queue
    observer    what it tells: hits, events, lifetimes
"""

from apclab.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from apclab.blocks.keys import DigestKeys, ExactKeys, ExtraKeys, Key
from apclab.blocks.pool import BlockPool
from apclab.blocks.queues import CachedBlocks, FreeQueue
from apclab.blocks.request import Hit, Request
from apclab.blocks.stats import HitRate, Lifetimes, PrefixCacheStats, Residency
from apclab.blocks.table import CSR, BlockTable, Int32, Sharing
from apclab.blocks.v0 import BlockPoolV0

__all__ = [
    "CSR",
    "AllBlocksCleared",
    "BlockPool",
    "BlockPoolV0",
    "BlockRemoved",
    "BlockStored",
    "BlockTable",
    "CachedBlocks",
    "DigestKeys",
    "Event",
    "ExactKeys",
    "ExtraKeys",
    "FreeQueue",
    "Hit",
    "HitRate",
    "Int32",
    "Key",
    "Lifetimes",
    "PrefixCacheStats",
    "Request",
    "Residency",
    "Sharing",
]
