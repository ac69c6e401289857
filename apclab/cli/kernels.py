"""`apclab doctor --kernels`: what the Triton kernels compile to, and whether that feeds a GPU."""

import json
from typing import Any

from rich.table import Table

from apclab import attention, memory_model
from apclab.cli.terminal import CommandError, stdout, watch
from apclab.workload import ISSUE_4860


def show_kernels(*, json_lines: bool) -> int:
    """Compile the default variants in a process of its own and print the table.

    Returns:
        0; 1 where a kernel has a fault or too few bytes in flight.
    """
    try:
        with watch("compiling; Ctrl-C stops and shows what was compiled") as watching:
            builds = attention.compile_kernels(
                which="doctor", cancelled=watching.cancelled, progress=watching.progress
            )
    except attention.Unavailable as error:
        raise CommandError(3, str(error)) from None
    rows = memory_model.kernel_table(builds, batch=ISSUE_4860.batch)
    if json_lines:
        for row in rows:
            print(json.dumps(row))
    else:
        _print(rows)
    return 1 if any(row["faults"] or _short(row) for row in rows) else 0


def _print(rows: list[dict[str, Any]]) -> None:
    console = stdout()
    table = Table(box=None, pad_edge=False)
    for name in ("kernel", "device", "target", "dtype", "heads"):
        table.add_column(name, no_wrap=True)
    for name in ("regs", "shared", "copies", "tensor", "programs", "in flight", "needed"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("ratio", "issue", "least"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        copies = row["async_copies"] or row["wide_loads"]
        cells = [row["kernel"], row["device"] or "-", row["target"], row["dtype"]]
        cells += [f"{row['num_heads']}/{row['num_kv_heads']}", str(row["registers"])]
        cells += [f"{row['shared_bytes'] / 1024:.1f} KiB", str(copies), str(row["tensor_ops"])]
        if row["device"]:
            cells += [str(row["programs"]), f"{row['bytes_in_flight'] / 1024:.0f} KiB"]
            mark = "" if row["latency_basis"] == "measured" else "*"
            cells += [f"{row['bytes_needed'] / 1024:.1f} KiB{mark}"]
            cells += [f"{row['ratio']:.1f}", f"{row['issue']:.2f}", f"{row['ratio_least']:.1f}"]
        table.add_row(*cells)
    console.print(table)
    console.print(
        "regs: of a thread. shared: of a program. copies: 128-bit, asynchronous (loads on AMD). "
        "tensor: matrix instructions. programs, in flight, needed: of one SM; needed is DRAM "
        "bandwidth x latency / SMs (* the latency or its clock is inferred, see data/sm.csv), "
        f"ratio of decode should be at least {memory_model.LEAST_RATIO}. issue: share of DRAM's "
        "time that issuing the instructions takes, above 1 arithmetic is the limit. least: ratio "
        "were all programs to compute at the same time."
    )
    for row in rows:
        name = f"{row['kernel']} {row['device'] or row['target']} {row['dtype']} {row['num_heads']}"
        for fault in row["faults"]:
            console.print(f"{name}: {fault}")
        if _short(row):
            console.print(f"{name}: too few bytes in flight, ratio {row['ratio']:.2f}")


def _short(row: dict[str, Any]) -> bool:
    """Whether a decode kernel has too few bytes in flight; the others multiply for longer."""
    judged = row["kernel"] == "decode" and row["ratio"] is not None
    return judged and row["ratio"] < memory_model.LEAST_RATIO
