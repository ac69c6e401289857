"""Readers of request traces: each format, and every kind of broken or hostile file."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apclab.traces import (
    Trace,
    TraceError,
    TraceRequest,
    generate,
    read_trace,
    write_trace,
)
from apclab.traces.ids import chain
from apclab.traces.lines import MOST_LINE_BYTES
from apclab.traces.turns import SESSION_IDS

Write = Callable[..., Path]
GOOD: dict[str, Any] = {
    "timestamp": 1500,
    "input_length": 1030,
    "output_length": 7,
    "hash_ids": [0, 1, 2],
}
BAILIAN: dict[str, Any] = {
    "chat_id": 5, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40, "output_length": 3,
    "type": "text", "turn": 1, "hash_ids": [3, 4, 5],
}  # fmt: skip
SESSION: dict[str, Any] = {
    "id": "talk", "block_size": 64, "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "in": 130, "out": 4, "hash_ids": [1, 2]},
        {"t": 10.0, "type": "subagent", "agent_id": "agent_7", "requests": [
            {"t": 0.0, "in": 64, "out": 1, "hash_ids": [1]},
            {"t": 30.0, "in": 128, "out": 2, "hash_ids": [1, 9]},
        ]},
        {"t": 20.0, "in": 192, "out": 5, "hash_ids": [1, 2, 3]},
    ],
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes lines, objects as JSON, and returns the path."""

    def make(*lines: object, name: str = "trace.jsonl", zipped: bool = False) -> Path:
        rows = [
            line if isinstance(line, bytes)
            else (line if isinstance(line, str) else json.dumps(line)).encode()
            for line in lines
        ]  # fmt: skip
        text = b"".join(row + b"\n" for row in rows)
        path = tmp_path / name
        path.write_bytes(gzip.compress(text) if zipped else text)
        return path

    return make


@pytest.mark.parametrize("zipped", [False, True])
def test_mooncake(write: Write, zipped: bool) -> None:
    trace = read_trace(write(GOOD, "", {**GOOD, "timestamp": 1500.5}, zipped=zipped))
    assert (trace.format, trace.block_size) == ("mooncake", 512)
    assert list(trace) == [
        TraceRequest(1.5, 1030, 7, (0, 1, 2)),
        TraceRequest(1.5005, 1030, 7, (0, 1, 2)),
    ]
    assert len(list(trace)) == 2  # read again from the start


def test_a_line_may_say_the_block_size(write: Write) -> None:
    line = {**GOOD, "block_size": 16, "input_length": 40}
    assert read_trace(write(line)).block_size == 16
    with pytest.raises(TraceError, match=r":2: block_size must stay 16 in one trace, got 32"):
        list(read_trace(write(line, {**line, "block_size": 32})))


def test_bailian_counts_seconds_and_names_chats(write: Write) -> None:
    trace = read_trace(write(BAILIAN))
    assert (trace.format, trace.block_size) == ("bailian", 16)
    assert list(trace) == [TraceRequest(1.5, 40, 3, chain([b"3", b"4", b"5"]), "5")]


def test_azure(write: Write) -> None:
    rows = ("2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319600,3180,8")
    trace = read_trace(write("TIMESTAMP,ContextTokens,GeneratedTokens", *rows, name="a.csv"))
    assert (trace.format, trace.block_size) == ("azure", None)
    assert [(round(r.arrival_s, 6), *r[1:4]) for r in trace] == [
        (0.0, 4808, 10, ()), (0.052, 3180, 8, ()),
    ]  # fmt: skip


def test_a_table_of_lengths(write: Write) -> None:
    trace = read_trace(write("42,285", "19,82"))
    assert trace.format == "lengths"
    assert list(trace) == [TraceRequest(0.0, 42, 285), TraceRequest(0.0, 19, 82)]


def test_a_session_with_a_sub_agent(write: Write) -> None:
    trace = read_trace(write(json.dumps(SESSION, indent=1), name="s.json"))
    assert (trace.format, trace.block_size) == ("kv-cache-tester", 64)
    assert [(r.arrival_s, r.hash_ids, r.session) for r in trace] == [
        (0.0, (1, 2), "talk"),
        (10.0, (1,), "talk/agent_7"),  # a sub-agent's times start with it, its ids are shared
        (20.0, (1, 2, 3), "talk"),
        (40.0, (1, 9), "talk/agent_7"),
    ]


