"""What one pass over a trace knows besides the line it is at. Parses nothing."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any


@dataclass(eq=False)
class Reading:
    """What one pass over a trace has learned from the lines so far.

    Attributes:
        block_size: tokens of a block.
        notes: what the reader should know of how it was read, and how often.
        first: what the first line said that the others are held to: a time, a header, a kind.
        last_s: arrival of the newest request of each session.
        talks: the newest prompt of each session, where a format tells what a turn keeps of it.
    """

    block_size: int
    notes: Counter[str] = field(default_factory=Counter)
    first: Any = None
    last_s: dict[str, float] = field(default_factory=dict)
    talks: dict[str, "Talk"] = field(default_factory=dict)
    fresh: Iterator[int] = field(default_factory=count)

    def talk(self, session: str) -> "Talk":
        """The conversation of that name, begun if it is new."""
        return self.talks.setdefault(session, Talk(self.block_size, self.fresh))


@dataclass(eq=False)
class Talk:
    """A conversation that is told in lengths: what a turn keeps of the prompt before it."""

    block_size: int
    fresh: Iterator[int]  # ids that nobody else has
    ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    number: int = -1  # of the turn, where a format counts them

    def prompt(self, num_tokens: int, kept: int) -> tuple[int, ...]:
        """Ids of the next prompt, whose first `kept` tokens are those of the last one."""
        del self.ids[min(kept, self.num_tokens) // self.block_size :]
        self.ids += islice(self.fresh, -(-num_tokens // self.block_size) - len(self.ids))
        self.num_tokens = num_tokens
        return tuple(self.ids)
