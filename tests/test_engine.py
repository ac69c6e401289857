"""The step loop: issue 4860's steps, invariants over random workloads, users' cases, bad input."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apclab.blocks import BlockPool, BlockPoolV0
from apclab.engine import EngineConfig, Request, Run, SchedulerV1, StepWork, Stuck, run
from apclab.engine.intake import trace_requests, workload_requests
from apclab.traces import TraceRequest
from apclab.workload import Workload

ISSUE = Workload(100, 300, 20, primed=False)


def cost(work: StepWork) -> float:
    """Made up, so that each kind of step has a time of its own."""
    return 0.01 + 1e-4 * work.prefill_tokens + 1e-5 * work.decode_tokens


def simulated(
    requests: list[Request], num_blocks: int = 4001, *, caching: bool = True, **config: Any
) -> Run:
    made = EngineConfig(**config)
    kind = BlockPoolV0 if made.policy == "v0" else BlockPool
    return run(requests, made, kind(num_blocks, enable_prefix_caching=caching), cost)


def tokens_of(found: Run) -> list[int]:
    return [int(n) for n in found.steps["prefill_tokens"] + found.steps["decode_tokens"]]


def test_issue_4860_without_caching() -> None:
    """Facts, fact 43, recorded on vLLM's scheduler: 23 steps, 31,900 tokens, 1900 blocks."""
    found = simulated(workload_requests(ISSUE), caching=False)
    assert tokens_of(found)[:5] == [8192, 8192, 8192, 5586, 100]
    assert (len(tokens_of(found)), sum(tokens_of(found))) == (23, 31_900)
    assert found.steps["distinct_blocks"][3] == found.steps["table_entries"][3] == 1900


def test_issue_4860_with_caching() -> None:
    """The same fact: 20 steps, 1488 tokens in the first, 3,388 in all, 118 blocks, then 218."""
    found = simulated(workload_requests(ISSUE))
    assert tokens_of(found) == [1488] + 19 * [100]
    assert found.steps["distinct_blocks"].tolist()[:6] == 5 * [118] + [218]
    assert found.steps["table_entries"].tolist()[:6] == 5 * [1900] + [2000]


@pytest.mark.parametrize(("budget", "prefills"), [(2048, 17), (4096, 8)])
@pytest.mark.parametrize("caching", [False, True])
def test_issue_4860_as_vllm_ran_it_in_its_weeks(budget: int, prefills: int, caching: bool) -> None:
    """Facts, sections 2.1 and 2.4: whole prompts, prefill first, cached tokens in the budget."""
    found = simulated(
        workload_requests(ISSUE), caching=caching, policy="v0", max_num_batched_tokens=budget
    )
    kinds = found.steps["kind"].tolist()
    assert kinds == prefills * ["prefill"] + 19 * ["decode"]
    per_step = budget // 300
    # blocks are shared inside the first batch, but nobody has computed them yet
    assert found.steps["prefill_tokens"][0] == per_step * 300
    # later ones skip 17 of the 18 full blocks
    assert found.steps["prefill_tokens"][1] == per_step * (300 - (272 if caching else 0))
    # 18 full blocks and the partial one, shared too
    assert found.steps["distinct_blocks"][0] == (19 if caching else per_step * 19)
    # the first token written copies the partial block: 18 shared, 100 private
    assert found.steps["distinct_blocks"][prefills] == (118 if caching else 1900)


def test_v0_marks_the_last_full_block_once_a_sharer_wrote_on() -> None:
    """Facts, section 2.1: 272 tokens are skipped, 288 once somebody has decoded to 304."""
    prompts = [Request(i, arrival, 20, list(range(300)), list(range(5000, 5020)))
               for i, arrival in enumerate((0.0, 0.03, 1000.0))]  # fmt: skip
    found = simulated(prompts, policy="v0", max_num_batched_tokens=2048)
    assert [request.first_hit_tokens for request in found.requests] == [0, 272, 288]


def test_distinct_prompts_share_nothing() -> None:
    found = simulated(workload_requests(Workload(30, 100, 5, cache_hit=0.0)))
    assert (found.steps["distinct_blocks"] == found.steps["table_entries"]).all()
    assert found.summary()["hit_rate"] == 0.0


WORKLOADS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(1, 60), st.integers(1, 25),
        st.floats(0, 0.5, allow_nan=False),
    ),
    min_size=1, max_size=12,
)  # fmt: skip
CONFIGS = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.integers(60, 200),
        "max_num_seqs": st.integers(1, 8),
        "policy": st.sampled_from(["v1", "v0"]),
    }
)