def test_sessions_of_a_folder_do_not_share_ids(write: Write, tmp_path: Path) -> None:
    write(SESSION, name="a.json")
    write(SESSION, name="b.json.gz", zipped=True)
    found = list(read_trace(tmp_path))
    assert [r.arrival_s for r in found] == [0.0, 0.0, 10.0, 10.0, 20.0, 20.0, 40.0, 40.0]
    ids = [
        {i for r in found for i in r.hash_ids if i // SESSION_IDS == number} for number in (0, 1)
    ]
    assert ids[0] == {1, 2, 3, 9}
    assert ids[1] == {SESSION_IDS + i for i in ids[0]}


BAD_LINES: list[tuple[Any, str | None]] = [
    ('{"timestamp": 1', "not JSON"),
    ("[1, 2]", "expected a JSON object, got list"),
    ('{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "NaN is no"),
    ('{"timestamp": 1, "timestamp": 2, "input_length": 1}', "key 'timestamp' appears twice"),
    ({**GOOD, "timestamp": -1}, "timestamp must be between 0 and"),
    ({**GOOD, "timestamp": 1e300}, "timestamp must be between 0 and"),
    ({**GOOD, "timestamp": "now"}, "timestamp must be a number, got 'now'"),
    ({**GOOD, "input_length": 0}, "input_length must be between 1 and"),
    ({**GOOD, "input_length": 10**50}, "got an integer of 167 bits"),
    ({**GOOD, "input_length": 1030.0}, "input_length must be an integer, got 1030.0"),
    ({**GOOD, "input_length": True}, "input_length must be an integer, got True"),
    ({**GOOD, "output_length": -3}, "output_length must be between 0 and"),
    ({**GOOD, "hash_ids": [0, 1]}, None),
    ({**GOOD, "hash_ids": [0]}, "hash_ids must hold 2 or 3 ids for 1030 tokens in blocks of 512"),
    ({**GOOD, "hash_ids": [0, 1, 2, 3]}, "hash_ids must hold 2 or 3 ids"),
    ({**GOOD, "hash_ids": [0, 1, 1]}, "hash_ids holds 1 twice"),
    (
        {**GOOD, "hash_ids": [0, -1, 2]},
        "must hold integers from 0 to 18446744073709551615",
    ),
    ({**GOOD, "hash_ids": [0, 2**64, 2]}, "got 18446744073709551616"),
    ({**GOOD, "hash_ids": [0, 1.0, 2]}, "got 1.0"),
    ({**GOOD, "hash_ids": None}, "hash_ids must be a list, got NoneType"),
    ({"timestamp": 1, "input_length": 3, "output_length": 3}, "hash_ids is missing"),
    ({**GOOD, "timestamp": 1499}, "arrives at 1.499 s, before the request above"),
    ("[" * 100_000, "not JSON|nested too deeply"),
    ('{"timestamp": ' + "9" * 5000 + "}", "integers? "),
    (b"\xff\xfe\x00", "not JSON|not UTF-8"),
]


@pytest.mark.parametrize(("line", "complaint"), BAD_LINES)
def test_a_bad_line_is_named_or_skipped(write: Write, line: object, complaint: str | None) -> None:
    path = write(GOOD, line, GOOD)
    if complaint is None:  # without its partial last block a request is as good
        assert len(list(read_trace(path))) == 3
        return
    with pytest.raises(TraceError, match=complaint) as raised:
        list(read_trace(path))
    assert str(raised.value).startswith(f"{path}:2: ")
    assert len(str(raised.value)) < 400
    trace = read_trace(path, skip_bad=True)
    assert len(list(trace)) == 2
    assert trace.skipped == 1
    assert trace.problems == [str(raised.value)]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ((), "the file is empty"),
        (("", "  "), "the file is empty"),
        (("hello world",), "neither mooncake, bailian, azure"),
        (("TIMESTAMP,ContextTokens,GeneratedTokens",), "no request in it"),
        (("1,2,3",), "neither"),
        (("3,4", "3"), ":2: expected 2 values"),
        (("3,4", "x,4"), ":2: prompt tokens must be an integer, got 'x'"),
        (("3,4", "-3,4"), ":2: prompt tokens must be between 1"),
        (("TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,2"), ":2: TIMESTAMP must be"),
        (("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16,1"), ":2: expected 3 values"),
        (('{"requests": 3, "block_size": 64}',), "requests must be a list, got int"),
        (('{"requests": [3], "block_size": 64}',), r"requests\[0\] must be an object"),
        (('{"requests": [{"t": 0}], "block_size": 64}',), r"requests\[0\]: in is missing"),
        (('{"requests": []}',), "block_size is missing"),
        (('{"requests": [], "block_size": 64}',), "no request in it"),
    ],
)
def test_a_bad_file_is_named(write: Write, lines: tuple[str, ...], complaint: str) -> None:
    path = write(*lines, name="file.json")
    with pytest.raises(TraceError, match=complaint) as raised:
        list(read_trace(path))
    assert str(raised.value).startswith(str(path))
    assert str(raised.value).count(str(path)) == 1


def test_a_session_that_nests_for_ever(write: Write) -> None:
    inner: dict[str, Any] = {"t": 0, "requests": []}
    for _ in range(30):
        inner = {"t": 0, "requests": [inner]}
    with pytest.raises(TraceError, match="nested more than 16 deep"):
        list(read_trace(write({"block_size": 64, "requests": [inner]}, name="s.json")))


def test_a_missing_file_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match=r"a folder without \.json files"):
        read_trace(tmp_path)


