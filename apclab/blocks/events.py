"""What happened to the keys of a pool, as plain records, for whoever mirrors its cache."""

from typing import NamedTuple

from apclab.blocks.keys import Key


class BlockStored(NamedTuple):
    """Blocks that were published by one allocation, one behind the other.

    Hits store nothing; a block that carries a key that is known already is stored again.
    """

    block_hashes: list[Key]
    parent_block_hash: Key | None  # of the block before the first; None: there is none
    token_ids: list[int] | None  # of all these blocks; None: the request came with keys
    block_size: int

    @property
    def num_tokens(self) -> int:
        """Tokens of these blocks together."""
        return len(self.block_hashes) * self.block_size


class BlockRemoved(NamedTuple):
    """A block lost its key: it was handed out again or evicted. Others may still carry the key."""

    block_hash: Key


class AllBlocksCleared(NamedTuple):
    """A reset: no block carries a key."""


Event = BlockStored | BlockRemoved | AllBlocksCleared
