"""What is here: the device and whether it answers, version and commit."""

from typing import Any

import apclab
from apclab.clock import commit, machine, synchronize


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
