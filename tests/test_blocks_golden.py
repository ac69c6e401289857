"""The pool against recorded answers of vLLM 0.33: every id, every order. See golden/README.md."""

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from apclab.blocks import (
    BlockPool,
    BlockRemoved,
    BlockStored,
    CachedBlocks,
    Event,
    ExtraKeys,
    FreeQueue,
    Hit,
    HitRate,
    Key,
    Lifetimes,
)

GOLDEN = Path(__file__).parent / "golden"

Program = dict[str, Any]


def read_programs() -> list[Program]:
    facts: list[Program] = json.loads((GOLDEN / "pool_facts.json").read_text())
    with gzip.open(GOLDEN / "pool_random.jsonl.gz", "rt") as lines:
        return facts + [json.loads(line) for line in lines]


PROGRAMS = read_programs()
UNITS: dict[str, list[Program]] = json.loads((GOLDEN / "units.json").read_text())


def tokens(segments: list[list[int]], start: int = 0) -> NDArray[np.int64]:
    parts, length = [], 0
    for group, count, *first in segments:
        at = first[0] if first else start + length
        parts.append((7919 * group + 104729 * np.arange(at, at + count) + 1) % 31991)
        length += count
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def digest(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def asked(op: dict[str, Any]) -> dict[str, Any]:
    """What an operation asks for, as arguments of add_request."""
    return {
        "token_ids": tokens(op["prompt"]),
        "extra": ExtraKeys(
            cache_salt=op.get("salt") or "",
            lora=op.get("lora"),
            mm=[tuple(image) for image in op.get("mm") or ()],  # type: ignore[arg-type]
        ),
        "skip_reading_prefix_cache": op.get("skip_read", False),
    }


class Replay:
    """A pool, and the names that a program gives to its keys."""

    def __init__(self, program: Program, **options: Any) -> None:
        self.lifetimes = Lifetimes() if program.get("residency") else None
        self.pool = BlockPool(
            program["num_blocks"],
            block_size=program["block_size"],
            enable_prefix_caching=program["caching"],
            watermark=program.get("watermark", 0.0),
            record_events=program.get("events", False),
            lifetimes=self.lifetimes,
            **options,
        )
        self.keys: dict[Key, int] = {}

    def run(self, op: dict[str, Any]) -> dict[str, Any]:
        pool, name = self.pool, op.get("id", "")
        pool.now = op.get("t", 0.0)
        match op["op"]:
            case "admit":
                pool.add_request(name, **asked(op))
                return self.admit(op)
            case "resume":
                return self.admit(op)
            case "append":
                # tokens of a refused append stay known: the next one asks for them again
                pool.add_tokens(name, tokens(op["toks"], pool.request(name).num_tokens))
                request = pool.request(name)
                missing = request.num_tokens - request.num_computed_tokens
                return {"new": pool.compute(name, missing)}
            case "compute":
                return {"new": pool.compute(name, op["n"])}
            case "lookup":
                arguments = asked(op)
                pool.add_request("", **arguments)
                hit = pool.lookup("")
                pool.free("")
                if not arguments.pop("skip_reading_prefix_cache"):
                    assert pool.get_computed_blocks(**arguments) == hit
                return found(hit)
            case "free":
                pool.free(name)
                return {}
            case "preempt":
                pool.preempt(name)
                return {}
            case "reset":
                return {"ok": pool.reset()}
            case "evict":
                pool.evict(op["ids"])
                return {}
        raise AssertionError(op["op"])

    def admit(self, op: dict[str, Any]) -> dict[str, Any]:
        pool, name = self.pool, op["id"]
        before = pool.lookup(name)
        must_fit = op.get("must_fit", False)
        hit = pool.admit(name, op.get("n"), full_sequence_must_fit=must_fit)
        assert hit in (before, None)
        new = None if hit is None else pool.block_ids(name)[len(hit.block_ids) :]
        return {**found(before), "new": new}

    def state(self) -> dict[str, Any]:
        return {
            "free": self.pool.free_queue(),
            "ref": [[b, n] for b, n in enumerate(self.pool.ref_cnts()) if n],
            "cached": self.pool.cached_blocks(),
            "tables": [
                [name, self.pool.block_ids(name)]
                for name in sorted(map(str, self.pool.live_requests()))
            ],
        }

    def counts(self) -> dict[str, Any]:
        return {
            "stats": list(self.pool.stats.counters()),
            "evicted": self.pool.num_evicted,
            "keys": self.pool.num_keys,
        }

    def number(self, key: Key | None) -> int | None:
        """Keys by first appearance in the program."""
        return None if key is None else self.keys.setdefault(key, len(self.keys))

    def event(self, event: Event) -> list[Any]:
        match event:
            case BlockStored(keys, parent):
                numbers = [self.number(key) for key in keys]
                assert len(event.token_ids or ()) == event.num_tokens
                return ["stored", numbers, self.number(parent), event.num_tokens]
            case BlockRemoved(key):
                return ["removed", [self.number(key)]]
        return ["cleared"]

    def observed(self) -> dict[str, Any]:
        """Events and residencies since the last operation."""
        seen: dict[str, Any] = {}
        if self.lifetimes is not None:
            # recorded to the microsecond
            seen["evictions"] = [
                [round(life, 6), round(idle, 6), [round(gap, 6) for gap in gaps]]
                for life, idle, gaps in self.lifetimes.residencies
            ]
            self.lifetimes.residencies.clear()
        if self.pool.records_events:
            seen["events"] = [self.event(event) for event in self.pool.take_events()]
        return seen


def found(hit: Hit) -> dict[str, Any]:
    return {"hit": hit.num_tokens, "hit_ids": hit.block_ids}


def replay(program: Program, **options: Any) -> None:
    run = Replay(program, **options)
    for number, op in enumerate(program["ops"]):
        where = f"op {number}: {op['op']}"
        for key, value in (run.run(op) | run.observed()).items():
            assert value == op[key], f"{where}: {key}"
        state = run.state()
        if "state" in op:
            assert state | run.counts() == op["state"], where
        assert run.pool.num_free == op["nf"], where
        assert [digest(value) for value in state.values()] == op["d"], where
        # the states are compared anyhow; a check of 2000 blocks takes its time
        if "state" in op or number % 16 == 0:
            run.pool.check()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p["name"])
