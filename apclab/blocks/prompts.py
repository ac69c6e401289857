"""Keys of whole prompts: what a prompt has in common with one before it is not hashed again.

A shortcut, not a cache of blocks: the keys are those that `ExactKeys` or `DigestKeys` would make.
"""

from collections import OrderedDict

from apclab.blocks.keys import TOKEN_BYTES, DigestKeys, ExactKeys, ExtraKeys, Key

LEAST_BYTES, MOST_BYTES = 1 << 20, 32 << 20
BYTES_A_BLOCK = 48


class PromptKeys:
    """Makes the keys of prompts, from the newest earlier prompt with the same first block.

    Args:
        keys: makes the keys of blocks.
        block_size: tokens per block.
        num_blocks: of the pool; 48 bytes of earlier prompts are kept for each, 1 to 32 MiB.
    """

    def __init__(self, keys: ExactKeys | DigestKeys, block_size: int, num_blocks: int) -> None:
        self._keys = keys
        self._step = block_size * TOKEN_BYTES
        self._most = min(max(BYTES_A_BLOCK * num_blocks, LEAST_BYTES), MOST_BYTES)
        self._held = 0
        # first block and extra keys -> tokens of the newest prompt, and its keys; oldest use first
        self._heads: OrderedDict[object, tuple[bytes, list[Key]]] = OrderedDict()

    def extend(self, keys: list[Key], tokens: bytes, extra: ExtraKeys | None) -> bytes:
        """Append the keys of a prompt's full blocks to an empty list; the tokens behind them."""
        step = self._step
        if len(tokens) < step:
            return tokens
        head = tokens[:step] if extra is None else (tokens[:step], extra)
        before = self._heads.pop(head, None)
        start = 0
        if before is not None:
            self._held -= len(before[0])
            start = _common(before[0], tokens, step)
            keys += before[1][:start]
            start *= step
        tail = self._keys.extend(keys, tokens[start:] if start else tokens, extra)
        if len(tokens) <= self._most:
            self._heads[head] = (tokens, keys)
            self._held += len(tokens)
            while self._held > self._most:
                _, (old, _) = self._heads.popitem(last=False)
                self._held -= len(old)
        return tail


def _common(before: bytes, tokens: bytes, step: int) -> int:
    """Full blocks in common from the start, at least the first; both begin with the same one."""
    low, high = 1, min(len(before), len(tokens)) // step
    while low < high:
        middle = (low + high + 1) // 2
        if tokens.startswith(before[: middle * step]):
            low = middle
        else:
            high = middle - 1
    return low
