"""Peers: the same tables and numbers for all, each checked, a failing one told and passed over."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apclab import bench, data_dir
from apclab.attention import Comparison, Launch, compare
from apclab.bench import buffers, memory, peers, probes
from apclab.bench.bound import Bound, fill
from apclab.bench.how import How
from apclab.bench.peers import measure, openvino_cpu, ours, record, torch_peers, vllm_cpu
from apclab.bench.peers.kernel import Candidate, Kernel, layers_of
from apclab.bench.peers.setting import Setting, with_blocks_of
from apclab.bench.record import speed
from apclab.cli import peers as command
from apclab.clock import Cancelled
from apclab.results import Record, append, load, validate
from apclab.specs import ModelShape

GROUPED = ModelShape("small", 1, 4, 2, 64)
SMALL = Setting(GROUPED, "float32", shared=3, batch=5, seq_len=100)
OURS = Candidate("apclab", ("apclab", "numba"), 16, ours.bind_paged)
GATHER = Candidate("torch gather + SDPA", ("torch",), 16, torch_peers.bind_gather)


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> Any:
    tiny = {"name": "test", "cores": 2, "l2_bytes": 2**18, "llc_bytes": 2**20, "llc_known": True}
    for module in (memory, buffers, probes, bench.record):
        monkeypatch.setattr(module, "machine", lambda _kind: tiny)
    monkeypatch.setattr(probes, "_known", {})
    yield
    buffers.release()


def filled(setting: Setting, layers: int = 4) -> Bound:
    """A setting's step in memory, without launches."""
    how = How(("shared",), "cpu", setting.dtype, "NHD", "request", pairs=None).resolved()
    step = setting.step()
    blocks = step.shared.sharing().distinct_blocks + 1
    size = layers * blocks * 16 * setting.shape.token_bytes(setting.dtype)
    return fill(step, setting.shape, how, memory.Plan(layers, blocks, size, 0, "cold", []))


def measured(*who: Candidate, setting: Setting = SMALL, **how: Any) -> list[Record]:
    """Records of these candidates, each of them valid and good for JSON."""
    made = peers.measure_peers(setting, who=who, budget_s=0.0, pairs=None, **how)
    for one in made:
        validate(one)
        json.dumps(one, allow_nan=False)
    return made


@pytest.mark.parametrize(("shared", "distinct"), [(0, 64 * 19), (9, 9 + 64 * 10), (18, 18 + 64)])
def test_shares_are_those_of_a_real_pool(shared: int, distinct: int) -> None:
    setting = Setting(shared=shared)
    table = setting.step().shared
    readers = table.sharing().readers
    assert table.block_tables.shape == (64, 19)
    assert (readers == 64).sum() == 64 * shared
    assert (readers == 1).sum() == 64 * (19 - shared)
    assert table.sharing().distinct_blocks == distinct
    assert (table.seq_lens == 304).all()


@pytest.mark.parametrize("block_size", [32, 256])
@pytest.mark.parametrize("shared", [0, 9, 16])
def test_larger_blocks_read_the_same_bytes(shared: int, block_size: int) -> None:
    setting = Setting(shared=shared)
    narrow, wide = setting.step().shared.sharing(), setting.table(block_size).sharing()
    assert narrow.logical_tokens == wide.logical_tokens == 64 * 304
    # 9 blocks of 16 end inside the fifth of 32: half of the requests share it, half do without
    assert wide.distinct_tokens == pytest.approx(narrow.distinct_tokens, rel=0.011)
    if shared != 9:
        assert wide.distinct_tokens == narrow.distinct_tokens


def test_half_of_a_block_is_shared_by_half_of_the_requests() -> None:
    table = Setting(shared=9).table(32)
    readers = table.sharing().readers[:, :6]
    assert readers[:, :4].tolist() == [[64] * 4] * 64
    assert readers[:, 4].tolist() == [32] * 32 + [1] * 32
    assert readers[:, 5].tolist() == [1] * 64


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("shared", [0, 2, 6])
def test_blocks_of_32_hold_the_same_tokens(shared: int, layout: str) -> None:
    setting = Setting(GROUPED, "float32", shared=shared, batch=5, seq_len=100)
    narrow = filled(setting)
    wide = with_blocks_of(narrow, setting, 32)
    assert wide.tables["shared"].block_tables.shape == (5, 4)
    assert (len(wide.keys), wide.step.block_size) == (len(narrow.keys), 32)
    ids, wide_ids = (bound.tables["shared"].block_tables for bound in (narrow, wide))
    for layer, larger in zip(layers_of(narrow), layers_of(wide, layout), strict=True):
        for one, other in zip(layer, larger, strict=True):
            if layout == "HND":
                other = other.swapaxes(1, 2)
            for row in range(5):
                a = one[ids[row]].reshape(-1, 2, 64)[:100]
                b = other[wide_ids[row]].reshape(-1, 2, 64)[:100]
                assert np.array_equal(a, b)


