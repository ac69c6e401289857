"""A step's kernel timed beside a pass that only loads the same addresses in the same order."""

from dataclasses import replace
from typing import Any

from apclab.attention import plan_stream, plan_touch
from apclab.bench import How, Step
from apclab.bench.bound import ready
from apclab.bench.buffers import scratch_buffer
from apclab.clock import alone, interleave
from apclab.specs import ModelShape


@alone("measure_touch")
def measure_touch(step: Step, model: ModelShape, **how: Any) -> dict[str, dict[str, list[float]]]:
    """Time the kernel of each case, the load-only pass over its tables, and a plain read.

    Args:
        step: from `decode_step`.
        model: the shape.
        how: as in `compare_tables`.

    Returns:
        Case -> {"decode": seconds, "touch": seconds, "stream_bytes_per_s": rates of a plain read}.
    """
    bound, ladder = ready(step, model, How(**how).resolved())
    footprint = max(rung["footprint_bytes"] for rung in ladder.rungs)
    read, size = plan_stream(scratch_buffer(footprint), 1)
    calls = {"stream": [read]}
    for case, launches in bound.launches.items():
        table = bound.tables[case]
        calls[f"decode {case}"] = launches
        calls[f"touch {case}"] = [
            plan_touch(
                *layer, table.block_tables, table.seq_lens,
                layout=bound.how.layout, order=bound.how.order,
            )
            for layer in zip(bound.keys, bound.values, strict=True)
        ]  # fmt: skip
    samples = interleave(replace(bound, launches=calls).timed(), **bound.timing())
    rates = [size / seconds for seconds in samples["stream"]]
    return {
        case: {
            "decode": samples[f"decode {case}"],
            "touch": samples[f"touch {case}"],
            "stream_bytes_per_s": rates,
        }
        for case in bound.launches
    }
