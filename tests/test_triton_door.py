"""The Triton backend through the door: interpreted in a process of its own, or on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernel_cases import DTYPES, Case, assert_exact, truth_of

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")

# what the interpreting process does: the door with host tensors, its check, the read probe
PROGRAM = """
import json, sys
import numpy as np, torch
from apclab import attention
from apclab.attention.tensors import as_torch
from apclab_kernels.triton import stream as triton_stream
from tests.kernel_cases import Case
said = {}
for dtype in ("float32", "float16", "bfloat16"):
    case = Case(dtype=dtype, seq_lens=(40, 1, 33), num_heads=4, num_kv_heads=2)
    arrays = {name: as_torch(array) for name, array in case.arrays().items()}
    launch = attention.plan(**arrays, backend="triton", order="head")
    launch.out[...] = float("nan")
    launch()
    said[dtype] = attention.compare(launch, **arrays)._asdict()
    launch.out[0, 1, 2] += 0.1
    said[dtype]["wrong is found"] = not attention.compare(launch, **arrays).ok
    shared = Case(dtype=dtype, seq_lens=(40, 36, 33), num_heads=4, num_kv_heads=2, shared_blocks=2)
    arrays = {name: as_torch(array) for name, array in shared.arrays().items()}
    launch = attention.plan(**arrays, backend="triton", cascade=True)
    launch.out[...] = float("nan")
    launch()
    found = attention.compare(launch, **arrays)
    said[dtype]["cascade"] = [launch.ran, found.ok, found.checked]
    # new tokens of the same requests: 3, 1 and 0
    query = torch.cat([arrays["query"][:1]] * 3 + [arrays["query"][1:2]])
    starts = torch.tensor([0, 3, 4, 4], dtype=torch.int32)
    new = {**arrays, "query": query, "query_start_loc": starts}
    launch = attention.plan_prefill(**new, backend="triton")
    launch.out[...] = float("nan")
    launch()
    found = attention.compare(launch, **new)
    said[dtype]["prefill"] = [found.ok, found.checked]
words = torch.arange(5 * triton_stream.PIECE, dtype=torch.int32).view(torch.float32)
bound = triton_stream.bind_stream(words, 3)
triton_stream.stream(bound)
said["seen"] = int(np.bitwise_xor.reduce(bound[1].numpy()))
said["expected"] = int(np.bitwise_xor.reduce(words.view(torch.int32).numpy()))
said["bytes"] = triton_stream.bytes_read(bound)
json.dump(said, sys.stdout)
"""


def test_interpreted_the_door_is_exact_and_the_probe_reads_every_word() -> None:
    root = Path(__file__).parent.parent
    environment = {
        **os.environ, "TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "1",
        "PYTHONPATH": os.pathsep.join((str(root), str(root / "kernels"))),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for dtype in DTYPES:
        assert said[dtype]["max_error"] <= said[dtype]["error_bound"]
        assert said[dtype]["checked"] == "all pairs"
        assert said[dtype]["wrong is found"]
        assert said[dtype]["cascade"] == ["cascade", True, "all pairs"]
        assert said[dtype]["prefill"] == [True, "all pairs"]
    # three passes leave the xor of one
    assert said["seen"] == said["expected"]
    assert said["bytes"] == 3 * 5 * 4096 * 4


@gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(
    "shape",
    [
        Case(num_heads=40, num_kv_heads=40, head_size=128, seq_lens=(300, 63, 1, 0, 310)),
        Case(num_heads=32, num_kv_heads=8, head_size=128, seq_lens=(2000, 5), block_size=32),
        Case(num_heads=8, num_kv_heads=1, head_size=96, seq_lens=(777,), block_size=7),
        Case(num_heads=2, num_kv_heads=2, head_size=256, seq_lens=(64, 65), block_size=1),
    ],
    ids=lambda c: f"{c.num_heads}/{c.num_kv_heads}x{c.head_size}",
)
def test_on_a_gpu_every_element_is_within_its_bound(shape: Case, layout: str, dtype: str) -> None:
    from apclab.attention import paged_attention_decode
    from apclab.attention.tensors import as_torch, to_host

    case = Case(**{**vars(shape), "dtype": dtype, "layout": layout})
    arrays = case.arrays()
    tensors: dict[str, Any] = {name: as_torch(a).cuda() for name, a in arrays.items()}
    for order in ("request", "head"):
        out = torch.full_like(tensors["query"], float("nan"))
        _, lse = paged_attention_decode(
            **tensors, layout=layout, backend="triton", order=order, out=out, return_lse=True
        )
        rounded = 0.0 if dtype == "float32" else 1.0
        assert_exact(
            to_host(out), to_host(lse), truth_of(case, arrays), dtype, rounded_weights=rounded
        )


@gpu
def test_on_a_gpu_both_cases_are_measured_cold_and_shared_reads_less() -> None:
    from apclab import bench
    from apclab.results import validate
    from apclab.workload import ISSUE_4860

    private, shared = bench.compare_decode(ISSUE_4860, backend="triton", dtype="float16")
    for record in (private, shared):
        validate(record)
        assert record["device"]["kind"] == "cuda"
        assert record["max_error"] <= record["error_bound"]
        assert record["environment"]["first_call_s"][record["case"]] > 0
    assert shared["distinct_bytes"] < private["distinct_bytes"] / 10