def test_gzip_that_is_cut_short(write: Write) -> None:
    path = write(*[{**GOOD, "timestamp": i} for i in range(5_000)], zipped=True)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(TraceError, match=r"trace\.jsonl:\d+: broken gzip data"):
        list(read_trace(path))
    trace = read_trace(path, skip_bad=True)
    assert len(list(trace)) > 100
    assert trace.skipped == 1


def _peak_bytes(act: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("zipped", [False, True])
def test_a_line_of_100_mb_takes_bounded_memory(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "long.jsonl"
    with gzip.open(path, "wb") if zipped else path.open("wb") as file:
        file.write(json.dumps(GOOD).encode() + b"\n" + b'{"timestamp": "')
        for _ in range(40 if zipped else 100):
            file.write(b"x" * 2**20)
        file.write(b"\n" + json.dumps(GOOD).encode() + b"\n")
    with pytest.raises(TraceError, match=r":2: a line of over 32 MiB"):
        list(read_trace(path))
    trace = read_trace(path, skip_bad=True)

    def read() -> None:
        assert len(list(trace)) == 2

    assert _peak_bytes(read) < 3 * MOST_LINE_BYTES
    assert trace.skipped == 1


def test_a_session_that_unzips_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apclab.traces.lines.MOST_FILE_BYTES", 2**20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"requests": [' + b" " * 2**26))
    assert path.stat().st_size < 2**17
    with pytest.raises(TraceError, match="too large for one session"):
        read_trace(path)


def test_reading_is_a_stream(write: Write) -> None:
    path = write(*[{**GOOD, "timestamp": i} for i in range(6_000)])

    def read() -> None:
        assert sum(1 for _ in read_trace(path)) == 6_000

    assert path.stat().st_size > 5e5
    assert _peak_bytes(read) < 2e5


def test_limit_stops_before_the_bad_line(write: Write) -> None:
    assert len(list(read_trace(write(GOOD, GOOD, "bad"), limit=2))) == 2


def test_bad_arguments_are_named(write: Write) -> None:
    path = write(GOOD)
    with pytest.raises(ValueError, match=r"format must be one of auto, mooncake, .*, got 'csv'"):
        read_trace(path, format="csv")
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        read_trace(path, block_size=0)
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        read_trace(path, limit=0)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=300), st.integers(0, 120), st.booleans())
def test_no_bytes_lead_to_another_error(
    tmp_path: Path, noise: bytes, at: int, skip_bad: bool
) -> None:
    """Whatever stands in a file, it is read or refused with a TraceError."""
    text = json.dumps(GOOD).encode() + b"\n"
    path = tmp_path / "noise"
    path.write_bytes((text + text[:at] + noise + text[at:] + text)[: 500 if skip_bad else None])
    try:
        for request in read_trace(path, skip_bad=skip_bad):
            assert request.input_len >= 1
    except TraceError:
        pass


def test_generated_traffic_hits_what_was_asked() -> None:
    from apclab.replay import replay, stream_of

    for wanted in (0.0, 0.3, 0.6):
        requests = list(generate(1500, cache_hit=wanted, groups=50, input_len=500, seed=3))
        stream = stream_of(requests, 16)
        rate = replay(stream, policies=["lru"], capacities=[])["hit_rate"].item()
        # the controller is within a block of its target at each request
        assert rate == pytest.approx(wanted, abs=2e-3)


def test_generated_traffic_is_zipf_and_reproducible() -> None:
    a, b, c = (list(generate(400, groups=20, zipf=1.5, seed=seed)) for seed in (1, 1, 2))
    assert a == b != c
    heads = [request.hash_ids[0] for request in a]
    counts = sorted((heads.count(head) for head in set(heads)), reverse=True)
    assert counts[0] > 4 * counts[4]
    assert all(x.arrival_s <= y.arrival_s for x, y in pairwise(a))


def test_a_written_trace_reads_the_same(tmp_path: Path) -> None:
    requests = list(generate(50, input_len=100, block_size=32))
    assert write_trace(tmp_path / "t.jsonl", requests, 32) == 50
    trace = read_trace(tmp_path / "t.jsonl")
    assert isinstance(trace, Trace)
    assert trace.block_size == 32
    read = list(trace)
    assert [r[1:] for r in read] == [r[1:] for r in requests]
    assert [r.arrival_s for r in read] == pytest.approx([r.arrival_s for r in requests], abs=1e-6)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"requests": 0}, "requests must be at least 1, got 0"),
        ({"cache_hit": 1.1}, "cache_hit must be between 0 and 1, got 1.1"),
        ({"input_len": 8}, "input_len must be at least block_size, 16, got 8"),
        ({"zipf": -1}, "zipf must be between 0 and 10, got -1"),
        ({"rate_per_s": 0}, "rate_per_s must be above 0, got 0"),
        ({"groups": 0}, "groups must be at least 1, got 0"),
    ],
)
def test_the_generator_names_bad_arguments(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        generate(**{"requests": 5, **change})
