"""The bandwidth probes read what they say they read."""

from typing import Any

import numpy as np
import pytest
from apclab_kernels.cpu import stream as cpu_stream

from tests.kernel_cases import DTYPES, Case


def test_stream_counts_whole_lines_of_every_thread() -> None:
    words = np.zeros(100_000, np.float32)
    arguments = cpu_stream.bind_stream(words, passes=3)
    read = cpu_stream.bytes_read(arguments)
    assert 0.95 * words.nbytes * 3 <= read <= words.nbytes * 3


def test_stream_reads_every_word() -> None:
    # one word differs from the rest: an odd number of passes leaves exactly its bits in the xor
    words = np.zeros(2**14, np.float32)
    for at in (0, 5000, 2**14 - 1):
        words[at] = 1.5
        arguments = cpu_stream.bind_stream(words, passes=3)
        cpu_stream.stream(arguments)
        seen = np.bitwise_xor.reduce(arguments[-1].view(np.uint32))
        assert seen == np.float32(1.5).view(np.uint32)
        words[at] = 0


def checksum(arrays: dict[str, Any], layout: Any, order: Any) -> int:
    arguments = cpu_stream.bind_touch(
        arrays["key_cache"], arrays["value_cache"], arrays["block_tables"], arrays["seq_lens"],
        layout=layout, order=order,
    )  # fmt: skip
    arguments[-1][:] = 0
    cpu_stream.touch(arguments)
    return int(np.bitwise_xor.reduce(arguments[-1].view(np.uint32)))


@pytest.mark.parametrize("order", ["request", "head"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_touch_reads_exactly_the_rows_of_the_tables(dtype: str, layout: str, order: str) -> None:
    # each row holds one distinct word and zeros, so the xor of all words read is known
    case = Case(dtype=dtype, layout=layout, seq_lens=(1, 63, 300, 8), num_heads=3, num_kv_heads=3)
    arrays = case.arrays()
    expected = 0
    for name in ("key_cache", "value_cache"):
        cache = arrays[name]
        cache[:] = 0
        words = cache.view(np.uint32)
        rng = np.random.default_rng(1)
        # lane 0 is what a task reports
        words[..., 0] = rng.integers(1, 2**30, words.shape[:-1])
        by_token = words[..., 0] if layout == "NHD" else words[..., 0].swapaxes(1, 2)
        for row, n in zip(arrays["block_tables"], arrays["seq_lens"], strict=True):
            tokens = by_token[row].reshape(-1, case.num_kv_heads)[:n]
            expected ^= int(np.bitwise_xor.reduce(tokens, axis=None))
    assert checksum(arrays, layout, order) == expected


def test_a_row_that_is_no_whole_line_is_refused() -> None:
    arrays = Case(head_size=20).arrays()
    with pytest.raises(ValueError, match="multiple of 64 bytes, got 80"):
        checksum(arrays, "NHD", "head")
