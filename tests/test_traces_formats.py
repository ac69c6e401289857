"""Each format of request traces, from small samples of its description: what is read, and what not.

Names and meanings of the fields: the sources that each reader's module names.
"""

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from apclab.replay import replay, stream_of
from apclab.traces import FORMATS, Trace, TraceError, TraceRequest, read_trace
from apclab.traces.read import _LINES

KINDS = (*_LINES, "kv-cache-tester")


def written(path: Path, *lines: object) -> Path:
    """Lines as they are, objects as JSON; gzipped where the name says so."""
    rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    text = "".join(f"{row}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def unlimited(trace: Trace) -> float:
    """Hit rate of a cache without limit."""
    return float(replay(stream_of(trace), policies=["lru"], capacities=[])["hit_rate"].item())


def test_every_format_has_its_reader_and_a_name_in_the_help() -> None:
    from apclab.cli.replay import replay as command

    assert sorted(FORMATS) == sorted(KINDS)
    said = command.__annotations__["format_"].__metadata__[0].help
    assert all(name in said for name in FORMATS)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
LMM = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"


def test_azure_2024_with_and_without_a_fraction(tmp_path: Path) -> None:
    trace = read_trace(
        written(
            tmp_path / "a.csv", AZURE,
            "2024-05-12 00:00:01+00:00,584,3",
            "2024-05-12 00:00:01.500000+00:00,9,2",
            "2024-05-12 00:00:02.2500000Z,8,1",
        )
    )  # fmt: skip
    assert (trace.format, trace.block_size) == ("azure", None)
    assert [tuple(request[:3]) for request in trace] == [(0.0, 584, 3), (0.5, 9, 2), (1.25, 8, 1)]


def test_azure_of_another_zone_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", AZURE, "2024-05-12 00:00:01+02:00,584,3")
    with pytest.raises(TraceError, match=r":2: TIMESTAMP must be UTC .*, got the zone \+0200"):
        list(read_trace(path))


def test_azure_2025_counts_images(tmp_path: Path) -> None:
    trace = read_trace(
        written(
            tmp_path / "lmm.csv.gz", LMM,
            "2025-01-01 00:00:00.5,2,1000,30", "2025-01-01 00:00:01.5,0,20,3",
            "2025-01-01 00:00:02,1,20,3",
        )
    )  # fmt: skip
    assert trace.format == "azure"
    assert [request[:3] for request in trace] == [(0.0, 1000, 30), (1.0, 20, 3), (1.5, 20, 3)]
    assert trace.remarks() == ["images, of whose tokens the trace says nothing more: 3"]


def bailian(at: float, ids: list[int]) -> dict[str, Any]:
    return {
        "chat_id": 1, "timestamp": at, "input_length": 16 * len(ids), "output_length": 1,
        "hash_ids": ids,
    }  # fmt: skip


def test_an_id_of_bailian_stands_for_its_block_alone(tmp_path: Path) -> None:
    """[9, 2, 3] shares no prefix with [1, 2]: 32 of 144 tokens are hit, not 48."""
    path = written(tmp_path / "b", *[bailian(0, ids) for ids in ([1, 2], [9, 2, 3], [1, 2, 3, 4])])
    assert unlimited(read_trace(path)) == pytest.approx(32 / 144)
    (request,) = read_trace(written(tmp_path / "c", bailian(0, [5, 7, 7, 9])))
    assert len(set(request.hash_ids)) == 4
    path = written(tmp_path / "m", without(input_length=2048, hash_ids=[5, 7, 7, 9]))
    with pytest.raises(TraceError, match="holds 7 twice"):
        list(read_trace(path))


def session(marker: float, *inner: float) -> dict[str, Any]:
    def call(at: float) -> dict[str, Any]:
        return {"t": at, "in": 64, "out": 1, "hash_ids": [1]}

    agent = {"t": marker, "agent_id": "a", "requests": [call(at) for at in inner]}
    return {"block_size": 64, "id": "s", "requests": [call(0.0), agent]}


@pytest.mark.parametrize(
    ("marker", "inner", "arrivals", "reading"),
    [
        (100, (101, 110), [0, 101, 110], "as SemiAnalysis'"),
        (100, (100,), [0, 100], "as SemiAnalysis'"),
        (100, (0, 9), [0, 100, 109], "as kv-cache-tester's"),
        (100, (99,), [0, 199], "as kv-cache-tester's"),
    ],
)
def test_times_of_sub_agents_are_read_as_they_can_be_meant(
    tmp_path: Path, marker: float, inner: tuple[float, ...], arrivals: list[float], reading: str
) -> None:
    trace = read_trace(written(tmp_path / "s.json", session(marker, *inner)))
    assert [request.arrival_s for request in trace] == arrivals
    (remark,) = trace.remarks()
    assert reading in remark


def test_one_sub_agent_that_is_relative_makes_all_of_its_file_so(tmp_path: Path) -> None:
    both = session(2, 3)
    both["requests"] += session(50, 0)["requests"][1:]
    trace = read_trace(written(tmp_path / "s.json", both))
    assert [request.arrival_s for request in trace] == [0, 5, 50]


def test_a_session_may_leave_ids_out(tmp_path: Path) -> None:
    trace = read_trace(
        written(
            tmp_path / "s.json",
            {"block_size": 64, "requests": [{"t": 0, "in": 99, "out": 1}, {"t": 1, "in": 64,
             "out": 1, "hash_ids": [1]}]},
        )
    )  # fmt: skip
    assert [request.hash_ids for request in trace] == [(), (1,)]
    assert trace.remarks() == ["requests without hash_ids, whose prefix is not known: 1"]


MOONCAKE: dict[str, Any] = {
    "timestamp": 1000, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 2],
}  # fmt: skip


