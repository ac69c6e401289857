"""Hit rate against capacity: published values of real traces, the real pool, the command."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apclab.blocks import BlockPool
from apclab.cli import run
from apclab.replay import POLICIES, finding, lru_curve, replay, stream_of
from apclab.traces import TraceError, TraceRequest, generate, read_trace, write_trace

SHARED = Path(__file__).resolve().parents[2] / "shared"
PUBLISHED = SHARED / "references" / "hitrate_published.csv"
stored = pytest.mark.skipif(not PUBLISHED.exists(), reason="the stored real traces are not here")


def published() -> list[dict[str, str]]:
    """Rows whose trace is stored and which somebody has computed once."""
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if row["computed_value"] and row["trace"].startswith("mooncake/")]


@stored
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_published_hit_rates(name: str) -> None:
    """Every row within 0.05 points of what two independent tools gave.

    Source: the rows' own column `source`; how a policy touches blocks is their column `policy`.
    """
    stream = stream_of(
        read_trace(SHARED / "traces" / "requests" / "mooncake" / f"{name}_trace.jsonl")
    )
    rows = [row for row in published() if row["trace"] == f"mooncake/{name}"]
    assert len(rows) > 20
    for row in rows:
        policy = "fifo" if "FIFO" in row["policy"] else "lru"
        last = 0.5 if "50%" in row["window"] else 1.0
        tokens = [int(row["capacity_tokens"])] if row["capacity_tokens"] else []
        order = "leaf" if "leaf" in row["policy"] else "head"
        table = replay(stream, capacities=tokens, policies=[policy], order=order, last=last)
        rate = table["hit_rate"].iloc[0]
        if "/ max" in row["metric"]:
            rate /= table["hit_rate"].iloc[-1]
        assert rate == pytest.approx(float(row["computed_value"]), abs=5e-4), row


@stored
def test_belady_gives_the_published_optimum() -> None:
    """Published to a tenth of a point, KVCache.AI's simulator, the last half of the requests."""
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if "OPTIMAL" in row["policy"]]
    for name in ("conversation", "synthetic"):
        path = SHARED / "traces" / "requests" / "mooncake" / f"{name}_trace.jsonl"
        mine = [row for row in rows if row["trace"] == f"mooncake/{name}"]
        assert len(mine) == 7
        tokens = [int(row["capacity_tokens"]) for row in mine]
        table = replay(path, capacities=tokens, policies=["belady"], last=0.5)
        for rate, row in zip(table["hit_rate"], mine, strict=False):
            assert rate == pytest.approx(float(row["published_value"]), abs=6e-4), row


@stored
def test_real_files_of_every_format_are_read() -> None:
    folder = SHARED / "traces" / "requests"
    counts = {
        "azure2023/AzureLLMInferenceTrace_code.csv": ("azure", 8_819),
        "kv_cache_tester": ("kv-cache-tester", 309),
        "sharegpt_lengths/ShareGPT_stat.csv": ("lengths", 82_780),
        "sharegpt_sps10_blk16/sharegpt-qwen3-32b-300-sps10.blk16.jsonl": ("mooncake", 300),
    }
    for name, (kind, count) in counts.items():
        trace = read_trace(folder / name)
        assert (trace.format, sum(1 for _ in trace)) == (kind, count)
    # token-weighted, no limit, full blocks (the data's own notes)
    rate = replay(folder / "sharegpt_sps10_blk16/sharegpt-qwen3-32b-300-sps10.blk16.jsonl",
                  policies=["lru"], capacities=[], rule="vllm")["hit_rate"].item()  # fmt: skip
    assert rate == pytest.approx(0.0790, abs=5e-4)


def requests(count: int = 300) -> list[TraceRequest]:
    return list(generate(count, cache_hit=0.6, groups=20, input_len=200, seed=5))


def test_the_curve_is_the_table_at_every_capacity() -> None:
    stream = stream_of(requests(), 16)
    curve = lru_curve(stream, last=0.5)
    tokens = curve["capacity_tokens"].tolist()
    table = replay(stream, policies=["lru"], capacities=tokens, last=0.5)
    assert table["hit_rate"].tolist()[:-1] == pytest.approx(curve["hit_rate"].tolist(), abs=1e-12)
    assert curve["hit_rate"].is_monotonic_increasing
    # a step lies where the curve says, not a block earlier
    if tokens[3] - 16 > tokens[2]:
        before = replay(stream, policies=["lru"], capacities=[tokens[3] - 16], last=0.5)
        assert before["hit_rate"].iloc[0] == pytest.approx(curve["hit_rate"].iloc[2])


