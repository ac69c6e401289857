"""Why a prompt was found in the cache as far as it was, in words. Reads requests, changes none."""

from collections import deque
from typing import NamedTuple

import numpy as np

from apclab.blocks.keys import ExtraKeys
from apclab.blocks.request import Request

_NAMES = {
    "cache_salt": "salt",
    "lora": "adapter",
    "mm": "images",
    "extra_keys": "extra keys",
}


class _Shared(NamedTuple):
    """What a prompt has in common with one before it."""

    tokens: int  # equal tokens from the start
    blocks: int  # equal keys from the start
    other: Request


class PromptMemory:
    """The newest prompts of a pool, ended ones too.

    Args:
        remember: how many; 0: none, and no explanations that need them.
    """

    def __init__(self, remember: int) -> None:
        self._prompts: deque[tuple[Request, bytes | None]] = deque(maxlen=remember)
        self._reset_at = 0  # admissions before the last reset

    def add(self, request: Request, tokens: bytes | None) -> None:
        """Remember a request's prompt, int32 bytes; None if it came with keys."""
        self._prompts.append((request, tokens))

    def drop(self, request: Request) -> None:
        """Forget the newest prompt if it is this request's."""
        if self._prompts and self._prompts[-1][0] is request:
            self._prompts.pop()

    def forget(self, admissions: int) -> None:
        """The cache was reset after so many admissions."""
        self._reset_at = admissions

    def explain(self, request: Request, hit: int, size: int) -> str:
        """Why `hit` tokens of a request were found, at `size` tokens a block."""
        mine = next((tokens for known, tokens in self._prompts if known is request), None)
        earlier = [
            _compare(request, mine, other, theirs, size)
            for other, theirs in reversed(self._prompts)  # of equal ones the newest
            if other is not request
            and 0 < other.admitted < (request.admitted or other.admitted + 1)
        ]
        most = (request.num_tokens - 1) // size * size
        tokens = max((shared.tokens for shared in earlier), default=0)
        same = max(earlier, key=lambda shared: shared.blocks, default=None)
        if same is not None and min(same.blocks * size, most) > hit:
            return self._gone(request, same, hit, min(same.blocks * size, most), size)
        if min(tokens // size * size, most) > hit:
            shared = max(earlier, key=lambda shared: shared.tokens)
            return (
                f"{_found(hit)}: a prefix of {shared.tokens} tokens is shared with "
                f"{shared.other.request_id!r}, but the {_difference(request, shared.other)} differ"
            )
        if hit == most > 0:
            return (
                f"{_found(hit)}: all full blocks of {size} before the last of "
                f"{request.num_tokens} tokens, which is always computed"
            )
        if 0 < tokens < size:
            return (
                f"{_found(hit)}: the shared prefix of {tokens} tokens is shorter than "
                f"one block of {size}"
            )
        if most == 0:
            return (
                f"{_found(hit)}: {request.num_tokens} tokens have no full block of {size} "
                f"before the last token"
            )
        if tokens > hit:
            return (
                f"{_found(hit)}: the shared prefix has {tokens} tokens, "
                f"and only full blocks of {size} are cached"
            )
        if hit:
            return f"{_found(hit)}: what follows was in none of the {len(earlier)} prompts before"
        return f"{_found(hit)}: nothing is shared with the {len(earlier)} prompts before"

    def _gone(self, request: Request, same: _Shared, hit: int, wanted: int, size: int) -> str:
        """Equal blocks were there before, and were not found."""
        other = same.other
        start = f"{_found(hit)}: {wanted} tokens are shared with {other.request_id!r}"
        if other.admitted <= self._reset_at:
            return f"{start}, and forgotten by a reset"
        if other.num_published * size < wanted or (request.block_ids and other.block_ids):
            return f"{start}, which had not been given slots for all of them"
        if request.block_ids:
            return f"{start}, and were evicted, or not yet there, when it asked"
        return f"{start}, and evicted since"


def _found(hit: int) -> str:
    return f"{hit} tokens found"


def _compare(
    request: Request, mine: bytes | None, other: Request, theirs: bytes | None, size: int
) -> _Shared:
    blocks = _leading(np.array([a == b for a, b in zip(request.keys, other.keys, strict=False)]))
    if mine is None or theirs is None:
        return _Shared(blocks * size, blocks, other)
    count = min(len(mine), len(theirs))
    equal = np.frombuffer(mine[:count], np.int32) == np.frombuffer(theirs[:count], np.int32)
    # generated tokens are in the keys and not in the prompts
    return _Shared(max(_leading(equal), blocks * size), blocks, other)


def _leading(equal: np.ndarray) -> int:
    """Length of the run of True from the start of bool [n]."""
    return len(equal) if equal.all() else int(equal.argmin())


def _difference(request: Request, other: Request) -> str:
    mine, theirs = request.extra or ExtraKeys(), other.extra or ExtraKeys()
    names = [
        name for field, name in _NAMES.items() if getattr(mine, field) != getattr(theirs, field)
    ]
    return " and ".join(names) or "keys"
