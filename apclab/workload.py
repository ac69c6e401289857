"""What is asked of a decode step: requests as token ids. Not a pool, not a clock, not a model.

A request's token at a position is (start of the position's owner + offset of the position) modulo
the vocabulary, with one random start for each owner. The owner is the request's group inside the
shared prefix and the request itself behind it, so two requests have equal tokens exactly where
they are meant to share: nothing matches by accident, at any block size.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apclab.arguments import INT32_MOST, fraction, one_of, truth, whole_number

Int32 = NDArray[np.int32]

VOCABULARY = 32_000  # token ids are below this; also the most requests that can all differ
STEPS = ("first", "mid", "last")


@dataclass(frozen=True)
class Workload:
    """One batch of equally long requests that share prefixes as asked.

    Args:
        batch: requests that decode together, at most 32,000.
        input_len: prompt tokens of a request; with output_len at most 2**31 - 1.
        output_len: generated tokens of a request.
        cache_hit: fraction of each prompt, 0 to 1, that is a prefix already known to its group.
            What a pool makes of it (full blocks, last token recomputed) is the realised hit.
        prefix_groups: number of different prefixes; request i belongs to group i % prefix_groups.
            One group shares everything; as many groups as requests share nothing.
        primed: the prefixes were computed by earlier requests, so that every request hits.
        seed: of the token ids.

    Raises:
        TypeError: a count is no int, cache_hit no number, primed no bool.
        ValueError: a value is out of range.
    """

    batch: int = 100
    input_len: int = 300
    output_len: int = 20
    cache_hit: float = 1.0
    prefix_groups: int = 1
    primed: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field; NumPy's scalars become Python's, which JSON can hold."""
        ranges = {
            "batch": (1, VOCABULARY), "input_len": (1, INT32_MOST), "output_len": (1, INT32_MOST),
            "prefix_groups": (1, None), "seed": (0, None),
        }  # fmt: skip
        for name, (least, most) in ranges.items():
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least, most))
        object.__setattr__(self, "cache_hit", fraction("cache_hit", self.cache_hit))
        object.__setattr__(self, "primed", truth("primed", self.primed))
        if self.prefix_groups > self.batch:
            raise ValueError(
                f"prefix_groups must be at most batch ({self.batch}), got {self.prefix_groups}"
            )
        if self.input_len + self.output_len > INT32_MOST:
            raise ValueError(
                f"input_len + output_len must be at most {INT32_MOST}, "
                f"got {self.input_len} + {self.output_len}"
            )

    @property
    def prefix_len(self) -> int:
        """Tokens of each prompt that its group knows: round(cache_hit * input_len)."""
        return round(self.cache_hit * self.input_len)

    def primers(self) -> list[Int32]:
        """Prompts to run and end before the batch: one group prefix each, int32 [prefix_len].

        Empty when the workload is not primed or when nothing is shared.
        """
        if not self.primed or self.prefix_len == 0:
            return []
        return self._tokens(np.arange(self.prefix_groups), 0, self.prefix_len)

    def prompts(self) -> list[Int32]:
        """One prompt a request, int32 [input_len]: the group's prefix, then the request's own."""
        return self._tokens(np.arange(self.batch), 0, self.input_len)

    def generated(self) -> list[Int32]:
        """The tokens that each request generates, int32 [output_len], all its own."""
        return self._tokens(np.arange(self.batch), self.input_len, self.output_len)

    def seq_len(self, step: str = "mid") -> int:
        """Tokens that a request attends to in the "first", "mid" or "last" decode step.

        Raises:
            TypeError, ValueError: another step.
        """
        match one_of("step", step, STEPS):
            case "first":
                return self.input_len + 1
            case "mid":
                return self.input_len + max(1, self.output_len // 2)
        return self.input_len + self.output_len

    def _tokens(self, requests: NDArray[np.int64], first: int, count: int) -> list[Int32]:
        """Tokens of the requests at positions first to first + count - 1, int32 [count] each."""
        rng = np.random.default_rng(self.seed)
        starts = rng.permutation(VOCABULARY)[: self.batch]
        offsets = rng.integers(VOCABULARY, size=self.input_len + self.output_len)

        positions = np.arange(first, first + count)
        in_prefix = positions < self.prefix_len
        offsets = offsets[positions]
        # [requests, 2]: where the tokens of the group and of the request start; a group is named by
        # its first request
        owners = starts[np.stack([requests % self.prefix_groups, requests], axis=1)]
        # one request after another, so that nothing larger than the result is held
        return [
            ((np.where(in_prefix, group, own) + offsets) % VOCABULARY).astype(np.int32)
            for group, own in owners
        ]


# vLLM issue 4860: 100 requests, 300 tokens in, 20 out. The issue does not state how much of the
# prompts was shared; identical prompts are our reading, and the most that could be.
ISSUE_4860 = Workload()

# each request hits its own earlier turns: a high hit, and not one block with two readers
OWN_HISTORY = Workload(cache_hit=0.9, prefix_groups=100)

# the last two are made-up but everyday sizes: a 512-token system prompt, and eight of them
PRESETS: dict[str, Workload] = {
    "issue 4860": ISSUE_4860,
    "own history": OWN_HISTORY,
    "no sharing": Workload(cache_hit=0.0),
    "one system prompt": Workload(batch=48, input_len=640, output_len=40, cache_hit=0.8),
    "eight tenants": Workload(
        batch=64, input_len=640, output_len=40, cache_hit=0.8, prefix_groups=8
    ),
}
