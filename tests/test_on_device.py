"""Float64 in torch is the NumPy reference: results, bounds, verdicts; and it needs no ml_dtypes."""

from typing import Any

import numpy as np
import pytest
from apclab_kernels.reference import paged_attention_decode

from apclab.attention import Launch, as_torch, compare, compare_on_device, dtype_of, plan
from apclab.attention.on_device import attend

torch = pytest.importorskip("torch")


def step(dtype: str, layout: str, *, num_heads: int = 6, num_kv_heads: int = 2) -> dict[str, Any]:
    """Odd lengths, one of them 0, permuted ids."""
    rng = np.random.default_rng(1)
    lens = np.array([63, 1, 0, 48, 37], np.int32)
    shape = [24, 16, num_kv_heads, 32] if layout == "NHD" else [24, num_kv_heads, 16, 32]
    cast = dtype_of(dtype)
    return {
        "query": rng.standard_normal((5, num_heads, 32)).astype(cast),
        "key_cache": rng.standard_normal(shape).astype(cast),
        "value_cache": rng.standard_normal(shape).astype(cast),
        "block_tables": rng.permutation(24)[:20].reshape(5, 4).astype(np.int32),
        "seq_lens": lens,
    }


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_it_is_the_reference(dtype: str, layout: str) -> None:
    arrays = step(dtype, layout)
    truth = paged_attention_decode(**arrays, layout=layout)
    there = {name: as_torch(array) for name, array in arrays.items()}
    for request, seq_len in enumerate(arrays["seq_lens"].tolist()):
        found = attend(
            there["query"][request], there["key_cache"], there["value_cache"],
            there["block_tables"][request], seq_len, torch.arange(6), scale=32**-0.5,
            layout=layout,
        )  # fmt: skip
        for name in found._fields:
            np.testing.assert_allclose(getattr(found, name), getattr(truth, name)[request], 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_verdicts_agree(dtype: str) -> None:
    arrays = step(dtype, "NHD")
    launch = plan(**arrays, backend="cpu")
    launch()
    there = {name: as_torch(array) for name, array in arrays.items()}
    moved = Launch(launch.act, "cpu", "NHD", "request", as_torch(launch.out))
    here, device = compare(launch, **arrays), compare_on_device(moved, **there)
    assert here.ok
    assert device.checked == "all pairs, float64 on cpu"
    assert device[:2] == pytest.approx(here[:2], rel=1e-6)
    sample = compare_on_device(moved, **there, pairs=7)
    assert sample.checked == "sample of 7 of 30 pairs, float64 on cpu"
    assert sample.ok


@pytest.mark.parametrize("wrong", [0.5, float("nan"), float("inf")])
def test_one_wrong_element_is_found(wrong: float) -> None:
    arrays = step("float32", "NHD")
    launch = plan(**arrays, backend="reference")
    launch()
    there = {name: as_torch(array) for name, array in arrays.items()}
    launch.out[3, 4, 5] += wrong
    moved = Launch(launch.act, "reference", "NHD", "request", as_torch(launch.out))
    assert not compare_on_device(moved, **there).ok
    # a pair that is right must not make up for one that is not a number
    assert not compare(launch, **arrays).ok