def without(*names: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in MOONCAKE.items() if key not in names} | more


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (without("timestamp", created_time=2000), TraceRequest(2.0, 1030, 7, (0, 1, 2))),
        (without("input_length"), TraceRequest(1.0, 1536, 7, (0, 1, 2))),
        (without("output_length"), TraceRequest(1.0, 1030, 0, (0, 1, 2))),
        (without(hash_ids=[2**64 - 1, 2**63, 3]), TraceRequest(1.0, 1030, 7, (-1, -(2**63), 3))),
        (without(hash_ids=["a", "0x1F", "ffffffffffffffff"]), TraceRequest(1.0, 1030, 7,
                                                                           (10, 31, -1))),
    ],
)  # fmt: skip
def test_relatives_of_mooncake(
    tmp_path: Path, line: dict[str, Any], expected: TraceRequest
) -> None:
    trace = read_trace(written(tmp_path / "m", line))
    assert trace.format == "mooncake"
    assert list(trace) == [expected]
    assert stream_of(trace).ids.tolist() == list(expected.hash_ids)


def test_long_hexadecimal_ids_are_digested(tmp_path: Path) -> None:
    a, b = "ab" * 32, "ac" * 32
    (request,) = read_trace(written(tmp_path / "m", without(hash_ids=[a, b, "07"])))
    assert len(set(request.hash_ids)) == 3
    assert request.hash_ids[2] == 7
    with pytest.raises(TraceError, match="hash_ids must hold hexadecimal texts, got 'xyz'"):
        list(read_trace(written(tmp_path / "x", without(hash_ids=["xyz", a, b]))))


def test_a_closed_loop_says_its_delays(tmp_path: Path) -> None:
    lines = [
        without(session_id="a", timestamp=0),
        without("timestamp", session_id="a", delay=1000),
        without(session_id="b", timestamp=500),
        without("timestamp", session_id="b", delay_ms=100),
        without("timestamp", session_id="a", delay=2500),
    ]
    trace = read_trace(written(tmp_path / "m", *lines))
    assert [(r.arrival_s, r.session) for r in trace] == [
        (0.0, "a"), (0.5, "b"), (0.6, "b"), (1.0, "a"), (3.5, "a"),
    ]  # fmt: skip
    assert trace.remarks() == [
        "delays after a session's previous line, counted from its arrival: 3"
    ]
    with pytest.raises(TraceError, match=":1: delay must follow an earlier line of its session_id"):
        list(read_trace(written(tmp_path / "n", lines[1])))


def test_sglang_token_trace(tmp_path: Path) -> None:
    """Token ids in blocks of 16: the second prompt shares its first 20 tokens, a block of them."""
    first = list(range(40))
    trace = read_trace(
        written(
            tmp_path / "t.jsonl",
            {"input_tokens": first, "num_input_tokens": 40, "output_tokens": [1, 2], "ts": 7.5},
            {"input_tokens": [*range(20), *range(90, 110)], "num_output_tokens": 5, "ts": 9.0},
        )
    )
    assert (trace.format, trace.block_size) == ("sglang", 16)
    a, b = trace
    assert (a[:3], b[:3]) == ((0.0, 40, 2), (1.5, 40, 5))
    assert [x == y for x, y in zip(a.hash_ids, b.hash_ids, strict=True)] == [True, False, False]
    assert unlimited(trace) == pytest.approx(16 / 80)
    assert unlimited(read_trace(tmp_path / "t.jsonl", block_size=4)) == pytest.approx(20 / 80)
    bad = written(tmp_path / "b", {"input_tokens": [1, -2], "num_output_tokens": 1})
    with pytest.raises(TraceError, match=":1: input_tokens must hold token ids, got -2"):
        list(read_trace(bad))
    bad = written(tmp_path / "b", {"input_tokens": [1], "num_input_tokens": 2, "output_tokens": []})
    with pytest.raises(TraceError, match="num_input_tokens must be the number of tokens, 1, got 2"):
        list(read_trace(bad))


