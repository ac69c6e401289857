"""Time on a GPU: CUDA graphs of bound launches between two events, and the state of the device.

torch is imported inside functions: whoever asks for a GPU has it.
"""

import subprocess
from collections.abc import Callable, Sequence
from typing import Any

# what nvidia-smi is asked for: the clocks and limits that a time depends on
_STATE = (
    "driver_version", "pstate", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem",
    "power.draw", "power.limit", "temperature.gpu", "clocks_throttle_reasons.active",
    "mig.mode.current",
)  # fmt: skip


class Replay:
    """One or more launches captured in a CUDA graph; calling it enqueues them in one go.

    A graph takes the launch overhead of Python and the driver out of the time, 10 to 100 us a
    launch, more than many decode kernels take.

    Args:
        launches: run once on a side stream first, so that nothing is compiled while capturing.
    """

    def __init__(self, launches: Sequence[Callable[[], None]]) -> None:
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for launch in launches:
                launch()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for launch in launches:
                launch()
        self.launches = len(launches)

    def __call__(self) -> None:
        """Enqueue the launches; does not wait for them."""
        self._graph.replay()


def event_time(replay: Callable[[], None]) -> float:
    """Seconds of one launch of a replay between two events, as the GPU sees them."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / int(getattr(replay, "launches", 1))


def synchronize() -> None:
    """Wait until the GPU has done everything that was asked of it."""
    import torch

    torch.cuda.synchronize()


def gpu() -> dict[str, Any]:
    """Name, multiprocessors and last-level cache of the current GPU; the shape of `machine.cpu`."""
    import torch

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    cache = int(getattr(found, "L2_cache_size", 0))
    return {
        "name": found.name,
        "cores": int(found.multi_processor_count),
        "l2_bytes": cache,
        "llc_bytes": cache or 64 * 2**20,
        "llc_known": cache > 0,
    }


def gpu_state() -> dict[str, Any]:
    """Clocks, power, temperature and driver as nvidia-smi tells them; empty where it cannot."""
    import torch

    state: dict[str, Any] = {"torch_cuda": torch.version.cuda, "torch_hip": torch.version.hip}
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--id={torch.cuda.current_device()}",
             f"--query-gpu={','.join(_STATE)}", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return state
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return state | dict(zip(_STATE, values, strict=False))


def gpu_memory_available() -> int:
    """Bytes that this process may still take on the current GPU, torch's own reserve included."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return int(free) + int(torch.cuda.memory_reserved()) - int(torch.cuda.memory_allocated())
