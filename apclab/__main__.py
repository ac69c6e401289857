"""The command `apclab`, also as `python -m apclab`; the campaign runs without typer and rich."""

import sys

from apclab import process


def main() -> int:
    """Run the command line and return its exit status."""
    return process.run(_command)


def _command() -> int:
    # imports take their time: signals are heard before
    if sys.argv[1:2] == ["campaign"]:
        from apclab.campaign import main as campaign

        return campaign(sys.argv[2:])
    from apclab.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
