"""Which options of `apclab simulate` go together: what would change nothing is refused by name."""

import typer

from apclab.cli.terminal import CommandError

_REQUESTS = (
    *("batch", "input_len", "output_len", "cache_hit", "prefix_groups", "primed", "rate"),
    "samples",
)
_WITHOUT = {
    "trace": (_REQUESTS, "a trace brings its own requests"),
    "sweep": (
        ("trace", "limit", "skip_bad", "as_lengths", "kv_gb", "calibration", "html"),
        "its points are workloads, each with --num-blocks and --device",
    ),
    "kv_gb": (("num_blocks",), "both say how large the pool is"),
    "calibration": (("device",), "both say the rates"),
}
_NEEDS = {
    "limit": "trace", "skip_bad": "trace", "as_lengths": "trace",
    "sweep": "out", "out": "sweep", "scheduler": "sweep",
}  # fmt: skip


def check_together(context: typer.Context) -> set[str]:
    """Names of the options that the command line gives.

    Raises:
        CommandError: with status 2, one of them would change nothing beside another, or alone.
    """
    flags = {param.name or "": max(param.opts, key=len) for param in context.command.params}
    # a default is no wish, and a value that equals one is
    given = {
        name for name in flags
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    }  # fmt: skip
    for name, (others, why) in _WITHOUT.items():
        if name in given and (both := [flags[other] for other in others if other in given]):
            raise CommandError(2, f"{flags[name]} goes without {', '.join(both)}: {why}")
    for name, needed in _NEEDS.items():
        if name in given and needed not in given:
            raise CommandError(2, f"{flags[name]} needs {flags[needed]}, too")
    return given
