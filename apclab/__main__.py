"""`python -m apclab` is the command `apclab`."""

from apclab.cli import main

if __name__ == "__main__":
    main()