@settings(max_examples=80, deadline=None)
@given(WORKLOADS, CONFIGS, st.booleans(), st.integers(24, 60))
def test_invariants(
    asked: list[tuple[int, int, int, float]], config: dict[str, Any], caching: bool, blocks: int
) -> None:
    """I9, I11, I12, I14 of the facts, and the identity's residual, also under preemption."""
    requests = [
        Request(i, arrival, out, [group * 1000 + p for p in range(length)],
                [10_000 + 100 * i + p for p in range(out)])
        for i, (group, length, out, arrival) in enumerate(asked)
    ]  # fmt: skip
    made = EngineConfig(**config)
    kind = BlockPoolV0 if made.policy == "v0" else BlockPool
    pool = kind(blocks, block_size=4, enable_prefix_caching=caching)
    found = run(requests, made, pool, cost)
    assert len(found.finished()) == len(asked)
    assert pool.num_free == blocks - 1
    pool.check()
    steps = found.steps
    assert (steps["distinct_blocks"] <= steps["table_entries"]).all()
    if not caching:
        assert (steps["distinct_blocks"] == steps["table_entries"]).all()
    assert (steps["decode_tokens"] + steps["prefill_tokens"] <= made.max_num_batched_tokens).all()
    # prompt + output - 1 - hits + recomputed, summed over requests
    recomputed = found.summary()["recomputed_tokens"]
    assert recomputed >= 0
    if not steps["preempted"].sum():
        assert recomputed == 0
    times = found.latencies()
    assert times["itl_s"].sum() == pytest.approx((times["e2e_s"] - times["ttft_s"]).sum())
    terms = found.tpot_terms()
    assert np.abs(terms["residual_s"]).max() < 1e-9
    assert sum(terms[f"{n}_s"].min() >= -1e-12 for n in ("decode", "mixed", "prefill")) == 3
    if made.policy == "v0":
        assert "mixed" not in set(steps["kind"].tolist())


def test_preempted_time_is_told_apart() -> None:
    """7 usable blocks, two prompts of 33, 20 out (fact 42): request 1 is preempted at step 17."""
    asked = [Request(i, 0.0, 20, [i * 100 + p for p in range(33)]) for i in range(2)]
    made = EngineConfig(max_num_batched_tokens=64)
    found = run(asked, made, BlockPool(8), cost)
    assert len(found.steps["kind"]) == 24
    assert asked[1].pauses == [[17, 20]]
    terms = found.tpot_terms()
    assert terms["steps_preemption"].tolist() == [0, 4]
    assert sum(tokens_of(found)) == 104  # three blocks are found again: 152 without caching


def test_caching_can_raise_tpot_when_memory_is_tight() -> None:
    """Facts, section 2.5 and vLLM PR 10128: more requests run at once, so each waits longer."""
    workload = Workload(120, 800, 20, cache_hit=0.9375, primed=False)
    tpot, rate = {}, {}
    for blocks in (400, 40_000):
        for caching in (False, True):
            found = simulated(workload_requests(workload), blocks, caching=caching).summary()
            tpot[blocks, caching] = found["tpot_s_mean"]
            rate[blocks, caching] = found["requests_per_s"]
    assert rate[400, True] > rate[400, False]
    assert tpot[40_000, True] < tpot[40_000, False]
    assert tpot[400, True] > tpot[400, False]


def test_longest_prefix_first_hits_more_and_lets_others_wait() -> None:
    """SGLang's lpm: of two groups that take turns, one is served while its prefix is cached."""
    prompts = [[g * 1000 + p for p in range(64)] + [9000 + i] for i, g in enumerate([0, 1] * 8)]
    rates, waits = {}, {}
    for queue in ("fcfs", "lpm"):
        requests = [Request(i, 0.0, 2, prompt) for i, prompt in enumerate(prompts)]
        found = simulated(requests, 6, queue=queue, max_num_seqs=1)
        rates[queue] = found.summary()["hit_rate"]
        waits[queue] = found.requests[1].first_step
    assert rates["lpm"] > rates["fcfs"] == 0.0
    assert waits["lpm"] > waits["fcfs"]


def test_samples_share_their_prompt_through_hits() -> None:
    found = simulated(workload_requests(Workload(3, 64, 4, cache_hit=0.0), samples=4))
    hits = {request.request_id: request.first_hit_tokens for request in found.requests}
    assert [hits[0, sample] for sample in range(4)] == [0, 48, 48, 48]
    assert found.steps["distinct_blocks"][1] < found.steps["table_entries"][1]


def test_arrivals_are_waited_for() -> None:
    requests = [Request(0, 5.0, 2, [1, 2]), Request(1, 0.0, 2, [3, 4])]
    found = simulated(requests)
    assert found.steps["start_s"][0] == 0.0
    assert 5.0 in found.steps["start_s"].tolist()
    assert (found.latencies()["ttft_s"] < 0.1).all()


def test_a_trace_runs_by_its_own_keys() -> None:
    trace = [TraceRequest(0.0, 40, 3, (7, 8, 9)), TraceRequest(9.0, 40, 0, (7, 8, 10))]
    whole = simulated(list(trace_requests(enumerate(trace), 16, 16)))
    # each id stands for two blocks of 8: the same two ids are found
    pool = BlockPool(100, block_size=8)
    halves = run(trace_requests(enumerate(trace), 8, 16), EngineConfig(), pool, cost)
    assert [r.first_hit_tokens for r in whole.requests] == [0, 32]
    assert [r.first_hit_tokens for r in halves.requests] == [0, 32]
    nothing = run(trace_requests(enumerate(trace), 16, None), EngineConfig(), BlockPool(99), cost)
    assert nothing.summary()["hit_rate"] < 1
    with pytest.raises(ValueError, match="block_size must divide the trace's, 512, got 48"):
        list(trace_requests(enumerate(trace), 48, 512))


