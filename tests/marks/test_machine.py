"""That a cold call is cold, and that the rates of the machine are what they are called."""

import pytest

from apclab import bench
from apclab.attention import plan_stream
from apclab.bench.buffers import scratch_buffer
from apclab.clock import interleave
from apclab.specs import model
from apclab.workload import Workload
from tests.marks.conftest import Mark, Measured, ratio

# distinct bytes of the shared step fit every last-level cache of 8 MB: 8 requests of 304 tokens
SHARED = Workload(batch=8, input_len=304, output_len=2, cache_hit=1.0)


@pytest.mark.mark
def test_a_shared_call_after_the_scratch_reads_from_dram(mark: Mark) -> None:
    step, shape = bench.decode_step(SHARED, step="first"), model("llama-3.1-8b")
    distinct = step.shared.sharing().distinct_bytes(shape.token_bytes("bfloat16"))

    def times_dram() -> Measured:
        ladder = bench.measure_ladder()
        assert ladder.cold_bytes is not None, ladder.why
        assert ladder.dram_gb_per_s is not None
        buffer = scratch_buffer(ladder.cold_bytes + distinct)
        empty, _ = plan_stream(buffer[: ladder.cold_bytes // 4], 1)
        read, amount = plan_stream(buffer[ladder.cold_bytes // 4 :], 1)
        after = interleave({"after": [read]}, budget_s=0.3, between=lambda _launch: empty())
        rates = [amount / seconds / 1e9 for seconds in after["after"]]
        return ratio(rates, [ladder.dram_gb_per_s])

    mark("a read of the shared step's bytes after the scratch / DRAM rate", times_dram, 1.25,
         most=True)  # fmt: skip


@pytest.mark.mark
def test_private_blocks_are_read_at_most_at_the_dram_rate(mark: Mark) -> None:
    def part() -> Measured:
        records = bench.compare_decode(
            Workload(batch=100, input_len=300, output_len=20, cache_hit=0.0), cases=("private",),
            budget_s=2.0,
        )  # fmt: skip
        (private,) = records
        rates = [private["logical_bytes"] / us / 1e3 for us in private["samples_us"]]
        return ratio(rates, [private["device"]["dram_gb_per_s"]])

    mark("private / DRAM rate, issue 4860, bfloat16", part, 1.05, most=True)
