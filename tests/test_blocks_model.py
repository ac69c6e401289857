"""The pool against a naive model: random operations, one by one, must give equal states.

The model is written from the rules, not from the pool: plain lists, no keys. A cached block is
labelled with the whole prefix that it ends, references are recounted from the tables.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from apclab.blocks import BlockPool

Tokens = list[int]


class Model:
    """What vLLM 0.33 does with blocks, in the plainest words."""

    def __init__(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.size = block_size
        self.caching = caching
        self.free = list(range(1, num_blocks))
        self.labels: list[tuple[int, Tokens]] = []  # (block, its prefix), oldest label first
        self.tables: dict[str, list[int]] = {}
        self.tokens: dict[str, Tokens] = {}

    def refs(self, block: int) -> int:
        return sum(table.count(block) for table in self.tables.values())

    def lookup(self, prompt: Tokens) -> list[int]:
        blocks: list[int] = []
        for end in range(self.size, len(prompt), self.size):
            known = [block for block, prefix in self.labels if prefix == prompt[:end]]
            if not known:
                break
            blocks.append(known[0])
        return blocks

    def admit(self, name: str, prompt: Tokens) -> list[int] | None:
        hit = self.lookup(prompt)
        total = (len(prompt) + self.size - 1) // self.size
        if total - len(hit) > len([block for block in self.free if block not in hit]):
            return None
        self.free = [block for block in self.free if block not in hit]
        self.tables[name], self.tokens[name] = hit[:], prompt[: len(hit) * self.size]
        self.grow(name, prompt[len(hit) * self.size :])
        return hit

    def append(self, name: str, more: Tokens) -> list[int] | None:
        total = (len(self.tokens[name]) + len(more) + self.size - 1) // self.size
        if total - len(self.tables[name]) > len(self.free):
            return None
        return self.grow(name, more)

    def grow(self, name: str, more: Tokens) -> list[int]:
        full_before = len(self.tokens[name]) // self.size
        self.tokens[name] = self.tokens[name] + more
        new = []
        while len(self.tables[name]) * self.size < len(self.tokens[name]):
            block = self.free.pop(0)
            self.evict(block)
            self.tables[name].append(block)
            new.append(block)
        for i in range(full_before, len(self.tokens[name]) // self.size):
            if self.caching:
                label = self.tokens[name][: (i + 1) * self.size]
                self.labels.append((self.tables[name][i], label))
        return new

    def end(self, name: str) -> None:
        table = self.tables.pop(name)
        del self.tokens[name]
        gone = [block for block in table[::-1] if self.refs(block) == 0]
        labelled = [block for block in gone if block in self.cached()]
        self.free = [block for block in gone if block not in labelled] + self.free + labelled

    def evict(self, block: int) -> None:
        self.labels = [label for label in self.labels if label[0] != block]

    def reset(self) -> bool:
        if self.tables:
            return False
        self.labels = []
        return True

    def cached(self) -> list[int]:
        return sorted(block for block, _ in self.labels)


# few different tokens and many equal beginnings, so that prefixes meet
runs = st.lists(st.integers(0, 1), max_size=5)
prompts = st.builds(
    lambda group, repeat, tail: [group] * repeat + tail,
    st.integers(0, 1),
    st.integers(1, 14),
    runs,
)


class PoolMachine(RuleBasedStateMachine):
    """Runs the pool and the model side by side."""

    @initialize(
        num_blocks=st.integers(2, 16),
        block_size=st.integers(1, 4),
        caching=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.pool = BlockPool(num_blocks, block_size=block_size, enable_prefix_caching=caching)
        self.model = Model(num_blocks, block_size, caching)
        self.admitted = 0

    def live(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model.tables)))

    def admit(self, prompt: Tokens) -> None:
        name = f"r{self.admitted}"
        self.admitted += 1
        expected = self.model.admit(name, prompt)
        hit = self.pool.allocate_slots(name, prompt)
        assert (hit and hit.block_ids) == expected
        if hit is not None:
            assert hit.num_tokens == len(hit.block_ids) * self.model.size < len(prompt)

    @rule(prompt=prompts)
    def admit_new(self, prompt: Tokens) -> None:
        self.admit(prompt)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), more=runs)
    def admit_follow_up(self, data: st.DataObject, more: Tokens) -> None:
        """Another request asks with what a live one has so far."""
        self.admit(self.model.tokens[self.live(data)] + more)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), more=runs)
    def append(self, data: st.DataObject, more: Tokens) -> None:
        name = self.live(data)
        assert self.pool.append_tokens(name, more) == self.model.append(name, more)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name = self.live(data)
        self.pool.free(name)
        self.model.end(name)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def preempt_and_resume(self, data: st.DataObject, more: Tokens) -> None:
        name = self.live(data)
        tokens = self.model.tokens[name] + more
        self.pool.free(name)
        self.model.end(name)
        self.admit(tokens)

    @rule(prompt=prompts)
    def lookup(self, prompt: Tokens) -> None:
        assert self.pool.get_computed_blocks(prompt).block_ids == self.model.lookup(prompt)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(1, self.pool.num_blocks - 1))
        self.pool.evict([block])
        self.model.evict(block)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == self.model.reset()

    @invariant()
    def same_state(self) -> None:
        pool, model = self.pool, self.model
        pool.check()
        assert pool.free_queue() == model.free
        assert pool.cached_blocks() == model.cached()
        assert pool.num_cached == len(model.labels)
        blocks = range(1, pool.num_blocks)
        assert [pool.ref_cnt(b) for b in blocks] == [model.refs(b) for b in blocks]
        for name, table in model.tables.items():
            assert pool.block_ids(name) == table
            assert pool.num_tokens(name) == len(model.tokens[name])
        assert pool.usage == 1 - pool.num_free / (pool.num_blocks - 1)
        if model.tables:
            exported = pool.block_table()
            assert exported.seq_lens.tolist() == [len(t) for t in model.tokens.values()]
            flat = [block for table in model.tables.values() for block in table]
            assert exported.csr().kv_indices.tolist() == flat
            assert exported.sharing().distinct_blocks == len(set(flat))


def run(examples: int) -> None:
    machine: Any = PoolMachine
    limits = settings(max_examples=examples, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(machine, settings=limits)


def test_pool_equals_model() -> None:
    run(60)


@pytest.mark.slow
def test_pool_equals_model_for_long() -> None:
    run(2000)