def test_llmservingsim(tmp_path: Path) -> None:
    line = {"input_toks": 32, "output_toks": 3, "arrival_time_ns": 0}
    trace = read_trace(
        written(
            tmp_path / "t",
            {**line, "input_tok_ids": list(range(32))},
            {**line, "arrival_time_ns": 2_500_000_000, "input_tok_ids": list(range(32))},
            {**line, "arrival_time_ns": 3_000_000_000},
        )
    )
    assert trace.format == "llmservingsim"
    assert [r.arrival_s for r in trace] == [0.0, 2.5, 3.0]
    assert unlimited(trace) == pytest.approx(1 / 3)
    assert trace.remarks() == ["requests without input_tok_ids, whose prefix is not known: 1"]


def dynamo(received_ms: int, hashes: list[int], session: str = "s") -> dict[str, Any]:
    return {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end",
        "event_time_unix_ms": received_ms + 900, "agent_context": {"session_id": session},
        "request": {
            "request_id": "r", "output_tokens": 8, "request_received_ms": received_ms,
            "replay": {"trace_block_size": 64, "input_length": 64 * len(hashes) - 10,
                       "input_sequence_hashes": hashes},
        },
    }  # fmt: skip


def test_dynamo_request_trace(tmp_path: Path) -> None:
    """Records come as requests end; hashes are unsigned; other events stand between them."""
    late = dynamo(1_700_000_002_000, [2**64 - 5, 7])
    late["event_time_unix_ms"] = 1_700_000_002_100
    del late["request"]["request_received_ms"]
    late["request"]["total_time_ms"] = 100.0
    trace = read_trace(
        written(
            tmp_path / "d.jsonl.gz",
            {"event_type": "tool_end", "event_time_unix_ms": 1, "tool": {"tool_call_id": "x"}},
            {"timestamp": 5, "event": late},
            dynamo(1_700_000_000_000, [2**64 - 5, 8, 9], "u"),
        ),
        block_size=64,
    )
    assert trace.format == "dynamo"
    assert [r[:3] + r[4:] for r in trace] == [(0.0, 182, 8, "u"), (2.0, 118, 8, "s")]
    assert unlimited(trace) == pytest.approx(64 / 300)
    assert trace.remarks() == ["records without the blocks of a request, left out: 1"]
    assert read_trace(written(tmp_path / "e", dynamo(0, [1]))).block_size == 64
    path = written(tmp_path / "f", dynamo(0, [1]), {**dynamo(0, [1])})
    with pytest.raises(TraceError, match="trace_block_size must stay 32, got 64"):
        list(read_trace(path, block_size=32))


def round_of(number: int, at: str, total: int, prefix: int, **more: Any) -> dict[str, Any]:
    return {
        "provider": "claude", "session_id": "x", "round_index": number, "model": "m",
        "input_tokens_total": total, "prefix_tokens": prefix, "newly_append_tokens": total - prefix,
        "output_tokens": 4, "timing_events": [{"event_type": "text", "timestamp": at}],
    } | more  # fmt: skip


def test_tracelab(tmp_path: Path) -> None:
    """A round keeps what the provider's cache held, as far as an earlier prompt had it."""
    trace = read_trace(
        written(
            tmp_path / "t",
            round_of(0, "2026-08-25T00:00:01Z", 64, 16),
            round_of(1, "2026-08-25T00:00:03.5Z", 128, 64),
            round_of(0, "2026-08-25T00:00:02Z", 64, 0, session_id="y"),
            round_of(2, "2026-08-25T00:00:09Z", 160, 32),  # begun anew behind two blocks
        )
    )
    assert trace.format == "tracelab"
    assert [r.arrival_s for r in trace] == [0.0, 1.0, 2.5, 8.0]
    assert unlimited(trace) == pytest.approx((64 + 32) / (64 + 128 + 64 + 160))
    assert trace.remarks() == ["prefix_tokens that no earlier prompt of their session held: 16"]
    bad = written(tmp_path / "b", round_of(1, "2026-08-25", 9, 0), round_of(0, "2026-08-25", 9, 0))
    with pytest.raises(TraceError, match=":2: round_index must rise in a session, got 0 after 1"):
        list(read_trace(bad))


