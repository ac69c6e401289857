"""What is here: the device and whether it answers, versions and settings, the cases that run."""

from typing import Any

import apclab
from apclab.attention import Unavailable, require
from apclab.bench.how import CASES
from apclab.clock import commit, machine, synchronize


def cases_here(backend: str) -> tuple[str, ...]:
    """The cases that this version has for a backend."""
    try:
        require(backend)
    except Unavailable:
        return tuple(case for case in CASES if case != "cascade")
    return CASES


def describe(kind: str) -> dict[str, Any]:
    """The fields that say which package, commit and device."""
    head, dirty = commit()
    device = machine(kind)
    return {
        "apclab": apclab.__version__,
        "commit": head,
        "dirty": dirty,
        "device": {"kind": kind, **device},
    }


def device_answers() -> None:
    """Have the GPU do something and wait for it; raises what torch raises when it does not."""
    import torch

    torch.ones(1, device="cuda").sum().item()
    synchronize()
