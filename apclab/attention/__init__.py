"""The door to the kernels: checks arguments, imports the backend that was named, binds a launch.

It holds no kernel and no clock. A backend that cannot run here is an error that says why.
"""

from apclab_kernels.reference import ROUNDOFF
from apclab_kernels.runs import Rates, find_runs

from apclab.attention.cascade import advise
from apclab.attention.comparison import Comparison, compare
from apclab.attention.compiled import compile_kernels
from apclab.attention.interpreted import interpreter, plan_interpreted
from apclab.attention.launch import (
    BACKENDS,
    DTYPES,
    LAYOUTS,
    ORDERS,
    Launch,
    Unavailable,
    dtype_of,
    kernel_cache_note,
    require,
    resolve,
)
from apclab.attention.on_device import compare_on_device
from apclab.attention.plan import paged_attention_decode, plan
from apclab.attention.prefill import paged_attention_prefill, plan_prefill
from apclab.attention.probes import plan_split, plan_stream, plan_touch, set_threads
from apclab.attention.sources import kernel_sha256
from apclab.attention.tensors import as_torch, place, to_host

__all__ = [
    "BACKENDS",
    "DTYPES",
    "LAYOUTS",
    "ORDERS",
    "ROUNDOFF",
    "Comparison",
    "Launch",
    "Rates",
    "Unavailable",
    "advise",
    "as_torch",
    "compare",
    "compare_on_device",
    "compile_kernels",
    "dtype_of",
    "find_runs",
    "interpreter",
    "kernel_cache_note",
    "kernel_sha256",
    "paged_attention_decode",
    "paged_attention_prefill",
    "place",
    "plan",
    "plan_interpreted",
    "plan_prefill",
    "plan_split",
    "plan_stream",
    "plan_touch",
    "require",
    "resolve",
    "set_threads",
    "to_host",
]