TRIE: dict[str, Any] = {
    "num_turns": 2, "input_prompt_length": 100, "assistant_response_length": [10, 20],
    "tool_call_output_length": [30, 40], "tool_call_latency": [0.5, 1.25],
    "final_assistant_response_length": 50,
}  # fmt: skip


def test_trie(tmp_path: Path) -> None:
    """Prompts of 100, 100 + 10 + 30, 140 + 20 + 40; in blocks of 16, 6 and 8 are there before."""
    trace = read_trace(written(tmp_path / "t", TRIE, TRIE))
    assert trace.format == "trie"
    assert [r[:3] for r in trace if r.session == "session 1"] == [
        (0.0, 100, 10), (0.5, 140, 20), (1.75, 200, 50),
    ]  # fmt: skip
    assert unlimited(trace) == pytest.approx(2 * (96 + 128) / (2 * 440))
    with pytest.raises(TraceError, match=r":1: tool_call_latency must hold num_turns = 2 values"):
        list(read_trace(written(tmp_path / "b", {**TRIE, "tool_call_latency": [1]})))


COUNTS = "Request tokens,Response tokens,Total tokens,Log Type"
BURST = f"Timestamp,Session ID,Elapsed time,Model,{COUNTS}"


def test_burstgpt_leaves_failed_requests_out(tmp_path: Path) -> None:
    rows = ("5,a,1.5,ChatGPT,472,18,490,Conversation log", "45.5,a,2,GPT-4,9,0,9,API log")
    trace = read_trace(written(tmp_path / "b.csv", BURST, *rows))
    assert (trace.format, list(trace)) == ("burstgpt", [TraceRequest(5.0, 472, 18, (), "a")])
    assert trace.remarks() == ["failed requests (Response tokens 0), left out: 1"]
    short = f"Timestamp,Model,{COUNTS}"
    (request,) = read_trace(written(tmp_path / "c.csv", short, "5,GPT-4,472,18,490,API log"))
    assert request == TraceRequest(5.0, 472, 18)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ((BURST, "5,a,1.5,ChatGPT,472,18,490,Conversation log"), "burstgpt"),
        ((AZURE, "2024-05-12 00:00:01+00:00,584,3"), "azure"),
        (("42,285",), "lengths"),
    ],
)
def test_lengths_have_no_prefix_and_say_so(
    tmp_path: Path, lines: tuple[str, ...], name: str
) -> None:
    path = written(tmp_path / "l.csv", *lines)
    with pytest.raises(TraceError, match=rf"{name} tells lengths only .* \(--as-lengths"):
        replay(path)
    assert unlimited(read_trace(path, as_lengths=True)) == 0.0


def test_text_has_no_prefix_without_a_tokenizer(tmp_path: Path) -> None:
    custom = written(tmp_path / "c.jsonl", {"prompt": "Grü\ud800", "output_tokens": 12})
    with pytest.raises(TraceError, match="vLLM's custom dataset: text, in which no prefix is"):
        read_trace(custom)
    trace = read_trace(custom, as_lengths=True)
    assert list(trace) == [TraceRequest(0.0, 7, 12)]  # 7 bytes of UTF-8
    assert trace.unit == "bytes"
    shared = tmp_path / "sharegpt.json"
    shared.write_text(json.dumps([{"id": "x", "conversations": [{"from": "human"}]}], indent=1))
    with pytest.raises(TraceError, match="ShareGPT's conversations: text"):
        read_trace(shared)
    with pytest.raises(TraceError, match="prompts without times"):
        read_trace(written(tmp_path / "p", {"prompt_token_ids": [1, 2]}))


def test_as_lengths_forgets_what_is_shared(tmp_path: Path) -> None:
    path = written(tmp_path / "m", MOONCAKE, MOONCAKE)
    assert unlimited(read_trace(path)) == pytest.approx(0.5)
    assert unlimited(read_trace(path, as_lengths=True)) == 0.0