def test_the_real_pool_hits_the_same_when_nothing_is_evicted() -> None:
    """The rule "vllm" is what BlockPool does: full blocks only, the last token computed."""
    rng = np.random.default_rng(0)
    prompts = [[1] * 40 + rng.integers(0, 99, 30).tolist() for _ in range(5)]
    prompts += [prompts[0][:48], prompts[1], prompts[0][:33], [1] * 16, [1] * 17]
    keys: dict[tuple[int, ...], int] = {}
    trace = []
    for i, prompt in enumerate(prompts):
        prefixes = [tuple(prompt[: end + 16]) for end in range(0, len(prompt), 16)]
        ids = tuple(keys.setdefault(prefix, len(keys)) for prefix in prefixes)
        trace.append(TraceRequest(float(i), len(prompt), 1, ids))
    pool = BlockPool(1000, block_size=16)
    hit = 0
    for number, prompt in enumerate(prompts):
        found = pool.allocate_slots(number, prompt)
        assert found is not None
        hit += found.num_tokens
        pool.free(number)
    stream = stream_of(trace, 16, rule="vllm")
    rate = replay(stream, policies=["lru"], capacities=[])["hit_rate"].item()
    assert rate == pytest.approx(hit / sum(map(len, prompts)))
    assert hit > 0


def test_no_policy_beats_belady_and_no_capacity_beats_a_larger_one() -> None:
    table = replay(stream_of(requests(), 16))
    rates = table.pivot(index="capacity_tokens", columns="policy", values="hit_rate")
    assert (rates["belady"] >= rates["lru"]).all()
    assert (rates["belady"] >= rates["fifo"]).all()
    assert rates["lru"].is_monotonic_increasing
    assert rates.iloc[-1].nunique() == 1
    assert math.isinf(rates.index[-1])


def test_a_stopped_replay_keeps_its_rows() -> None:
    told: list[float] = []
    table = replay(
        stream_of(requests(50), 16), cancelled=lambda: len(told) == 4,
        progress=lambda part, _text: told.append(part),
    )  # fmt: skip
    assert len(table) == 4
    assert told == sorted(told)


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    stream = stream_of(requests(5), 16)
    with pytest.raises(ValueError, match="policies must be some of lru, fifo, belady, got 'lfu'"):
        replay(stream, policies=["lfu"])
    with pytest.raises(ValueError, match="capacities must hold a block of 16 tokens, got 15"):
        replay(stream, capacities=[64, 15])
    with pytest.raises(ValueError, match="last must be above 0 and at most 1, got 0"):
        replay(stream, last=0)
    with pytest.raises(ValueError, match="rule must be one of tokens, vllm, got 'sglang'"):
        stream_of(requests(5), 16, rule="sglang")
    with pytest.raises(TypeError, match="block_size must be an int, got None"):
        stream_of(requests(5))
    (tmp_path / "t.csv").write_text("3,4\n")
    with pytest.raises(TraceError, match="names no blocks"):
        replay(tmp_path / "t.csv")


def test_finding() -> None:
    rows = [
        {"policy": p, "capacity_tokens": c, "capacity_blocks": c, "hit_rate": r}
        for p, c, r in [("lru", 64, 0.1), ("belady", 64, 0.3), ("lru", 128, 0.25),
                        ("belady", 128, 0.4), ("lru", np.inf, 0.4), ("belady", np.inf, 0.4)]
    ]  # fmt: skip
    assert finding(pd.DataFrame(rows)) == (
        "a cache without limit hits 40.0% of the prompt tokens; half of that takes LRU at most 128 "
        "tokens, where the best that knows the future has 40.0%."
    )
    assert finding(pd.DataFrame(rows[:2])) == ""


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    write_trace(tmp_path / "made.jsonl", requests(100), 16)
    return tmp_path / "made.jsonl"


