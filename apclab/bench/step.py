"""One decode step of a workload: a real pool makes its block tables. Nothing is measured here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apclab.arguments import whole_number
from apclab.blocks import BlockPool, BlockTable
from apclab.workload import Workload


@dataclass(frozen=True, eq=False)
class Step:
    """The block tables of one decode step, shared as the pool made them and de-shared.

    Attributes:
        workload: what was asked; None for tables of others.
        block_size: tokens per block.
        step: "first", "mid" or "last"; None for tables of others.
        shared: tables with the prefix's blocks physically shared.
        private: the same step, each table entry its own block.
        realised_hit: prompt tokens found in the pool / prompt tokens asked; None without workload.
        readers_mean: table entries / distinct blocks of `shared`.
        hit_blocks: full prompt blocks found in the pool, mean of the requests.
        prompt_blocks: full blocks of a prompt.
    """

    workload: Workload | None
    block_size: int
    step: str | None
    shared: BlockTable
    private: BlockTable
    realised_hit: float | None
    readers_mean: float
    hit_blocks: float = 0.0
    prompt_blocks: int = 0

    @property
    def seq_len(self) -> float:
        """Tokens that a request attends to, mean of the requests."""
        return float(self.shared.seq_lens.mean())


def blocks_of(requests: int, seq_len: int, block_size: int) -> int:
    """Blocks of so many requests that share nothing.

    Raises:
        TypeError, ValueError: block_size is no int of at least 1.
    """
    whole_number("block_size", block_size, 1)
    return requests * -(-seq_len // block_size)


def decode_step(workload: Workload, *, block_size: int = 16, step: str = "mid") -> Step:
    """Run a workload's prompts and its first generated tokens through a pool.

    Args:
        workload: the requests.
        block_size: tokens per block.
        step: "first", "mid" or "last" decode step.

    Raises:
        ValueError: block_size or step is out of range.
    """
    seq_len = workload.seq_len(step)
    answers = [answer[: seq_len - workload.input_len] for answer in workload.generated()]
    shared, hit_tokens = allocate(workload.primers(), workload.prompts(), answers, block_size)
    return Step(
        workload=workload,
        block_size=block_size,
        step=step,
        shared=shared,
        private=shared.private(),
        realised_hit=hit_tokens / (workload.batch * workload.input_len),
        readers_mean=shared.sharing().readers_mean,
        hit_blocks=hit_tokens / block_size / workload.batch,
        prompt_blocks=workload.input_len // block_size,
    )


def allocate(
    primers: Sequence[Any], prompts: Sequence[Any], answers: Sequence[Any], block_size: int
) -> tuple[BlockTable, int]:
    """Put requests into a pool that is large enough, after primers that leave their prefixes in it.

    Args:
        primers: int32 [tokens] each.
        prompts: int32 [tokens], one a request.
        answers: the tokens that each request has generated.
        block_size: tokens per block.

    Returns:
        The block table of all requests, and how many prompt tokens were found in the pool.
    """
    longest = max(
        len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)
    )
    # room for all requests and primers side by side: nothing is evicted, whatever is shared
    room = blocks_of(len(primers) + len(prompts), longest, block_size)
    pool = BlockPool(room + 1, block_size=block_size)
    for group, prefix in enumerate(primers):
        pool.allocate_slots(("primer", group), prefix)
        pool.free(("primer", group))
    hit_tokens = 0
    for request, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        hit = pool.allocate_slots(request, prompt)
        assert hit is not None, "the pool was sized for everything"
        hit_tokens += hit.num_tokens
        pool.append_tokens(request, answer)
    return pool.block_table(), hit_tokens


def tables_step(tables: BlockTable) -> Step:
    """The step of somebody's real block tables; `private` is the same step de-shared."""
    return Step(
        workload=None,
        block_size=tables.block_size,
        step=None,
        shared=tables,
        private=tables.private(),
        realised_hit=None,
        readers_mean=tables.sharing().readers_mean,
    )
