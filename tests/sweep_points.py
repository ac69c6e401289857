"""A function for sweeps that a cluster's workers can import, and its log."""

import os
import time
from pathlib import Path


def product_of(
    a: int, b: int, log: str = "", wait_s: float = 0.0, die: bool = False
) -> dict[str, int]:
    """The product and the process that made it; a line in `log` for each call."""
    if log:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{a} {b}\n")
    if a < 0:
        raise ValueError(f"a must be at least 0, got {a}")
    if die:
        os._exit(1)
    time.sleep(wait_s)
    return {"product": a * b, "pid": os.getpid()}


def called(log: Path) -> list[str]:
    """The calls so far."""
    return log.read_text(encoding="utf-8").splitlines()
