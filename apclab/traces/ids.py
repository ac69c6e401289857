"""Ids of a prompt's blocks: those that a trace names, and those made of tokens. Reads no file."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from apclab.traces.request import TraceError, list_of, shown

LARGEST_ID = 2**64 - 1


def block_ids(
    fields: dict[str, Any], name: str, input_len: int, block_size: int, largest: int = LARGEST_ID
) -> list[int]:
    """The ids under a name, one a block of the prompt, with or without its partial last block.

    Unsigned numbers of 64 bits and hexadecimal texts become int64.

    Raises:
        TraceError: they are no ids, too few or too many.
    """
    ids = list_of(fields, name)
    full, blocks = input_len // block_size, -(-input_len // block_size)
    if len(ids) not in (full, blocks):
        wanted = str(full) if full == blocks else f"{full} or {blocks}"
        raise TraceError(
            f"{name} must hold {wanted} ids for {input_len} tokens in blocks of {block_size}, "
            f"got {len(ids)}"
        )
    return [_id(value, name, largest) for value in ids]


def _id(value: Any, name: str, largest: int) -> int:
    if type(value) is str:
        value = _of_hexadecimal(value, name)
    if type(value) is not int or not 0 <= value <= largest:
        raise TraceError(
            f"{name} must hold integers from 0 to {largest}, or hexadecimal texts, "
            f"got {shown(value)}"
        )
    return value if value < 2**63 else value - 2**64


def _of_hexadecimal(text: str, name: str) -> int:
    try:
        value = int(text, 16)
    except ValueError:
        raise TraceError(f"{name} must hold hexadecimal texts, got {shown(text)}") from None
    # a digest of more than 64 bits is digested once more
    return value if value <= LARGEST_ID else chained(0, f"{value:x}".encode())


def once_each(ids: Sequence[int], name: str) -> tuple[int, ...]:
    """Ids that stand for all before them, too; TraceError if one is there twice."""
    if len(set(ids)) < len(ids):
        twice = _first_twice(ids)
        raise TraceError(f"{name} holds {twice} twice; an id stands for all before it, too")
    return tuple(ids)


def _first_twice(ids: Iterable[int]) -> int:
    seen: set[int] = set()
    return next(value for value in ids if value in seen or seen.add(value))  # type: ignore[func-returns-value]


def chained(parent: int, content: bytes) -> int:
    """An id for a block's content behind its parent's id: 63 bits of BLAKE2b.

    Two of n different blocks meet with a chance of n * n / 2**64.
    """
    digest = hashlib.blake2b(parent.to_bytes(8, "little") + content, digest_size=8)
    return int.from_bytes(digest.digest(), "little") >> 1


def chain(contents: Iterable[bytes]) -> tuple[int, ...]:
    """Ids of blocks that are told by their contents alone, each with all before it."""
    found, parent = [], 0
    for content in contents:
        parent = chained(parent, content)
        found.append(parent)
    return tuple(found)


def token_ids(fields: dict[str, Any], name: str, block_size: int) -> tuple[int, tuple[int, ...]]:
    """How many tokens a list of them holds, and the ids of their blocks."""
    tokens = list_of(fields, name)
    try:
        text = array("I", tokens).tobytes()
    except (TypeError, OverflowError):
        wrong = next(token for token in tokens if type(token) is not int or not 0 <= token < 2**32)
        raise TraceError(f"{name} must hold token ids, got {shown(wrong)}") from None
    step = block_size * 4
    return len(tokens), chain(text[at : at + step] for at in range(0, len(text), step))
