"""What the machine is: versions, processor, caches, memory at hand, commit of the checkout."""

import os
import platform
import re
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import apclab
from apclab.clock import gpu

_VERSIONS = ("numpy", "numba", "llvmlite", "ml_dtypes", "torch", "triton")
# used where the system does not tell: larger than most, so that cold stays cold
_ASSUMED_LLC = 64 * 2**20
_CGROUP = Path("/sys/fs/cgroup")


@cache
def commit() -> tuple[str | None, bool | None]:
    """Commit of the checkout that this package runs from and whether it has changes, else None.

    Notebooks do not count: a user who runs and saves one changes nothing that is measured.
    """
    return _commit_of(Path(apclab.__file__).resolve().parent.parent)


def _commit_of(root: Path) -> tuple[str | None, bool | None]:
    if not (root / "pyproject.toml").is_file() or not (root / ".git").exists():
        return None, None
    try:
        head = _git(root, "rev-parse", "HEAD")
        but_notebooks = ("--", ".", ":(exclude,top)notebooks")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", *but_notebooks)
        return head, bool(changed)
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


@cache
def cpu() -> dict[str, Any]:
    """Name, cores that this process may use, cache sizes in bytes.

    Returns:
        {"name", "cores", "l2_bytes" of one core, "llc_bytes", "llc_known"}.
    """
    caches = _caches()
    llc = max(caches.values(), default=0)
    return {
        "name": _cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        "l2_bytes": caches.get(2, 2**20),
        "llc_bytes": llc or _ASSUMED_LLC,
        "llc_known": llc > 0,
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or "unknown CPU"
    return platform.processor() or platform.machine() or "unknown CPU"


def _caches() -> dict[int, int]:
    """Level -> bytes of the largest data cache of that level that core 0 uses."""
    sizes: dict[int, int] = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            level = int((folder / "level").read_text())
            sizes[level] = max(sizes.get(level, 0), _size((folder / "size").read_text()))
        except (OSError, ValueError):
            continue
    if not sizes and sys.platform == "darwin":
        for level in (2, 3):
            if (size := _sysctl(f"hw.l{level}cachesize")).isdigit():
                sizes[level] = int(size)
    return sizes


def _size(text: str) -> int:
    text = text.strip()
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def environment(kind: str = "cpu") -> dict[str, Any]:
    """Versions, host and settings that a stranger needs to judge a time; plain JSON values."""
    return {
        **({"gpu": gpu.gpu_state()} if kind == "cuda" else {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in _VERSIONS},
        "cores": cpu()["cores"],
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_average": [round(x, 2) for x in os.getloadavg()]
        if hasattr(os, "getloadavg")
        else None,
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "clock_resolution_ns": time.get_clock_info("perf_counter").resolution * 1e9,
        "memory_available_bytes": memory_available(),
        "llc_known": cpu()["llc_known"],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def machine(kind: str) -> dict[str, Any]:
    """What runs the kernels: `cpu()` or `gpu.gpu()`.

    Args:
        kind: "cpu" or "cuda".
    """
    return gpu.gpu() if kind == "cuda" else cpu()


def memory_available(kind: str = "cpu") -> int:
    """Bytes that this process may still take, of the machine, its container or the GPU."""
    return gpu.gpu_memory_available() if kind == "cuda" else _memory()[0]


def memory_words(kind: str = "cpu") -> str:
    """Where the figure of `memory_available` comes from, for a message."""
    return "free on the GPU" if kind == "cuda" else _memory()[1]


def _memory() -> tuple[int, str]:
    free = _free()
    left = container_memory_left(_CGROUP, Path("/proc/self/cgroup"))
    if left is not None and left < free:
        return left, "left by the container's limit"
    return free, "available"


def _free() -> int:
    try:
        import psutil

        return int(psutil.virtual_memory().available)
    # a campaign runs where psutil is missing, and some sandboxes have no /proc for it to read
    except (ImportError, OSError):
        if found := re.search(r"^MemAvailable:\s+(\d+) kB", _read("/proc/meminfo") or "", re.M):
            return int(found[1]) * 1024
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def container_memory_left(root: Path, membership: Path) -> int | None:
    """Bytes that the control groups of this process leave, None without a limit.

    Looks from the process's own group up to the root, since any of them may set the limit.

    Args:
        root: where the hierarchy is mounted, version 1 or 2.
        membership: the process's /proc/self/cgroup.
    """
    left: list[int] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "memory":
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        elif controllers == "":
            base, names = root, ("memory.max", "memory.current")
        else:
            continue
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            limit, used = (_read(str(folder / name)) for name in names)
            if limit and used and limit.isdigit() and int(limit) < 2**60:
                taken = int(used) - _reclaimable(folder)
                left.append(max(0, int(limit) - taken))
            if folder == base:
                break
    return min(left, default=None)


def _reclaimable(group: Path) -> int:
    """Bytes of a control group's file cache that the kernel gives back when asked."""
    for line in (_read(str(group / "memory.stat")) or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0
