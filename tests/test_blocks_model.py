"""The pool against a naive model: random operations, one by one, must give equal states.

The model is written from the rules, not from the pool: plain lists, no keys. A cached block is
labelled with the salt and the whole prefix that it ends, references are recounted from the tables.
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

from apclab.blocks import BlockPool, ExtraKeys

Tokens = list[int]


class Model:
    """What vLLM 0.33 does with blocks, in the plainest words."""

    def __init__(
        self, num_blocks: int, block_size: int, caching: bool, to_front: bool, reserve: int
    ) -> None:
        self.size = block_size
        self.caching = caching
        self.to_front = to_front
        self.reserve = reserve
        self.force_miss = False
        self.free = list(range(1, num_blocks))
        self.labels: list[tuple[int, tuple[str, Tokens]]] = []  # oldest label first
        self.tables: dict[str, list[int]] = {}  # of live requests, as they were admitted
        self.done: dict[str, int] = {}  # tokens with a slot, of live requests
        self.tokens: dict[str, Tokens] = {}  # of all known requests
        self.salts: dict[str, str] = {}
        self.blind: set[str] = set()  # requests that do not read the cache
        self.preempted: set[str] = set()
        self.counts = [0] * 6
        self.evicted = 0

    def refs(self, block: int) -> int:
        return sum(table.count(block) for table in self.tables.values())

    def lookup(self, prompt: Tokens, salt: str, blind: bool = False) -> list[int]:
        blocks: list[int] = []
        for end in range(self.size, len(prompt), self.size):
            known = [block for block, label in self.labels if label == (salt, prompt[:end])]
            if not known or blind or self.force_miss:
                break
            blocks.append(known[0])
        return blocks

    def find(self, name: str) -> list[int]:
        return self.lookup(self.tokens[name], self.salts[name], name in self.blind)

    def admit(self, name: str, most: int | None, must_fit: bool) -> list[int] | None:
        hit = self.find(name)
        known = len(self.tokens[name])
        start = len(hit) * self.size
        end = known if most is None else min(known, start + most)
        room = len([block for block in self.free if block not in hit])
        room -= self.reserve if self.tables else 0
        for total in (known, end) if must_fit else (end,):
            if self.blocks_of(total) - len(hit) > room:
                return None
        self.free = [block for block in self.free if block not in hit]
        self.tables[name], self.done[name] = hit[:], start
        self.grow(name, end)
        if self.caching and name not in self.blind:
            for i, count in enumerate((1, known, start)):
                self.counts[i + 3 * (name in self.preempted)] += count
        return hit

    def compute(self, name: str, count: int) -> list[int] | None:
        end = self.done[name] + count
        if self.blocks_of(end) - len(self.tables[name]) > len(self.free):
            return None
        return self.grow(name, end)

    def grow(self, name: str, end: int) -> list[int]:
        full_before = self.done[name] // self.size
        self.done[name] = end
        new = []
        while len(self.tables[name]) < self.blocks_of(end):
            block = self.free.pop(0)
            self.evict(block)
            self.tables[name].append(block)
            new.append(block)
        for i in range(full_before, end // self.size):
            if self.caching:
                label = (self.salts[name], self.tokens[name][: (i + 1) * self.size])
                self.labels.append((self.tables[name][i], label))
        return new

    def blocks_of(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def leave(self, name: str) -> None:
        table = self.tables.pop(name)
        del self.done[name]
        gone = [block for block in table[::-1] if self.refs(block) == 0]
        first = [block for block in gone if block not in self.cached()] if self.to_front else []
        self.free = first + self.free + [block for block in gone if block not in first]

    def end(self, name: str) -> None:
        if name in self.tables:
            self.leave(name)
        del self.tokens[name]
        del self.salts[name]
        self.blind.discard(name)

    def preempt(self, name: str) -> None:
        self.leave(name)
        self.preempted.add(name)

    def evict(self, block: int) -> None:
        self.evicted += len([label for label in self.labels if label[0] == block])
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
salts = st.sampled_from(["", "", "", "x"])
chunks = st.one_of(st.none(), st.none(), st.integers(1, 9))


class PoolMachine(RuleBasedStateMachine):
    """Runs the pool and the model side by side."""

    kind: Any = "exact"

    @initialize(
        num_blocks=st.integers(2, 16),
        block_size=st.integers(1, 4),
        caching=st.sampled_from([True, True, True, False]),
        reuse=st.sampled_from(["front", "front", "tail"]),
        watermark=st.sampled_from([0.0, 0.0, 0.2]),
    )
    def start(
        self, num_blocks: int, block_size: int, caching: bool, reuse: Any, watermark: float
    ) -> None:
        self.pool = BlockPool(
            num_blocks,
            block_size=block_size,
            enable_prefix_caching=caching,
            keys=self.kind,
            reuse=reuse,
            watermark=watermark,
        )
        reserve = int(watermark * num_blocks)
        self.model = Model(num_blocks, block_size, caching, reuse == "front", reserve)
        self.named = 0

    def pick(self, data: st.DataObject, names: Any) -> str:
        name: str = data.draw(st.sampled_from(sorted(names)))
        return name

    def waiting(self) -> set[str]:
        return self.model.tokens.keys() - self.model.tables.keys()

    def add(self, prompt: Tokens, salt: str, blind: bool) -> str:
        name = f"r{self.named}"
        self.named += 1
        self.model.tokens[name], self.model.salts[name] = prompt, salt
        if blind:
            self.model.blind.add(name)
        extra = ExtraKeys(cache_salt=salt) if salt else None
        self.pool.add_request(name, prompt, extra=extra, skip_reading_prefix_cache=blind)
        return name

    def admit(self, name: str, most: int | None = None, must_fit: bool = False) -> None:
        assert self.pool.lookup(name).block_ids == self.model.find(name)
        expected = self.model.admit(name, most, must_fit)
        hit = self.pool.admit(name, most, full_sequence_must_fit=must_fit)
        assert (hit and hit.block_ids) == expected
        if hit is not None:
            assert hit.num_tokens == len(hit.block_ids) * self.model.size
            assert hit.num_tokens < len(self.model.tokens[name])

    @rule(prompt=prompts, salt=salts, blind=st.sampled_from([False] * 5 + [True]))
    def add_new(self, prompt: Tokens, salt: str, blind: bool) -> None:
        self.add(prompt, salt, blind)

    @rule(prompt=prompts, most=chunks)
    def admit_new(self, prompt: Tokens, most: int | None) -> None:
        self.admit(self.add(prompt, "", False), most)

    @rule(prompt=prompts)
    def allocate_in_one_act(self, prompt: Tokens) -> None:
        name = f"r{self.named}"
        self.named += 1
        self.model.tokens[name], self.model.salts[name] = prompt, ""
        expected = self.model.admit(name, None, False)
        hit = self.pool.allocate_slots(name, prompt)
        assert (hit and hit.block_ids) == expected
        if hit is None:
            self.model.end(name)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), most=chunks, must_fit=st.booleans())
    def admit_waiting(self, data: st.DataObject, most: int | None, must_fit: bool) -> None:
        self.admit(self.pick(data, self.waiting()), most, must_fit)

    @precondition(lambda self: self.model.tokens)
    @rule(data=st.data(), more=runs)
    def admit_follow_up(self, data: st.DataObject, more: Tokens) -> None:
        """Another request asks with what a known one has so far."""
        other = self.pick(data, self.model.tokens)
        self.admit(self.add(self.model.tokens[other] + more, self.model.salts[other], False))

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), count=st.integers(1, 6))
    def compute(self, data: st.DataObject, count: int) -> None:
        name = self.pick(data, self.model.tables)
        missing = len(self.model.tokens[name]) - self.model.done[name]
        if missing:
            count = min(count, missing)
            assert self.pool.compute(name, count) == self.model.compute(name, count)

    @precondition(lambda self: self.model.tokens)
    @rule(data=st.data(), more=runs)
    def add_tokens(self, data: st.DataObject, more: Tokens) -> None:
        name = self.pick(data, self.model.tokens)
        self.pool.add_tokens(name, more)
        self.model.tokens[name] = self.model.tokens[name] + more

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), more=runs)
    def append(self, data: st.DataObject, more: Tokens) -> None:
        name = self.pick(data, self.model.tables)
        before = self.model.tokens[name]
        self.model.tokens[name] = before + more
        expected = self.model.compute(name, len(before + more) - self.model.done[name])
        if expected is None:
            self.model.tokens[name] = before
        assert self.pool.append_tokens(name, more) == expected

    @precondition(lambda self: self.model.tokens)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name = self.pick(data, self.model.tokens)
        self.pool.free(name)
        self.model.end(name)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), resume=st.booleans())
    def preempt(self, data: st.DataObject, resume: bool) -> None:
        name = self.pick(data, self.model.tables)
        self.pool.preempt(name)
        self.model.preempt(name)
        if resume:
            self.admit(name)

    @rule(prompt=prompts, salt=salts)
    def lookup(self, prompt: Tokens, salt: str) -> None:
        hit = self.pool.get_computed_blocks(prompt, extra=ExtraKeys(cache_salt=salt))
        assert hit.block_ids == self.model.lookup(prompt, salt)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(1, self.pool.num_blocks - 1))
        self.pool.evict([block])
        self.model.evict(block)

    @rule(switch=st.booleans())
    def force_miss(self, switch: bool) -> None:
        self.pool.force_miss = self.model.force_miss = switch

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
        distinct = {(salt, *prefix) for _, (salt, prefix) in model.labels}
        assert (pool.num_keys, pool.num_evicted) == (len(distinct), model.evicted)
        assert list(pool.stats.counters()) == model.counts
        assert pool.ref_cnts() == [model.refs(b) for b in range(pool.num_blocks)]
        assert pool.live_requests() == list(model.tables)
        for name, tokens in model.tokens.items():
            assert pool.block_ids(name) == model.tables.get(name, [])
            assert pool.num_tokens(name) == model.done.get(name, 0)
            assert pool.request(name).num_tokens == len(tokens)
            assert pool.explain_hit(name)
        held = {block for table in model.tables.values() for block in table}
        usable = pool.num_blocks - 1
        assert pool.usage == pytest.approx(len(held) / usable)
        ends = {t[-1]: model.size - (-model.done[r] % model.size) for r, t in model.tables.items()}
        filled = sum(ends.get(block, model.size) for block in held)
        assert pool.slot_usage == pytest.approx(filled / (usable * model.size))
        if model.tables:
            exported = pool.block_table()
            assert exported.seq_lens.tolist() == list(model.done.values())
            flat = [block for table in model.tables.values() for block in table]
            assert exported.csr().kv_indices.tolist() == flat
            assert exported.sharing().distinct_blocks == len(held)


def run(machine: Any, examples: int) -> None:
    limits = settings(max_examples=examples, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(machine, settings=limits)


class Sha256Machine(PoolMachine):
    kind = "sha256"


class Xxh3Machine(PoolMachine):
    kind = "xxh3"


def test_pool_equals_model() -> None:
    run(PoolMachine, 50)


def test_pool_with_digests_equals_model() -> None:
    run(Sha256Machine, 10)


@pytest.mark.slow
def test_pool_equals_model_for_long() -> None:
    run(PoolMachine, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Sha256Machine, Xxh3Machine])
def test_pool_with_digests_equals_model_for_long(machine: type[PoolMachine]) -> None:
    pytest.importorskip("xxhash")
    run(machine, 500)
