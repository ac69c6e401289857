"""A step launched a few times without a clock, for a profiler that watches from outside."""

from apclab.bench.bound import ready
from apclab.bench.how import How
from apclab.bench.step import decode_step
from apclab.clock import synchronize
from apclab.specs import model as model_named
from apclab.workload import Workload

PROFILED_CASES = ("private", "shared")


def launch_once(workload: Workload, model: str, *, dtype: str = "bfloat16") -> None:
    """Launch each case twice on the GPU, what the caches hold read away before each launch.

    The first launch of a case compiles. No graph is used: a profiler counts kernels.

    Args:
        workload: the requests.
        model: a name of `data/models.csv`.
        dtype: of the KV cache.

    Raises:
        Unavailable: no GPU.
        OutOfMemory: it does not fit.
    """
    # one layer and a scratch buffer: the fewest launches that are cold
    how = How(PROFILED_CASES, "triton", dtype, memory_limit=None).resolved()
    bound, _ = ready(decode_step(workload), model_named(model), how)
    for case in PROFILED_CASES:
        for launch in (bound.launches[case][0], bound.launches[case][-1]):
            if bound.between is not None:
                bound.between(launch)
            else:  # the layers between are what empties the caches
                for other in bound.launches[case][1:-1]:
                    other()
            launch()
    synchronize()
