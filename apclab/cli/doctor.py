"""`apclab doctor`: what this machine has, what is missing and the command that gets it."""

import json
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from packaging.requirements import Requirement
from rich.table import Table

from apclab import __version__
from apclab.cli.kernels import show_kernels
from apclab.cli.terminal import stdout

OPTIONAL = ("torch", "triton", "kaleido", "playwright")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_CHECKOUT = Path(__file__).resolve().parents[2]


class Check(NamedTuple):
    """One thing that was looked for."""

    name: str
    found: str  # version or fact, "" when missing
    needed: str  # what is asked of it, "" when anything will do
    state: str  # "ok", "missing" or "optional"
    remedy: str  # the command that gets it, "" when nothing is to be done


def doctor(
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Show what the GPU kernels compile to; no GPU needed.")
    ] = False,
) -> int:
    """Show versions, devices, threads, memory, the widget stack, and what is missing."""
    if kernels:
        return show_kernels(json_lines=json_lines)
    machine = describe_machine()
    checks = [*check_packages(), *check_extras(has_gpu=bool(machine["gpu"])), check_browser()]
    if json_lines:
        report = {
            "apclab": __version__,
            "machine": machine,
            "checks": [check._asdict() for check in checks],
        }
        print(json.dumps(report, default=str))
    else:
        _print(machine, checks)
    return 3 if any(check.state == "missing" for check in checks) else 0


def describe_machine() -> dict[str, Any]:
    """Python, system, CPU, threads, caches, memory or a container's limit, and NVIDIA GPUs."""
    machine: dict[str, Any] = {"python": f"{platform.python_version()} ({sys.executable})"}
    machine["system"] = platform.platform()
    try:
        # the clock describes the machine for the records too; its packages may be missing here
        from apclab import clock

        cpu, memory = clock.cpu(), clock.memory_available()
    except ImportError as error:
        machine["cpu"] = f"cannot look closer: {error}"
    else:
        machine |= {"cpu": cpu["name"], "threads": cpu["cores"]}
        machine |= {"l2_bytes": cpu["l2_bytes"], "llc_bytes": cpu["llc_bytes"]}
        machine["llc_known"] = cpu["llc_known"]
        machine |= {"memory_bytes": memory, "memory_limit": clock.memory_words()}
    machine["gpu"] = find_gpus()
    return machine


def find_gpus() -> list[str]:
    """Name, memory and driver of each NVIDIA GPU, as nvidia-smi tells; empty without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def requirements() -> list[Requirement]:
    """What apclab itself asks for, extras left out, from the checkout or the installed package."""
    pyproject = _CHECKOUT / "pyproject.toml"
    if pyproject.is_file():
        lines = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        lines = metadata.requires("apclab") or []
    parsed = [Requirement(line) for line in lines]
    return [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]


def check_packages() -> list[Check]:
    """Whether each package that apclab needs is there, in a version that is known to work."""
    checks = []
    for requirement in requirements():
        found, needed = installed(requirement.name), str(requirement.specifier)
        if found and requirement.specifier.contains(found, prereleases=True):
            checks.append(Check(requirement.name, found, needed, "ok", ""))
        else:
            remedy = f'{sys.executable} -m pip install "{requirement}"'
            checks.append(Check(requirement.name, found, needed, "missing", remedy))
    return checks


def check_extras(*, has_gpu: bool) -> list[Check]:
    """Packages that only some uses need; torch counts as missing where a GPU waits for it."""
    constraints = _CHECKOUT / "constraints.txt"
    pinned = f"-c {constraints} " if constraints.is_file() else ""
    checks = []
    for name in OPTIONAL:
        if found := installed(name):
            checks.append(Check(name, found, "", "ok", ""))
            continue
        extra = "torch" if name in ("torch", "triton") else "dev"
        state = "missing" if name == "torch" and has_gpu else "optional"
        remedy = f'{sys.executable} -m pip install {pinned}"apclab[{extra}]"'
        if pinned:
            remedy = f'{sys.executable} -m pip install {pinned}-e "{_CHECKOUT}[{extra}]"'
        checks.append(Check(name, "", "", state, remedy))
    return checks


def check_browser() -> Check:
    """Chromium draws figures as PNG and runs the browser tests; the lab needs any browser."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return Check("chromium", path, "", "ok", "")
    return Check("chromium", "", "", "optional", "apt-get install chromium")


def installed(name: str) -> str:
    """The version of a package in this environment, "" when it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _print(machine: dict[str, Any], checks: list[Check]) -> None:
    console = stdout()
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_row("apclab", __version__)
    for name, value in _facts(machine):
        facts.add_row(name, value)
    console.print(facts)
    console.print()
    table = Table("package", "version", "needed", "", box=None, pad_edge=False)
    for check in checks:
        table.add_row(check.name, check.found or "-", check.needed, check.state)
    console.print(table)
    for check in checks:
        if check.remedy:
            console.print(
                f"{check.name} ({check.state}): {check.remedy}", markup=False, soft_wrap=True
            )


def _facts(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("python", "system", "cpu"):
        yield name, machine[name]
    if "threads" in machine:
        yield "threads", str(machine["threads"])
        guess = "" if machine["llc_known"] else " (assumed: the system does not tell)"
        mebi = {key: f"{machine[key] / 2**20:,.0f} MiB" for key in machine if "_bytes" in key}
        yield "caches", f"L2 {mebi['l2_bytes']} a core, last level {mebi['llc_bytes']}{guess}"
        yield "memory", f"{mebi['memory_bytes']} {machine['memory_limit']}"
    yield "gpu", "; ".join(machine["gpu"]) or "no NVIDIA GPU"