def test_a_missing_peer_is_told_and_the_rest_goes_on() -> None:
    def bind(_problem: Bound) -> list[Kernel]:
        import no_such_peer  # type: ignore[import-not-found]

        return list(no_such_peer.kernels())

    found = measured(Candidate("absent", ("no-such-peer",), 32, bind), OURS)
    absent = next(r for r in found if r["kernel"]["name"] == "absent")
    assert (absent["status"], absent["p50_us"]) == ("failed", None)
    assert absent["reason"] == "ModuleNotFoundError: No module named 'no_such_peer'"
    assert absent["kernel"]["versions"] == {"no-such-peer": None}
    assert [r["status"] for r in found].count("timed") == 4  # two layouts, two orders


@pytest.mark.parametrize(
    ("bind", "name"), [(vllm_cpu.bind, "vllm"), (openvino_cpu.bind, "openvino")]
)
def test_peers_of_the_cpu_are_right_or_missing(
    bind: Callable[[Bound], list[Kernel]], name: str
) -> None:
    (found,) = measured(Candidate(name, (name,), 32, bind), setting=SMALL)
    if find_spec(name) is None:
        assert found["status"] == "failed"
        assert name in found["reason"]
    else:
        assert (found["status"], found["reason"]) == ("timed", None)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("heads", [2, 4])
def test_gather_and_sdpa_are_right(dtype: str, heads: int) -> None:
    setting = Setting(ModelShape("x", 1, heads, 2, 64), dtype, shared=2, batch=3, seq_len=63)
    (found,) = measured(GATHER, setting=setting, threads=1)
    assert (found["status"], found["checked"]) == ("timed", "all pairs")
    assert found["max_error"] <= found["error_bound"]
    assert found["kernel"]["versions"]["torch"]
    assert len(found["samples_us"]) >= 5
    assert found["distinct_bytes"] == (32 + 3 * 31) * 2 * 64 * 2 * (4 if dtype == "float32" else 2)


@pytest.mark.filterwarnings("ignore")  # the compiler warns of its own ways
@pytest.mark.slow  # a C++ compiler runs for half a minute
def test_flex_attention_is_right_or_says_why_not() -> None:
    setting = Setting(GROUPED, "bfloat16", shared=2, batch=3, seq_len=63)
    (found,) = measured(
        Candidate("torch FlexAttention", ("torch",), 16, torch_peers.bind_flex), setting=setting
    )
    if shutil.which("g++") is None:
        assert found["status"] == "failed"
    else:
        assert (found["status"], found["reason"]) == ("timed", None)


@pytest.mark.parametrize("spoil", [1.01, float("nan")])
def test_wrong_numbers_have_no_speed(spoil: float) -> None:
    def bind(problem: Bound) -> list[Kernel]:
        (kernel,) = torch_peers.bind_gather(problem)
        launch, act = kernel.launches[0], kernel.launches[0].act

        def wrong() -> None:
            act()
            launch.out[2, 1, 5] *= spoil

        object.__setattr__(launch, "act", wrong)
        return [kernel._replace(name="wrong")]

    found = measured(Candidate("wrong", ("torch",), 16, bind), GATHER)
    by_name = {r["kernel"]["name"]: r for r in found}
    assert by_name["wrong"]["status"] == "wrong"
    assert "from float64, its bound is" in by_name["wrong"]["reason"]
    assert by_name["wrong"]["samples_us"] is None
    assert by_name["torch gather + SDPA"]["status"] == "timed"