@pytest.mark.parametrize("name", ["prompt_token_ids", "token_ids", "input_ids", "prompt", ""])
def test_prompts_of_token_ids(tmp_path: Path, name: str) -> None:
    rows = [list(range(40)), list(range(40)), [*range(16), 99]]
    lines = [{name: row} if name else row for row in rows]
    trace = read_trace(written(tmp_path / "p", *lines), format="prompts")
    assert (trace.block_size, trace.unit) == (16, "tokens")
    assert unlimited(trace) == pytest.approx((40 + 16) / 97)
    assert not trace.remarks()


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda text: text,
        lambda text: {"prompt": text},
        lambda text: {"text": text},
        lambda text: {"messages": [{"role": "user", "content": text}]},
        lambda text: {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]},
    ],
)
def test_prompts_of_text_are_bytes_and_say_so(tmp_path: Path, wrapped: Any) -> None:
    system = "You are a helpful assistant. " * 4
    lines = [json.dumps(wrapped(system + end)) for end in ("Hello?", "What is two and two?")]
    trace = read_trace(written(tmp_path / "p", *lines), format="prompts")
    assert next(iter(trace)).input_len >= len(system) + 6
    assert 0 < unlimited(trace) < 0.5
    assert trace.unit == "bytes"
    assert any("bytes of UTF-8 text stand in for tokens" in line for line in trace.remarks())


def test_prompts_are_of_one_kind(tmp_path: Path) -> None:
    path = written(tmp_path / "p", {"prompt": "text"}, {"prompt": [1, 2]})
    with pytest.raises(TraceError, match=":2: expected text as above, got token ids"):
        list(read_trace(path, format="prompts"))
    with pytest.raises(TraceError, match=":1: expected one of prompt_token_ids, "):
        list(read_trace(written(tmp_path / "q", {"question": "?"}), format="prompts"))
    with pytest.raises(TraceError, match=":1: prompt must be a list, got int"):
        list(read_trace(written(tmp_path / "r", "3"), format="prompts"))


SAMPLES: dict[str, list[object]] = {
    "mooncake": [MOONCAKE, without("timestamp", created_time=2000, session_id="a")],
    "bailian": [bailian(0, [1, 2]), bailian(1, [9, 2, 3])],
    "azure": [LMM, "2025-01-01 00:00:00.5,2,1000,30", "2025-01-01 00:00:01.5,0,20,3"],
    "kv-cache-tester": [session(100, 101, 110)],
    "lengths": ["42,285", "19,82"],
    "sglang": [{"input_tokens": [1, 2, 3], "output_tokens": [1], "ts": 7.5}],
    "llmservingsim": [
        {"input_toks": 2, "output_toks": 3, "arrival_time_ns": 5, "input_tok_ids": [1, 2]}
    ],
    "dynamo": [dynamo(1000, [1, 2])],
    "tracelab": [round_of(0, "2026-08-25T00:00:01Z", 64, 16)],
    "trie": [TRIE],
    "burstgpt": [BURST, "5,a,1.5,ChatGPT,472,18,490,Conversation log"],
    "vllm-custom": [{"prompt": "text", "output_tokens": 3}],
    "prompts": [[1, 2, 3], {"messages": [{"role": "user", "content": [{"text": "x"}]}]}],
}
PIECES = [
    b"", b'"', b"[", b"]", b"{", b"}", b",", b":", b"-", b"null", b"true", b"1e400", b"[[1]]",
    b"{}", b"9999999999999999999", b"-1", b"0.5", b'"\\ud800"', b"\xff", b"\x00", b"\n", b"1" * 400,
]  # fmt: skip


def test_every_format_is_mutated() -> None:
    assert set(SAMPLES) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_mutated_file_is_read_or_refused(tmp_path: Path, name: str) -> None:
    """400 files each: a piece is put in the place of another, and nothing but TraceError comes."""
    whole = written(tmp_path / "t", *SAMPLES[name]).read_bytes()
    # so that a mutation finds a file that is good
    assert list(read_trace(tmp_path / "t", format=name, skip_bad=name == "prompts"))
    random = Random(name)
    for number in range(400):
        at = random.randrange(len(whole))
        end = at + random.choice((0, 1, 1, 2, 5, 20))
        problem = ""
        (tmp_path / "m").write_bytes(whole[:at] + random.choice(PIECES) + whole[end:])
        try:
            found = read_trace(
                tmp_path / "m", format=(name, "auto")[number % 2], skip_bad=number % 4 > 1,
                as_lengths=number % 8 > 5,
            )  # fmt: skip
            for where, request in found.located():
                assert where.startswith(str(tmp_path / "m"))
                assert request.input_len >= 1
                assert all(-(2**63) <= key < 2**63 for key in request.hash_ids)
            assert all(len(line) < 500 for line in found.remarks())
        except TraceError as error:
            problem = str(error)
        if problem:
            assert problem.startswith(str(tmp_path / "m"))
            assert problem.count(str(tmp_path / "m")) == 1
            assert len(problem) < 600
