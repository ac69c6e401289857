"""Exact identities of block prefixes. Not a hash: equal keys mean equal tokens, always."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TokenIds = Sequence[int] | NDArray[np.integer]

TOKEN_BYTES = 4  # tokens are kept as int32
MAX_TOKEN_ID = np.iinfo(np.int32).max


class PrefixKeys:
    """Interned keys of full blocks, each chained to its parent.

    A key stands for the tokens of a block *and* of every block before it: (parent key, token
    bytes) -> int. Keys never collide, by construction. A key is never forgotten, also when no
    block carries it any more: about 200 bytes and the tokens for each distinct full block seen.
    """

    ROOT = 0  # parent of every first block

    def __init__(self) -> None:
        self._keys: dict[bytes, int] = {}
        self._parents = [self.ROOT]

    def find(self, parent: int, tokens: bytes) -> int | None:
        """Key of a block with these tokens behind `parent`, None when never interned."""
        return self._keys.get(parent.to_bytes(8, "little") + tokens)

    def intern(self, parent: int, tokens: bytes) -> int:
        """Key of a block with these tokens behind `parent`, a new one at first sight."""
        # the parent has a fixed width, so no other (parent, tokens) gives these bytes
        key = self._keys.setdefault(parent.to_bytes(8, "little") + tokens, len(self._parents))
        if key == len(self._parents):
            self._parents.append(parent)
        return key

    def parent(self, key: int) -> int:
        """Key of the block before, ROOT for a first block."""
        return self._parents[key]


def tokens_to_bytes(token_ids: TokenIds, *, least: int = 0) -> bytes:
    """Tokens as int32 bytes, checked: a token that wrapped around would be another's twin.

    Args:
        token_ids: [num_tokens] ints, 0 to 2**31 - 1.
        least: number of tokens expected at least.

    Raises:
        TypeError: token_ids are no ints.
        ValueError: token_ids are nested, too few or out of range.
    """
    tokens = np.asarray(token_ids)
    if tokens.ndim != 1:
        raise ValueError(f"token_ids must be one sequence of ints, got shape {list(tokens.shape)}")
    if tokens.size < least:
        raise ValueError(f"token_ids must hold at least {least} token(s), got {tokens.size}")
    if tokens.size == 0:
        return b""
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"token_ids must be ints, got {tokens.dtype}")
    for token in (int(tokens.min()), int(tokens.max())):
        if not 0 <= token <= MAX_TOKEN_ID:
            raise ValueError(f"token_ids must be between 0 and {MAX_TOKEN_ID}, got {token}")
    return tokens.astype(np.int32, copy=False).tobytes()
