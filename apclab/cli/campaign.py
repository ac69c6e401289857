"""`apclab campaign`: hands its arguments to the campaign, which has its own parser."""

import typer


def campaign(context: typer.Context) -> int:
    """Measure everything worth measuring here, within a time budget; --help lists its options."""
    # it imports what measures
    from apclab.campaign import main

    return main(context.args, prog="apclab campaign")
