"""Identities of full blocks: exact keys, digest keys, and what besides tokens is in them.

A key stands for the tokens of a block, its extra keys and every block before it. Keys are `bytes`,
so that a long run holds nothing that Python's cyclic garbage collector would walk over.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from apclab.arguments import one_of

TokenIds = Sequence[int] | NDArray[np.integer]
Key = Hashable  # bytes of ours, or whatever a trace names its blocks by
KeyKind = Literal["exact", "sha256", "xxh3"]

TOKEN_BYTES = 4  # tokens are kept as int32
MAX_TOKEN_ID = np.iinfo(np.int32).max


@dataclass(frozen=True)
class ExtraKeys:
    """What besides its tokens tells a request's blocks apart from others.

    Args:
        cache_salt: of one tenant; only in the key of the first block, "" = none. The blocks behind
            it differ because their parent does.
        lora: (name, path) of an adapter, in every key.
        mm: (identity, offset, length) of each image or other input that stands for tokens: its
            first position in the prompt, and how many. In the key of each block that it overlaps,
            with its offset from the start of the block, which may be negative.
        extra_keys: anything else, in every key: str, int, bytes.

    Raises:
        TypeError: a field is of another type.
        ValueError: an offset is negative, or a length below 1.
    """

    cache_salt: str = ""
    lora: tuple[str, str] | None = None
    mm: tuple[tuple[str, int, int], ...] = ()
    extra_keys: tuple[str | int | bytes, ...] = ()

    def __post_init__(self) -> None:
        """Check every field; lists become tuples."""
        if type(self.cache_salt) is not str:
            raise TypeError(f"cache_salt must be a str, got {self.cache_salt!r}")
        if self.lora is not None:
            _typed("lora", self.lora, (str, str))
            object.__setattr__(self, "lora", tuple(self.lora))
        images = []
        for image in self.mm:
            _typed("mm", image, (str, int, int))
            identity, offset, length = image
            if offset < 0 or length < 1:
                raise ValueError(
                    f"mm must have an offset of at least 0 and a length of at least 1, "
                    f"got {offset} and {length} of {identity!r}"
                )
            images.append((identity, offset, length))
        object.__setattr__(self, "mm", tuple(sorted(images, key=lambda image: image[1:])))
        for value in self.extra_keys:
            if type(value) not in (str, int, bytes):
                raise TypeError(f"extra_keys must be str, int or bytes, got {value!r}")
        object.__setattr__(self, "extra_keys", tuple(self.extra_keys))

    def of_block(self, index: int, block_size: int) -> bytes:
        """The extra keys of a request's block number `index`, each with its kind, as bytes.

        Kinds are named, so that a salt never equals an adapter's name; no two different sets of
        extra keys have the same bytes.
        """
        start, end = index * block_size, (index + 1) * block_size
        tagged: list[tuple[object, ...]] = []
        if self.lora is not None:
            tagged.append(("lora", *self.lora))
        tagged += [
            ("mm", identity, offset - start)
            for identity, offset, length in self.mm
            if offset < end and offset + length > start
        ]
        if self.cache_salt and index == 0:
            tagged.append(("cache_salt", self.cache_salt))
        tagged += [("extra", value) for value in self.extra_keys]
        # repr of str, int and bytes is one to one, and escapes what could not be encoded
        return repr(tagged).encode() if tagged else b""


class ExactKeys:
    """Interned keys: equal keys mean equal tokens and extra keys, always. Not a hash.

    (parent key, token bytes, extra keys) -> a counter of 8 bytes. A key is not forgotten while the
    pool lives, not by a reset either: about 300 bytes and the tokens for each
    distinct full block that was seen. Long runs take `DigestKeys`.
    """

    ROOT = bytes(8)  # parent of every first block

    def __init__(self, block_size: int) -> None:
        self._step = block_size * TOKEN_BYTES
        self._known: dict[bytes, bytes] = {}
        self._contents = [b""]

    def extend(self, keys: list[Key], tokens: bytes, extra: ExtraKeys | None = None) -> bytes:
        """Append a key for each full block of `tokens`, which follow those keys; the rest of them.

        Args:
            keys: of the blocks before; grows.
            tokens: int32 bytes behind the last of those blocks.
            extra: of the request.
        """
        known, step = self._known, self._step
        parent = keys[-1] if keys else self.ROOT
        assert isinstance(parent, bytes), "a trace's own keys cannot be continued"
        end = len(tokens) // step * step
        for start in range(0, end, step):
            # parent and tokens have fixed widths, so nothing else gives these bytes
            content = parent + tokens[start : start + step]
            if extra is not None:
                content += extra.of_block(len(keys), step // TOKEN_BYTES)
            if (key := known.get(content)) is None:
                key = known[content] = len(self._contents).to_bytes(8, "little")
                self._contents.append(content)
            keys.append(key)
            parent = key
        return tokens[end:]

    def find(self, tokens: bytes, extra: ExtraKeys | None = None) -> list[Key]:
        """Keys of the leading full blocks of a prompt up to the first never seen; adds none."""
        keys: list[Key] = []
        parent, step = self.ROOT, self._step
        for start in range(0, len(tokens) // step * step, step):
            content = parent + tokens[start : start + step]
            if extra is not None:
                content += extra.of_block(len(keys), step // TOKEN_BYTES)
            if (key := self._known.get(content)) is None:
                break
            keys.append(key)
            parent = key
        return keys

    def parent(self, key: Key) -> Key:
        """Key of the block before, ROOT for a first block."""
        assert isinstance(key, bytes)
        return self._contents[int.from_bytes(key, "little")][:8]


class DigestKeys:
    """Chained digests, as vLLM's: bounded memory, and equal keys mean equal blocks but for luck.

    "sha256" gives 32 bytes; "xxh3" gives 16 of XXH3-128, several times faster, and not safe
    against somebody who looks for a collision.

    Raises:
        ValueError: "xxh3" and the package xxhash is missing.
    """

    def __init__(self, block_size: int, algorithm: Literal["sha256", "xxh3"]) -> None:
        self._step = block_size * TOKEN_BYTES
        self._digest = _digest(algorithm)
        # parents have one width, so that no prompt can write another block's content
        self.root = bytes(len(self._digest(b"")))

    def extend(self, keys: list[Key], tokens: bytes, extra: ExtraKeys | None = None) -> bytes:
        """As `ExactKeys.extend`."""
        digest, step = self._digest, self._step
        parent = keys[-1] if keys else self.root
        assert isinstance(parent, bytes), "a trace's own keys cannot be continued"
        end = len(tokens) // step * step
        for start in range(0, end, step):
            content = parent + tokens[start : start + step]
            if extra is not None:
                content += extra.of_block(len(keys), step // TOKEN_BYTES)
            parent = digest(content)
            keys.append(parent)
        return tokens[end:]

    def find(self, tokens: bytes, extra: ExtraKeys | None = None) -> list[Key]:
        """Keys of all full blocks of a prompt."""
        keys: list[Key] = []
        self.extend(keys, tokens, extra)
        return keys


def make_keys(kind: KeyKind, block_size: int) -> ExactKeys | DigestKeys:
    """The keys of that name; ValueError for another name, or if its package is missing."""
    one_of("keys", kind, get_args(KeyKind))
    return ExactKeys(block_size) if kind == "exact" else DigestKeys(block_size, kind)


def _digest(algorithm: Literal["sha256", "xxh3"]) -> Callable[[bytes], bytes]:
    if algorithm == "sha256":
        sha256 = hashlib.sha256
        return lambda content: sha256(content).digest()
    try:
        xxhash = import_module("xxhash")
    except ModuleNotFoundError:
        raise ValueError(
            'keys="xxh3" needs the package xxhash, which is missing; '
            'pip install "apclab[xxh3]", or take keys="sha256"'
        ) from None
    digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
    return digest


def _typed(name: str, value: object, types: tuple[type, ...]) -> None:
    if not isinstance(value, tuple | list) or tuple(map(type, value)) != types:
        expected = ", ".join(kind.__name__ for kind in types)
        raise TypeError(f"{name} must be ({expected}), got {value!r}")


def tokens_to_bytes(token_ids: TokenIds, *, least: int = 0) -> bytes:
    """Tokens as int32 bytes, checked: a token that wrapped around would be another's twin.

    Args:
        token_ids: [num_tokens] ints, 0 to 2**31 - 1.
        least: number of tokens expected at least.

    Raises:
        TypeError: token_ids are no ints.
        ValueError: token_ids are nested, too few or out of range.
    """
    # one generated token at a time is what a decode step brings: no detour by NumPy
    if type(token_ids) is list and len(token_ids) == 1 and type(token_ids[0]) is int:
        if 0 <= token_ids[0] <= MAX_TOKEN_ID:
            return token_ids[0].to_bytes(TOKEN_BYTES, "little")
        raise ValueError(f"token_ids must be between 0 and {MAX_TOKEN_ID}, got {token_ids[0]}")
    tokens = np.asarray(token_ids)
    if tokens.ndim != 1:
        raise ValueError(f"token_ids must be one sequence of ints, got shape {list(tokens.shape)}")
    if tokens.size < least:
        raise ValueError(f"token_ids must hold at least {least} token(s), got {tokens.size}")
    if tokens.size == 0:
        return b""
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"token_ids must be ints, got {tokens.dtype}")
    # int32 is what prompts come as: seen as uint32, a negative token is too large, too
    if tokens.dtype == np.int32 and int(tokens.view(np.uint32).max()) <= MAX_TOKEN_ID:
        return tokens.astype("<i4", copy=False).tobytes()
    for token in (int(tokens.min()), int(tokens.max())):
        if not 0 <= token <= MAX_TOKEN_ID:
            raise ValueError(f"token_ids must be between 0 and {MAX_TOKEN_ID}, got {token}")
    return tokens.astype("<i4", copy=False).tobytes()
