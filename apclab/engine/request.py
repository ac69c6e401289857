"""What is asked of the engine, one request at a time, and what the engine keeps of it."""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from apclab.blocks import BlockPool, BlockPoolV0, ExtraKeys
from apclab.blocks import Request as PoolRequest
from apclab.blocks.keys import MAX_TOKEN_ID, TokenIds


class TooFewBlocks(ValueError):  # noqa: N818 - named by what is short, as Stuck
    """A prompt needs more blocks than the pool can ever give."""


@dataclass(slots=True, eq=False)
class Request:
    """One request, and its life in the engine so far.

    Asked are either tokens or, where a trace knows no tokens, their number and one key a block.

    Attributes:
        request_id: its name.
        arrival_s: seconds since the run's start.
        max_tokens: tokens to generate, at least 1.
        token_ids: the prompt, [num_tokens] ints; None: `num_prompt_tokens` and `keys` say it all.
        output_token_ids: what it will generate, as far as that matters for hits of others; may be
            shorter than max_tokens.
        num_prompt_tokens: where there are no tokens.
        keys: one a full block of the prompt and, as far as known, of the output.
        priority: smaller is more important, for queue "priority".
        arrival_order: breaks ties of priority; the arrival if None.
        extra: salt, adapter, images.
        skip_reading_prefix_cache: it publishes its blocks and finds none.
        pool: the pool's record, once the engine has it.
        num_output_tokens: generated so far.
        token_steps: the step at whose end each token was there, int64.
        first_hit_tokens: tokens found in the cache at its first admission, -1: not admitted yet.
        first_step: its first scheduled step, -1: none.
        pauses: steps [from, to] in which it was preempted or computed again what it had lost.
        num_preemptions: how often it lost its blocks.
        finish: "length" or "abort", "" while it lives.
    """

    request_id: Hashable
    arrival_s: float = 0.0
    max_tokens: int = 1
    token_ids: TokenIds | None = None
    output_token_ids: TokenIds = ()
    num_prompt_tokens: int = 0
    keys: Sequence[Hashable] | None = None
    priority: int = 0
    arrival_order: float | None = None
    extra: ExtraKeys | None = None
    skip_reading_prefix_cache: bool = False

    pool: PoolRequest = field(init=False)
    num_output_tokens: int = 0
    token_steps: "array[int]" = field(default_factory=lambda: array("q"))
    first_hit_tokens: int = -1
    first_step: int = -1
    pauses: list[list[int]] = field(default_factory=list)
    num_preemptions: int = 0
    finish: str = ""

    def __post_init__(self) -> None:
        """Check what is asked."""
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.arrival_s < float("inf"):
            raise ValueError(f"arrival_s must be a time from 0 on, got {self.arrival_s}")
        if self.token_ids is not None:
            self.num_prompt_tokens = len(self.token_ids)
        if self.num_prompt_tokens < 1:
            raise ValueError(
                f"a request must have at least one prompt token, got {self.num_prompt_tokens} "
                f"of {self.request_id!r}"
            )


def make_known(pool: BlockPool | BlockPoolV0, request: Request, number: int) -> None:
    """Give a request to the pool, which hashes it.

    Args:
        pool: the blocks.
        request: not known yet.
        number: different for each request; makes up output tokens where none are given.

    Raises:
        TooFewBlocks: more prompt than the pool can ever hold.
        ValueError: too few output tokens, a key twice.
    """
    blocks = -(-request.num_prompt_tokens // pool.block_size)
    if blocks > pool.num_blocks - 1:
        raise TooFewBlocks(
            f"request {request.request_id!r}: a prompt of {request.num_prompt_tokens} tokens needs "
            f"{blocks} blocks of {pool.block_size}, the pool has {pool.num_blocks - 1}"
        )
    if request.token_ids is None:
        request.pool = pool.add_hashed_request(
            request.request_id, request.keys or (), request.num_prompt_tokens,
            skip_reading_prefix_cache=request.skip_reading_prefix_cache,
        )  # fmt: skip
        return
    output = request.output_token_ids
    if len(output) == 0:
        # nobody else generates the same: a start of its own, then counting on
        first = number * 104_729 % MAX_TOKEN_ID
        output = (first + np.arange(request.max_tokens)) % MAX_TOKEN_ID
    elif len(output) < request.max_tokens:
        raise ValueError(
            f"output_token_ids must be none or all {request.max_tokens}, got {len(output)} "
            f"of request {request.request_id!r}"
        )
    request.pool = pool.add_request(
        request.request_id, request.token_ids, output_token_ids=output, extra=request.extra,
        skip_reading_prefix_cache=request.skip_reading_prefix_cache,
    )  # fmt: skip
