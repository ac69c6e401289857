"""The scheduler, step by step, against recorded behaviour of the real vLLM 0.33."""

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from apclab.blocks import BlockPool, ExtraKeys
from apclab.engine import EngineConfig, Request, SchedulerV1

GOLDEN = Path(__file__).parent / "golden"
FILES = ("sched_facts.json", "sched_seed.jsonl.gz", "sched_random.jsonl.gz")
Program = dict[str, Any]


def programs() -> list[Program]:
    found: list[Program] = []
    for name in FILES:
        path = GOLDEN / name
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as file:
                found += [json.loads(line) for line in file]
        else:
            found += json.loads(path.read_text(encoding="utf-8"))
    return found


PROGRAMS = programs()


def digest(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def tokens_of(segments: list[list[int]], start: int = 0) -> list[int]:
    """The recordings' rule: token(group, position) = (7919 g + 104729 p + 1) mod 31991."""
    tokens: list[int] = []
    for group, count, *at in segments:
        first = at[0] if at else start + len(tokens)
        tokens += [(7919 * group + 104729 * p + 1) % 31991 for p in range(first, first + count)]
    return tokens


def request_of(index: int, asked: dict[str, Any]) -> Request:
    prompt = tokens_of(asked["prompt"])
    group, count = asked["out"]
    salt = asked.get("salt")
    return Request(
        index, float(asked["arrival"]), count, prompt,
        tokens_of([[group, count]], len(prompt)),
        priority=asked.get("priority", 0),
        arrival_order=asked.get("arrival_time", asked["arrival"]),
        extra=ExtraKeys(cache_salt=salt) if salt else None,
        skip_reading_prefix_cache=bool(asked.get("skip_read")),
    )  # fmt: skip


def replay(program: Program) -> None:
    """Run a recorded workload and hold every field of every step against the record."""
    given = dict(program["config"])
    pool = BlockPool(
        given.pop("num_blocks"), block_size=given.pop("block_size"),
        enable_prefix_caching=given.pop("enable_prefix_caching"), watermark=given.pop("watermark"),
    )  # fmt: skip
    config = EngineConfig(queue=given.pop("policy"), **given)
    scheduler = SchedulerV1(config, pool)
    requests = [request_of(i, asked) for i, asked in enumerate(program["requests"])]
    first_token: dict[Any, int] = {}
    last_step: dict[Any, int] = {}
    for k, step in enumerate(program["steps"]):
        for (_, act, value), (result, ids) in zip(
            [c for c in program.get("control", []) if c[0] == k], step.get("ctl", []), strict=True
        ):
            if act == "reset":
                done, preempted = scheduler.reset(preempt_running=bool(value))
                assert (done, [r.request_id for r in preempted]) == (result, ids)
            else:
                target = requests[value]
                there = target in scheduler.running or target in scheduler.waiting
                assert there == result
                if there:
                    scheduler.abort(target)
                    last_step[value] = k
        for request, asked in zip(requests, program["requests"], strict=True):
            if asked["arrival"] == k:
                scheduler.add(request)
        plan = scheduler.schedule()
        running = scheduler.running
        entries = [block for r, _ in plan.scheduled for block in r.pool.block_ids]
        assert [[r.request_id, n] for r, n in plan.scheduled] == step["s"], k
        assert [
            [r.request_id, r.pool.num_cached_tokens, int(r.num_preemptions > 0)]
            for r in plan.admitted
        ] == step["a"], k
        assert [r.request_id for r in plan.preempted] == step["p"], k
        assert [[r.request_id, r.pool.num_computed_tokens] for r in running] == step["r"], k
        assert (pool.num_free, len(entries), len(set(entries))) == (
            step["fs"], step["e"], step["u"],
        ), k  # fmt: skip
        tables = digest(sorted([r.request_id, r.pool.block_ids] for r in running))
        for request, _ in plan.scheduled:
            if request.first_step < 0:
                request.first_step = k
            last_step[request.request_id] = k
        finished = scheduler.update(plan, k)
        for request in requests:
            if request.num_output_tokens == 1:
                first_token.setdefault(request.request_id, k)
        assert [r.request_id for r in finished] == step["f"], k
        assert (pool.num_free, len(scheduler.running), len(scheduler.waiting)) == (
            step["nf"], step["nr"], step["nw"],
        ), k  # fmt: skip
        assert [tables, digest(pool.free_queue()), digest(pool.cached_blocks())] == step["d"], k
        pool.check()
    final = program["final"]
    assert len(program["steps"]) == final["steps"]
    free = pool.free_queue()
    assert (digest(free) if isinstance(final["free"], str) else free) == final["free"]
    stats = pool.stats
    assert [
        stats.requests, stats.queries, stats.hits, stats.preempted_requests,
        stats.preempted_queries, stats.preempted_hits,
    ] == final["stats"]  # fmt: skip
    for request, expected in zip(requests, final["requests"], strict=True):
        name = request.request_id
        found = [
            request.first_step, first_token.get(name, -1), last_step.get(name, -1),
            request.num_preemptions, request.first_hit_tokens, request.num_output_tokens,
            request.finish,
        ]  # fmt: skip
        assert found == expected or -1 in found, request.request_id


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["name"])
def test_recorded_workload(program: Program) -> None:
    replay(program)


def test_none_is_left_out() -> None:
    """The recordings: 35 named, 29 around issue 4860, 50 random workloads."""
    assert len(PROGRAMS) == 35 + 29 + 50
    assert sum(len(program["steps"]) for program in PROGRAMS[64:]) == 8951
    tags = Counter(tag for program in PROGRAMS for tag in program["features"])
    assert tags["preemption"] > 30
