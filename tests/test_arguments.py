"""What callers pass to public entry points: a wrong value is told by its name, not from inside."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apclab
from apclab import (
    attention,
    bench,
    blocks,
    decompose,
    engine,
    memory_model,
    specs,
    traces,
)
from apclab import sweep as sweeping
from apclab.clock import Cancelled
from apclab.engine.intake import workload_requests
from apclab.replay import Stream, lru_curve, replay, stream_of
from apclab.workload import Workload
from tests.sweep_points import product_of

RNG = np.random.default_rng(0)
CACHE = RNG.standard_normal((5, 16, 2, 16), np.float32)
STEP: dict[str, Any] = {
    "query": RNG.standard_normal((2, 4, 16), np.float32),
    "key_cache": CACHE,
    "value_cache": CACHE,
    "block_tables": np.array([[1, 2], [1, 3]], np.int32),
    "seq_lens": np.array([20, 18], np.int32),
    "backend": "reference",
}
PREFILL: dict[str, Any] = {**STEP, "query_start_loc": np.array([0, 1, 2], np.int32)}
SMALL = Workload(2, 20, 2)
# stops before anything is timed, where the arguments let it come so far
QUICK: dict[str, Any] = {"model": "opt-125m", "backend": "reference", "cancelled": lambda: True}
TABLE = blocks.BlockTable(STEP["block_tables"], STEP["seq_lens"], 16)


# entry point -> arguments with which it works, in milliseconds
ENTRY_POINTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "BlockPool": (apclab.BlockPool, {"num_blocks": 9}),
    "BlockPoolV0": (blocks.BlockPoolV0, {"num_blocks": 9}),
    "BlockTable": (
        apclab.BlockTable,
        {
            "block_tables": STEP["block_tables"],
            "seq_lens": np.array([5, 4], np.int32),
            "block_size": 16,
        },
    ),
    "Workload": (apclab.Workload, {}),
    "ModelShape": (
        specs.ModelShape,
        {"name": "m", "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "head_size": 8},
    ),
    "EngineConfig": (engine.EngineConfig, {}),
    "calibrate": (apclab.calibrate, QUICK),
    "compare_decode": (apclab.compare_decode, {"workload": SMALL, **QUICK}),
    "compare_tables": (bench.compare_tables, {"tables": TABLE, **QUICK}),
    "paged_attention_decode": (apclab.paged_attention_decode, STEP),
    "paged_attention_prefill": (apclab.paged_attention_prefill, PREFILL),
    "plan": (attention.plan, STEP),
    "plan_prefill": (attention.plan_prefill, PREFILL),
    "simulate": (apclab.simulate, {"requests": SMALL}),
    "simulate_point": (decompose.simulate_point, {"batch": 2, "input_len": 20, "output_len": 2}),
    "pool_blocks": (
        memory_model.pool_blocks,
        {"kv_gb": 1.0, "model": "opt-125m", "dtype": "float16", "block_size": 16},
    ),
    "workload_requests": (workload_requests, {"workload": SMALL}),
    "device_rates": (memory_model.device_rates, {"device": specs.device("A100-SXM4-80GB")}),
    "roofline_step": (
        memory_model.roofline_step,
        {
            "model": specs.model("opt-125m"),
            "rates": memory_model.device_rates(specs.device("A100-SXM4-80GB")),
        },
    ),
    "points_of": (sweeping.points_of, {"grid": {"a": [1]}}),
    "generate": (traces.generate, {"requests": 3}),
    "replay": (replay, {"trace": None}),
    "stream_of": (stream_of, {"requests": None, "block_size": 16}),
    "lru_curve": (lru_curve, {"stream": None}),
}
WRONG: dict[str, Any] = {
    "none": None, "five": 5, "zero": 0, "minus": -1, "huge": 10**30, "half": 0.5, "nan": math.nan,
    "inf": math.inf, "word": "nonsense", "empty": "", "bytes": b"x", "object": object(), "list": [],
    "mixed": [None, "a"], "dict": {}, "true": True, "array": np.zeros(3),
    "type": int, "complex": 1j,
}  # fmt: skip


def stream() -> Stream:
    return stream_of(traces.generate(5, groups=2, input_len=64, output_len=4), 16)


# what must be made anew, or first
MADE: dict[str, Callable[[], dict[str, Any]]] = {
    "replay": lambda: {"trace": stream()},
    "stream_of": lambda: {"requests": list(traces.generate(5, input_len=64)), "block_size": 16},
    "lru_curve": lambda: {"stream": stream()},
}
# what else the entry points say that they raise
ELSE = (MemoryError, Cancelled, attention.Unavailable, traces.TraceError)


def cases() -> list[Any]:
    return [
        pytest.param(name, argument, id=f"{name}-{argument}")
        for name, (function, _) in ENTRY_POINTS.items()
        for argument, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]


@pytest.mark.parametrize(("name", "argument"), cases())
def test_a_wrong_value_is_told_by_the_name_of_its_argument(name: str, argument: str) -> None:
    function, given = ENTRY_POINTS[name]
    told = []
    for value in WRONG.values():
        if argument in ("cancelled", "progress") and (value is None or callable(value)):
            continue  # right for it: a measurement would begin
        try:
            function(**{**given, **MADE.get(name, dict)(), argument: value})
        except ELSE:
            continue
        except (TypeError, ValueError) as error:
            told.append(str(error))
    assert told, "no value is wrong for it"
    assert [words for words in told if argument not in words or "\n" in words] == []


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_arguments_that_are_called_right_are(name: str) -> None:
    function, given = ENTRY_POINTS[name]
    try:
        function(**{**given, **MADE.get(name, dict)()})
    except Cancelled:
        assert "cancelled" in given


def test_every_public_name_is_asked() -> None:
    # no functions, those of files (below), and the panel, whose settings have tests of their own
    others = {"ISSUE_4860", "__version__", "data_dir", "load_results", "read_trace", "DecodeLab"}
    assert set(apclab.__all__) - others <= set(ENTRY_POINTS)


@pytest.mark.parametrize("function", [apclab.read_trace, apclab.load_results])
@pytest.mark.parametrize("value", [5, 0.5, object(), [], True])
def test_a_path_that_is_none_is_told(function: Callable[..., Any], value: object) -> None:
    with pytest.raises(TypeError, match="path must be a path"):
        function(value)


@pytest.mark.parametrize("argument", ["format", "block_size", "skip_bad", "limit"])
def test_an_option_of_a_trace_is_told(argument: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    traces.write_trace(path, traces.generate(3, input_len=64), 16)
    for value in ("nonsense", 0.5, object(), b"x"):
        with pytest.raises((TypeError, ValueError), match=f"{argument} must be"):
            apclab.read_trace(path, **{argument: value})


@pytest.mark.parametrize("argument", ["function", "grid", "path", "client", "scheduler", "check"])
def test_an_argument_of_a_sweep_is_told(argument: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "function": product_of,
        "grid": {"a": [1], "b": [1]},
        "path": tmp_path / "s.jsonl",
    }
    for value in (5, 0.5, object(), True):
        with pytest.raises(TypeError, match=f"{argument} must be"):
            sweeping.sweep(**{**given, argument: value})
    with pytest.raises(ValueError, match="path must be a file, got the folder"):
        sweeping.sweep(**{**given, "path": tmp_path})


@pytest.mark.parametrize("name", ["plan", "paged_attention_decode", "paged_attention_prefill"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_read_only_out_is_told(name: str, backend: str) -> None:
    function, given = ENTRY_POINTS[name]
    out = np.empty_like(STEP["query"])
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out must be an array that can be written"):
        function(**{**given, "backend": backend, "out": out})
