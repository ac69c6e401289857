"""Prefill with a cached prefix on the CPU, compiled by numba: measured; the truth is elsewhere.

New tokens attend to cached blocks and causally to themselves: `products` whose rows are tokens.
"""

from typing import Any

import numpy as np

from apclab_kernels.cpu import products
from apclab_kernels.cpu.spans import Sight
from apclab_kernels.layout import Elements, Int32


def bind(
    query: Elements,
    key_cache: Elements,
    value_cache: Elements,
    block_tables: Int32,
    seq_lens: Int32,
    query_start_loc: Int32,
    out: Elements,
    lse: Elements,
    *,
    scale: float,
    layout: str = "NHD",
    order: str = "request",
) -> tuple[Any, ...]:
    """Arguments for `run`: everything that need not be done again at each call.

    Shapes and dtypes as in `reference.paged_attention_prefill`; all arrays C-contiguous. `out` has
    the dtype of the query, lse is float32 [num_tokens, num_heads].
    """
    first_sees = seq_lens - np.diff(query_start_loc) + 1
    tokens = np.arange(len(query), dtype=np.int32)
    return products.bind(
        query, key_cache, value_cache,
        Sight(block_tables, seq_lens, first_sees, tokens, query_start_loc),
        products.results(out, lse, len(seq_lens)), scale=scale, layout=layout, order=order,
    )  # fmt: skip


run = products.run