def test_the_command_prints_a_table_and_a_sentence(
    trace_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert run(["replay", str(trace_file), "--capacity", "1600", "--model", "llama-13b"]) == 0
    out = capsys.readouterr().out
    assert all(f"{policy} (%)" in out for policy in POLICIES)
    # 40 layers of 20,480 bytes a token
    assert "1,600" in out
    assert "1.31" in out
    assert "no limit" in out
    assert "a cache without limit hits" in out
    assert "100 requests" in out


def test_the_command_prints_json_lines(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(trace_file), "--policy", "lru", "--capacity", "160", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["capacity_tokens"] for row in rows] == [160.0, None]
    assert rows[1]["hit_rate"] >= rows[0]["hit_rate"]


def test_the_command_draws_the_figure(trace_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.html"
    assert run(["replay", str(trace_file), "--html", str(path)]) == 0
    assert "Belady" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["none.jsonl"], "No such file"),
        (["FILE", "--policy", "lfu"], "policies must be some of"),
        (["FILE", "--capacity", "3"], "capacities must hold a block of 16"),
        (["FILE", "--model", "llama-14b"], "llama-13b"),
        (["BAD"], "BAD:2: not JSON"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(
    trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    arguments: list[str], complaint: str,
) -> None:  # fmt: skip
    bad = tmp_path / "BAD"
    bad.write_text(trace_file.read_text().splitlines()[0] + "\n{\n")
    places = {"FILE": str(trace_file), "BAD": str(bad)}
    assert run(["replay", *[places.get(word, word) for word in arguments]]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert complaint in error


def test_the_command_skips_and_counts(trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace_file.write_text(trace_file.read_text() + "{\n")
    assert run(["replay", str(trace_file), "--policy", "lru", "--skip-bad"]) == 0
    assert "1 bad lines or files skipped; the first: " in capsys.readouterr().err


def test_the_same_capacity_twice_counts_once(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = ["--capacity", "1600"] * 2
    assert run(["replay", str(trace_file), *twice, "--policy", "lru", "--policy", "lru"]) == 0
    assert capsys.readouterr().out.count("1,600") == 1
    table = replay(trace_file, capacities=[1600, 10**30], policies=["lru"])
    assert table["hit_rate"].iloc[1] == table["hit_rate"].iloc[2]


def test_what_is_wrong_is_found_before_the_trace_is_read(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        (["--model", "llama-13b", "--dtype", "x"], "dtype must be one of"),
        (["--dtype", "float16"], "--dtype is of --model's KV cache"),
        (["--of", "everything"], "--of must be one of tokens, eligible, blocks, requests"),
        (["--prompts", "p.jsonl"], "a TRACE or --prompts, not both"),
        (["--policy", "lfu"], "policies must be some of lru, fifo, belady, got 'lfu'"),
        (["--order", "tail"], "order must be one of leaf, head, got 'tail'"),
        (["--last", "0"], "last must be above 0 and at most 1, got 0"),
        (["--capacity", "15"], "capacities must hold a block of 16 tokens, got 15"),
    ]
    # its start says the block size, and the next line would be refused
    trace_file.write_text(f"{trace_file.read_text().splitlines()[0]}\nnot read\n")
    for arguments, complaint in cases:
        assert run(["replay", str(trace_file), *arguments]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert complaint in error
    assert run(["replay"]) == 2
    assert "name a TRACE, or --prompts FILE" in capsys.readouterr().err


def test_a_replay_that_is_stopped_at_once_is_an_empty_table(trace_file: Path) -> None:
    table = replay(trace_file, cancelled=lambda: True)
    assert table.empty
    assert finding(table) == ""


def test_eagle_and_what_could_be_hit() -> None:
    """Two prompts of 4 blocks: the second finds 4, of which the last is computed anew."""
    trace = [TraceRequest(float(i), 64, 1, (1, 2, 3, 4)) for i in range(2)]
    stream = stream_of(trace, 16)
    for drop, tokens in ((False, 64), (True, 48)):
        table = replay(stream, policies=["lru"], capacities=[64], drop_last_block=drop)
        assert table["hit_rate"].tolist() == [tokens / 128] * 2
        assert table["eligible_hit_rate"].tolist() == [tokens / 64] * 2
        curve = lru_curve(stream, drop_last_block=drop)
        assert curve["hit_rate"].iloc[-1] == tokens / 128
    nothing = replay(stream_of(trace[:1], 16), policies=["lru"], capacities=[])
    assert nothing["eligible_hit_rate"].isna().all()


def test_replay_with_eagle_is_what_the_pool_does() -> None:
    """The rule "vllm" with the block dropped, against BlockPool's drop_last_block."""
    pool = BlockPool(2000, drop_last_block=True)
    trace = requests(80)
    found = 0
    for number, request in enumerate(trace):
        keys = request.hash_ids[: request.input_len // 16]
        pool.add_hashed_request(number, keys, request.input_len)
        hit = pool.admit(number)
        assert hit is not None
        found += hit.num_tokens
        pool.free(number)
    stream = stream_of(trace, 16, rule="vllm")
    table = replay(stream, policies=["lru"], capacities=[], drop_last_block=True)
    assert table["hit_rate"].item() == pytest.approx(found / sum(r.input_len for r in trace))


def test_the_sentence_names_the_exact_capacity() -> None:
    stream = stream_of(requests(280), 16)
    table, curve = replay(stream), lru_curve(stream)
    half = curve[curve["hit_rate"] >= curve["hit_rate"].max() / 2]["capacity_tokens"].iloc[0]
    assert half in set(table["capacity_tokens"])
    assert half & (half - 1), "made so that no power of two is half way"
    belady = table[(table["policy"] == "belady") & (table["capacity_tokens"] == half)]
    assert finding(table, curve).endswith(
        f"half of that takes LRU {half:,} tokens, where the best that knows the future has "
        f"{belady['hit_rate'].item():.1%}."
    )
    assert "at most" in finding(replay(stream, capacities=[4096]))


def test_a_replay_that_would_take_too_much_memory_is_refused_with_the_arithmetic() -> None:
    many = (TraceRequest(0.0, 160, 1, tuple(range(10))) for _ in range(10**9))
    with pytest.raises(TraceError, match=r"the first 84 requests name 840 blocks; .* \(120 bytes"):
        stream_of(many, 16, most_bytes=100_000)


def test_the_command_compares_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [[*range(160), 1000 + i] for i in range(4)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run(["replay", "--prompts", str(path), "--policy", "lru"]) == 0
    out, err = capsys.readouterr()
    assert f"hits {3 * 160 / (4 * 161):.1%} of the prompt tokens" in out
    assert "bytes" not in out + err
    path.write_text("".join(f"{json.dumps('x' * 160 + str(i))}\n" for i in range(4)))
    assert run(["replay", "--prompts", str(path), "--policy", "lru"]) == 0
    out, err = capsys.readouterr()
    assert f"hits {3 * 160 / (4 * 161):.1%} of the prompt bytes" in out
    assert "bytes of UTF-8 text stand in for tokens, no tokenizer ran: prompts: 4" in err


def test_the_room_is_the_function_too(trace_file: Path) -> None:
    import apclab

    for _ in range(2):
        # the import system has bound the name to the room, which type checkers know it as
        assert len(getattr(apclab, "replay")(trace_file, policies=["lru"], capacities=[])) == 1  # noqa: B009


def test_simulate_models_eagle_and_takes_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 4860's 100 prompts of 300: 18 shared blocks, of which EAGLE computes one anew."""
    rates = []
    for more in ([], ["--drop-last-block"]):
        assert run(["simulate", "--json", *more]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        rates.append(rows[-1]["hit_rate"])
    assert rates == pytest.approx([99 * 288 / 30_000, 99 * 272 / 30_000])
    path = tmp_path / "custom.jsonl"
    path.write_text('{"prompt": "abc", "output_tokens": 3}\n')
    assert run(["simulate", "--trace", str(path)]) == 2
    assert "vLLM's custom dataset: text" in capsys.readouterr().err
    assert run(["simulate", "--trace", str(path), "--as-lengths", "--json"]) == 0
    assert "bytes of UTF-8 text stand in for tokens" in capsys.readouterr().err


def test_sglang_33984_rounds_hit_while_they_fit_and_then_a_cliff() -> None:
    """20 clients, 10 rounds, 8192 more tokens each, blocks of 64: round r hits r of r + 1 parts."""
    trace = [
        TraceRequest(float(r), 8192 * (r + 1), 1, tuple(range(c * 2000, c * 2000 + 128 * (r + 1))))
        for r in range(10)
        for c in range(20)
    ]
    most = 20 * 10 * 8192
    for rounds in range(2, 11):
        stream = stream_of(trace[: 20 * rounds], 64)
        table = replay(stream, policies=["lru"], capacities=[most], last=1 / rounds)
        assert table["hit_rate"].tolist() == pytest.approx([(rounds - 1) / rounds] * 2)
    half = replay(stream_of(trace, 64), policies=["lru"], capacities=[most // 2], last=0.1)
    assert half["hit_rate"].iloc[0] < 0.01
