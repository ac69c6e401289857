"""OpenVINO's PagedAttention extension on the CPU: a model of that one operation, blocks of 32."""

from functools import partial
from typing import Any

import numpy as np

from apclab.attention import Launch
from apclab.bench.bound import Bound
from apclab.bench.peers.kernel import Kernel, Layer, layers_of, scale_of, table_of

BLOCK_SIZE = 32  # the CPU plugin accepts no other
_PRECISION = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def bind(bound: Bound) -> list[Kernel]:
    """One compiled model, one request a layer.

    The operation also stores the new token's key and value; it is given those that the cache
    holds already, so that the cache stays as it is (0.3 % of the bytes).

    Raises:
        ImportError: openvino is not installed.
    """
    import openvino

    shape, precision = bound.model, _PRECISION[bound.how.dtype]
    compiled = openvino.Core().compile_model(
        _model(bound, precision),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": bound.threads,
            "KV_CACHE_PRECISION": precision,
            "INFERENCE_PRECISION_HINT": precision,
        },
    )
    launches = []
    for layer in layers_of(bound, "HND"):
        request = compiled.create_infer_request()
        feed = _feed(bound, layer)
        for name, array in feed.items():
            request.set_tensor(name, _tensor(array))
        # float32 out, whatever the cache is
        out = np.full((len(bound.query), shape.num_heads * shape.head_size), np.nan, np.float32)
        request.set_output_tensor(openvino.Tensor(out, shared_memory=True))
        launches.append(
            Launch(
                partial(_infer, request, feed), "openvino", "HND", "request",
                out.reshape(bound.query.shape),
            )
        )  # fmt: skip
    return [Kernel(f"OpenVINO, block {BLOCK_SIZE}", "OpenVINO's", launches)]


def _infer(request: Any, _feed: dict[str, Any]) -> None:
    """Run; the arrays come along, so that they live as long as the launch."""
    request.infer()


def _model(bound: Bound, precision: str) -> Any:
    """The operation alone; its 28 inputs in order, those of unused features empty."""
    import openvino
    from openvino import opset13 as op

    shape, types = bound.model, openvino.Type
    cache = getattr(types, precision)
    inputs: dict[str, Any] = {}

    def given(name: str, kind: Any, dims: list[int]) -> Any:
        inputs[name] = op.parameter(openvino.PartialShape(dims), kind, name=name)
        inputs[name].get_output_tensor(0).set_names({name})
        return inputs[name]

    def empty(kind: Any) -> Any:
        return op.constant(np.zeros(0, kind))

    def number(value: Any) -> Any:
        return op.constant(np.array(value))

    none, zero = empty(np.int32), number(np.int32(0))
    heads, kv = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    arguments = [
        given("query", types.f32, [-1, heads]),
        given("key", types.f32, [-1, kv]),
        given("value", types.f32, [-1, kv]),
        given("key_cache", cache, [-1] * 4),
        given("value_cache", cache, [-1] * 4),
        given("past_lens", types.i32, [-1]),
        given("subsequence_begins", types.i32, [-1]),
        given("block_indices", types.i32, [-1]),
        given("block_indices_begins", types.i32, [-1]),
        number(np.float32(scale_of(bound))),
        zero,  # sliding window
        empty(np.float32),  # ALiBi slopes
        given("max_context_len", types.i32, []),
        op.constant(np.zeros(len(bound.query), np.int32)),  # score aggregation windows
        *(none, none, empty(np.float32)),  # rotation of cached keys
        *(empty(np.float32), zero, zero),  # XAttention
        empty(np.float32),  # sinks
        *(zero, none, none, none),  # adaptive eviction
        none,  # token types
        *(empty(np.uint8), none),  # query-query bias
    ]
    node = openvino.op._PagedAttentionExtension([argument.output(0) for argument in arguments])
    info = node.get_rt_info()
    for name in ("k", "v"):
        info[f"num_{name}_heads"] = shape.num_kv_heads
        info[f"{name}_head_size"] = shape.head_size
    return openvino.Model([node.output(0)], list(inputs.values()), "paged_attention")


def _feed(bound: Bound, layer: Layer) -> dict[str, Any]:
    """The model's inputs: queries, the new token as the cache holds it, caches, tables as CSR."""
    table, batch = table_of(bound), len(bound.query)
    csr, last = table.csr(), table.seq_lens - 1
    block = table.block_tables[np.arange(batch), last // table.block_size]
    new = [
        cache[block, :, last % table.block_size].reshape(batch, -1).astype(np.float32)
        for cache in layer
    ]
    return {
        "query": bound.query.reshape(batch, -1).astype(np.float32),
        "key": new[0],
        "value": new[1],
        "key_cache": layer.keys,
        "value_cache": layer.values,
        "past_lens": last.astype(np.int32),
        "subsequence_begins": np.arange(batch + 1, dtype=np.int32),
        "block_indices": csr.kv_indices,
        "block_indices_begins": csr.kv_indptr,
        "max_context_len": np.array(int(table.seq_lens.max()), np.int32),
    }


def _tensor(array: Any) -> Any:
    """A tensor over an array's own bytes; bfloat16 goes in as its bits."""
    import openvino

    if array.dtype.name == "bfloat16":
        bits = array.view(np.uint16)
        return openvino.Tensor(bits, openvino.Shape(bits.shape), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)
