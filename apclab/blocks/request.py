"""What a pool knows of one request: its keys, its table, its counts. Changed by the pool alone."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from apclab.blocks.keys import ExtraKeys, Key


class Hit(NamedTuple):
    """The longest cached prefix of a prompt."""

    block_ids: list[int]
    num_tokens: int  # a multiple of the block size, below the prompt's number of tokens


@dataclass(slots=True, eq=False)
class Request:
    """One request that a pool knows. For reading; the pool's methods change it.

    Waiting (block_ids is empty) or live (it holds the blocks of its computed tokens).

    Attributes:
        request_id: its name.
        num_prompt_tokens: tokens that it came with.
        num_tokens: tokens known by now, prompt and generated.
        num_computed_tokens: tokens that have a slot, found or computed; 0 while it waits.
        num_cached_tokens: tokens found in the cache at its last admission.
        block_ids: its block table.
        keys: of the full blocks of all tokens that were given, hashed once; [] with caching off.
        num_given_tokens: tokens given, those included that are not known yet; None: no limit.
        skip_reading_prefix_cache: it publishes its blocks and finds none.
        num_preemptions: how often it lost its blocks.
        num_published: full blocks that it has been given slots for, the most so far.
        admitted: number of its last admission in the pool, from 1; 0: never.
    """

    request_id: Hashable
    num_prompt_tokens: int
    num_tokens: int
    num_given_tokens: int | None
    keys: list[Key]
    tail: bytes = b""  # int32 tokens behind the last key; empty with caching off
    extra: ExtraKeys | None = None
    tokens: bytes | None = None  # int32, kept for events, and by the pool of May 2024
    skip_reading_prefix_cache: bool = False
    block_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_published: int = 0
    admitted: int = 0
    checked_ids: list[int] = field(default_factory=list)  # its table at the last check()