def test_the_interval_of_prefill_counts_from_a_last_chunk_of_one_token() -> None:
    """65 tokens under a budget of 64: the second step carries prefill, too (golden/README)."""
    scheduler = SchedulerV1(
        EngineConfig(max_num_batched_tokens=64, prefill_schedule_interval=3), BlockPool(100)
    )
    scheduler.add(Request(0, 0.0, 9, list(range(65))))
    found = []
    for step in range(5):
        if step == 2:
            scheduler.add(Request(1, 0.0, 2, list(range(500, 620))))
        plan = scheduler.schedule()
        found.append([(request.request_id, n) for request, n in plan.scheduled])
        scheduler.update(plan, step)
    # prefill in steps 0 and 1: held in 2 and 3, not only in 2
    assert found == [[(0, 64)], [(0, 1)], [(0, 1)], [(0, 1)], [(0, 1), (1, 63)]]


def test_an_admission_that_lacks_one_token_is_no_prefill() -> None:
    scheduler = SchedulerV1(EngineConfig(prefill_schedule_interval=4), BlockPool(100))
    prompt = list(range(33))
    found = []
    for step, asked in enumerate([prompt, None, None, None, prompt, list(range(900, 940))]):
        if asked:
            scheduler.add(Request(step, 0.0, 20, asked))
        plan = scheduler.schedule()
        found.append([(request.request_id, n) for request, n in plan.scheduled])
        scheduler.update(plan, step)
    # 4 hits 32 of its 33 tokens; had that been prefill, 5 would be held
    assert found[4:] == [[(0, 1), (4, 1)], [(0, 1), (4, 1), (5, 40)]]


def test_a_budget_of_one_and_a_pool_of_two_blocks() -> None:
    found = simulated([Request(0, 0.0, 3, list(range(5)))], 2, max_num_batched_tokens=1)
    assert tokens_of(found) == 7 * [1]
    assert found.requests[0].token_steps.tolist() == [4, 5, 6]


def test_who_can_never_be_served_is_named() -> None:
    with pytest.raises(ValueError, match=r"a prompt of 99 tokens needs 7 blocks of 16, the pool"):
        simulated([Request("long", 0.0, 3, list(range(99)))], 4)
    grows = Request("grows", 0.0, 99, list(range(20)))
    with pytest.raises(Stuck, match=r"request 'grows' cannot go on: its \d+ tokens need 4 blocks"):
        simulated([grows], 4)
    with pytest.raises(ValueError, match="policy v0 takes whole prompts: 99 tokens exceed"):
        simulated([Request(0, 0.0, 3, list(range(99)))], policy="v0", max_num_batched_tokens=64)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"policy": "v2"}, "policy must be one of v1, v0, got 'v2'"),
        ({"queue": "lifo"}, "queue must be one of fcfs, priority, lpm, got 'lifo'"),
        ({"policy": "v0", "queue": "lpm"}, "policy v0 knows the queue fcfs only, got 'lpm'"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"max_model_len": 0}, "max_model_len must be at least 1, got 0"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0"),
    ],
)
def test_a_bad_config_is_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        EngineConfig(**change)


def test_bad_requests_and_costs_are_named() -> None:
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        Request(0, 0.0, 0, [1])
    with pytest.raises(ValueError, match="arrival_s must be a time from 0 on, got -1"):
        Request(0, -1.0, 1, [1])
    with pytest.raises(ValueError, match="at least one prompt token, got 0"):
        Request(0, 0.0, 1, [])
    with pytest.raises(ValueError, match="request_id must be new, 0 is known already"):
        simulated([Request(0, 0.0, 1, [1]), Request(0, 0.0, 1, [2])])
    with pytest.raises(ValueError, match="output_token_ids must be none or all 5, got 2"):
        simulated([Request(0, 0.0, 5, [1], [2, 3])])
    with pytest.raises(TypeError, match="policy v0 does not go with a BlockPool"):
        run([], EngineConfig(policy="v0"), BlockPool(9), cost)
    with pytest.raises(ValueError, match="step_cost must return seconds above 0, got 0"):
        run([Request(0, 0.0, 1, [1])], EngineConfig(), BlockPool(9), lambda _work: 0.0)


def test_a_stopped_run_keeps_its_steps() -> None:
    found = run(
        workload_requests(Workload(4, 30, 2000)), EngineConfig(), BlockPool(2001), cost,
        cancelled=iter([False, False, True]).__next__,
    )  # fmt: skip
    assert found.stopped
    assert len(found.steps["kind"]) == 512