def test_a_kernel_that_raises_when_it_runs_is_told() -> None:
    def bind(problem: Bound) -> list[Kernel]:
        (kernel,) = torch_peers.bind_gather(problem)

        def full() -> None:
            raise MemoryError("Exception from there:\nat here:\n\nasked for 25 GB\n")

        object.__setattr__(kernel.launches[0], "act", full)
        return [kernel]

    (found,) = measured(Candidate("full", (), 16, bind))
    assert found["status"] == "failed"
    assert found["reason"] == "MemoryError: Exception from there: ... asked for 25 GB"


def test_a_cascade_is_timed_and_names_its_own_kernel() -> None:
    (found,) = measured(Candidate("apclab cascade", (), 16, ours.bind_cascade))
    assert found["kernel"]["ours"]
    assert (found["status"], found["reason"]) == ("timed", None)
    paged = measured(OURS)[0]
    assert len({found["kernel_sha256"], paged["kernel_sha256"], None}) == 3


def test_kernels_of_one_pool_begin_at_different_layers() -> None:
    bound = filled(SMALL, layers=8)
    kernels = {kernel.name: kernel.launches for kernel in ours.bind_paged(bound)}
    calls = replace(bound, launches=kernels).timed()
    firsts = [
        [launch.act for launch in launches].index(calls[name][0])
        for name, launches in kernels.items()
    ]
    assert firsts == [0, 2, 4, 6], "as far from each other as eight layers allow"
    assert all(len(set(acts)) == 8 for acts in calls.values())


def test_every_layer_holds_its_own_numbers() -> None:
    bound = filled(SMALL)
    (kernel,) = torch_peers.bind_gather(bound)
    table = bound.tables["shared"]
    for launch, layer in zip(kernel.launches, layers_of(bound), strict=True):
        launch()
        found = compare(launch, bound.query, *layer, table.block_tables, table.seq_lens)
        assert found.ok
    kernel.launches[0]()
    assert not compare(
        kernel.launches[0], bound.query, *layer, table.block_tables, table.seq_lens
    ).ok, "the first launch against the last layer"


def test_copies_of_all_layouts_are_planned() -> None:
    step = SMALL.step()
    how = How(("shared",), "cpu", SMALL.dtype, "NHD", "request").resolved()
    pool = measure._needs(step, SMALL, how, (GATHER,))
    every = measure._needs(step, SMALL, how, peers.candidates())
    # ours in HND, vLLM's two, OpenVINO's
    assert (pool.copies, every.copies) == (1, 5)
    assert every.layer == 5 * pool.layer == 5 * pool.pool
    with pytest.raises(bench.OutOfMemory, match=r"bytes x 5 layouts = .* for K and V of one layer"):
        peers.measure_peers(SMALL, memory_limit=every.layer)


def test_a_peer_has_the_stamp_and_the_step_of_other_records() -> None:
    (found,) = measured(GATHER)
    assert found["device"]["ladder"]
    assert found["environment"]["first_call_s"].keys() == {"torch gather + SDPA"}
    assert found["environment"]["cpu_share"] > 0
    assert found["workload"]["realised_hit"] == 48 / 99
    assert (found["l2"], found["step"], found["kernel_sha256"]) == ("cold", "first", None)


def test_a_stop_keeps_what_was_timed() -> None:
    told: list[str] = []
    with pytest.raises(Cancelled) as stopped:
        peers.measure_peers(
            SMALL, who=(OURS, GATHER), budget_s=60.0, pairs=8,
            progress=lambda _part, what: told.append(what),
            cancelled=lambda: told.count("timing") > 4,
        )  # fmt: skip
    assert told[:2] == ["reading the machine's caches and memory", "filling the KV pool"]
    assert len(stopped.value.records) >= 4
    for one in stopped.value.records:
        validate(one)
        assert one["notes"][-1] == "stopped before its time"


def test_settings_are_checked() -> None:
    assert len(peers.settings()) == 12
    with pytest.raises(ValueError, match="shapes must be some of MHA 40, GQA 32/8, got 'MQA'"):
        peers.settings(shapes=("MQA",))
    with pytest.raises(ValueError, match="a block of its own of 19, got 19"):
        peers.settings(shares=(19,))


