"""`python -m apclab` is the command `apclab`; its campaign runs without typer and rich, too."""

import sys


def main() -> int:
    """Run the command line; the campaign by its own arguments."""
    if sys.argv[1:2] == ["campaign"]:
        from apclab.campaign import main as campaign

        return campaign(sys.argv[2:])
    from apclab.cli import main as cli

    return cli()


if __name__ == "__main__":
    sys.exit(main())