def test_pool_answers_as_vllm(program: Program) -> None:
    replay(program)


# digests must answer as exact keys do; the programs that use every part of a key
@pytest.mark.slow
@pytest.mark.parametrize("keys", ["sha256", "xxh3"])
@pytest.mark.parametrize(
    "program",
    [p for p in PROGRAMS if {"lora", "mm", "salt", "events"} & set(p["features"])],
    ids=lambda p: p["name"],
)
def test_digests_answer_as_vllm(program: Program, keys: str) -> None:
    if keys == "xxh3":
        pytest.importorskip("xxhash")
    replay(program, keys=keys)


def test_all_programs_are_replayed() -> None:
    """A program more or less, or a feature that none needs any more, must be noticed."""
    assert (len(PROGRAMS), sum(len(p["ops"]) for p in PROGRAMS)) == (90, 13_744)
    assert Counter(feature for p in PROGRAMS for feature in p["features"]) == {
        **{"lookup": 70, "resume": 52, "preempt": 49, "reset": 47, "chunk": 28, "skip_read": 11},
        **{"must_fit": 11, "salt": 8, "lora": 7, "mm": 7, "events": 7, "watermark": 7},
        **{"no_cache": 4, "evict": 4, "residency": 4},
    }
    assert {name: len(entries) for name, entries in UNITS.items()} == {
        **{"queue": 5, "map": 2, "identity": 5, "rate": 2},
    }


@pytest.mark.parametrize("entry", UNITS["queue"], ids=lambda e: e["name"])
def test_free_queue(entry: Program) -> None:
    queue = FreeQueue(entry["num_blocks"])
    for op in entry["ops"]:
        error = op.get("error", False)
        before = queue.ids()
        try:
            match op["op"]:
                case "popleft":
                    assert queue.popleft_n(1) == [op.get("out")]
                case "popleft_n":
                    assert queue.popleft_n(op["n"]) == op.get("out")
                case "append" | "append_n":
                    queue.append_n(op["ids"])
                case "prepend_n":
                    queue.prepend_n(op["ids"])
                case "remove":
                    queue.remove_n(op["ids"])
                case other:
                    raise AssertionError(other)
        except ValueError:
            assert error, op
            assert queue.ids() == before
        else:
            assert not error, op
        assert queue.ids() == op["order"]
        assert queue.count == len(op["order"])


@pytest.mark.parametrize("entry", UNITS["map"], ids=lambda e: e["name"])
def test_cached_blocks(entry: Program) -> None:
    cached = CachedBlocks()
    for op in entry["ops"]:
        match op["op"]:
            case "insert":
                cached.insert(op["key"], op["id"])
            case "get":
                assert next(iter(cached.blocks(op["key"])), None) == op["out"]
            case "pop":
                assert cached.pop(op["key"], op["id"]) == op["out"]
            case other:
                raise AssertionError(other)
        assert len(cached) == op["keys"]


@pytest.mark.parametrize("entry", UNITS["identity"], ids=lambda e: e["name"])
def test_identity_of_blocks(entry: Program) -> None:
    pool = BlockPool(2, block_size=entry["block_size"])
    numbers: dict[Key, int] = {}
    for i, request in enumerate(entry["requests"]):
        known = pool.add_request(i, **asked(request))
        if "append" in request:
            pool.add_tokens(i, tokens(request["append"], known.num_tokens))
        got = [numbers.setdefault(key, len(numbers)) for key in known.keys]
        assert got == request["keys"], request


@pytest.mark.parametrize("entry", UNITS["rate"], ids=lambda e: e["name"])
def test_hit_rate_window(entry: Program) -> None:
    rate = HitRate(entry["window"])
    for observation, after in zip(entry["observations"], entry["after"], strict=True):
        requests, queries, hits, *reset = observation
        if reset:
            rate.reset()
        rate.observe(requests, queries, hits)
        assert [rate.requests, rate.queries, rate.hits, rate.rate] == after