def made_up(name: str, p50_us: float | None, *, is_ours: bool = False, shared: int = 9) -> Record:
    """A valid record with a time that a test chose."""
    bound = filled(Setting(GROUPED, "float32", shared=3, batch=2, seq_len=100))
    launch = Launch(lambda: None, "cpu")
    kernel = Kernel(name, "NHD", [launch], ours=is_ours)
    base = record.make_record(OURS, kernel, bound, probes.Ladder([], [], None), SMALL)
    base["share"] |= {"shared": shared, "entries": 19}
    if p50_us is None:
        return base | record.failed(ImportError("No module named 'x'"))
    right = record.checked(Comparison(1e-7, 1e-6, "all"))
    return base | right | speed(bound, "shared", [p50_us / 1e6])


def test_marks_are_ours_against_the_fastest_peer() -> None:
    best = "apclab NHD, order request"
    found = [
        made_up("apclab NHD, order head", 30, is_ours=True),
        made_up(best, 20, is_ours=True),
        made_up("apclab cascade, NHD", 1, is_ours=True),
        *(made_up("fast", 99), made_up("slow", 50), made_up("gone", None)),
        made_up("fast", 15),  # measured again: the last counts
        *(made_up(best, 10, is_ours=True, shared=18), made_up("fast", 8, shared=18)),
        *(made_up(best, 10, is_ours=True, shared=0), made_up("gone", None, shared=0)),
    ]
    nine, eighteen, none = peers.marks(found)
    assert (nine.ours, nine.peer) == ("apclab NHD, order request", "fast")
    assert nine.ratio == pytest.approx(0.75)
    assert (nine.bar, nine.met) == (1.0, False)
    assert eighteen.ratio == pytest.approx(0.8)
    assert (eighteen.bar, eighteen.met) == (0.7, True)
    assert (none.peer, none.ratio, none.met) == ("-", None, None)
    told = [(row.record["kernel"]["name"], row.ratio) for row in peers.rows(found)[:5]]
    assert [name for name, _ in told] == [
        "apclab cascade, NHD", "fast", "apclab NHD, order request", "slow", "gone",
    ]  # fmt: skip
    assert [ratio for _, ratio in told] == [
        pytest.approx(0.05), pytest.approx(0.75), 1.0, pytest.approx(2.5), None,
    ]  # fmt: skip


def test_the_file_and_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "peers.jsonl"
    found = [made_up("apclab NHD, order head", 20, is_ours=True), made_up("fast", 15),
             made_up("gone", None)]  # fmt: skip
    append(file, found)
    assert load(file, kind="peer") == (found, [])
    # a measurement's reader passes over them
    assert load(file)[0] == []
    command.peers(report=file)
    said = " ".join(capsys.readouterr().out.split())
    assert "fast │ 0.015" in said
    assert "gone: failed: ImportError" in said
    assert "0.75 │ >= 1 │ MISSED" in said


def test_the_committed_records_load_and_meet_their_marks() -> None:
    found, problems = load(data_dir() / "peers", kind="peer")
    assert (len(found), problems) == (106, [])
    assert all(mark.met for mark in peers.marks(found))
    # the fields that the code of those commits ran are those of today's settings
    for one in found:
        setting = Setting(shared=one["share"]["shared"])
        work = setting.step().workload
        assert work is not None
        assert {name: one["workload"][name] for name in vars(work)} == vars(work)


def test_the_command_measures_and_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "settings", lambda *_asked: [SMALL])
    file = tmp_path / "new" / "peers.jsonl"
    command.peers(only=["gather", "OpenVINO"], threads=1, budget=0.0, out=file)
    found, problems = load(file, kind="peer")
    assert problems == []
    assert {r["kernel"]["name"].partition(",")[0] for r in found} == {
        "torch gather + SDPA", "OpenVINO",
    }  # fmt: skip
    assert "appended to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "wrong"}, "reason must be null exactly when timed"),
        ({"samples_us": None}, "samples_us must be there exactly when timed"),
        ({"max_error": 1.0}, "a wrong result has no speed"),
        ({"error_bound": None}, "error_bound must be there when timed"),
        ({"p20_us": 99.0}, "must rise within the samples"),
        ({"gb_per_s": 1e6}, "gb_per_s must be logical_bytes / p50_us"),
        ({"share": {"shared": -1, "entries": 1}}, "share.shared must be"),
        ({"colour": "red"}, "does not know, in 'colour'"),
        ({"schema": "peer 1"}, "schema must be 1, got 'peer 1'"),
    ],
)
def test_a_bad_record_is_refused(change: dict[str, Any], words: str) -> None:
    good = made_up("fast", 10)
    validate(good)
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        validate(good | change)
