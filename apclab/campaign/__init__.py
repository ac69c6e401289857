"""Everything worth measuring on a machine, in order, within a time budget; argparse, no typer.

Runs where numpy, torch and triton alone are installed (on a CPU: numpy, numba, ml_dtypes). The
items run in another process (`worker`), so that a lost device, a crash or a hang costs one item.
No kernel lives here and no clock: `bench` measures.
"""

from apclab.campaign.command import main
from apclab.campaign.context import Context, Item, Settings
from apclab.campaign.items import ITEMS
from apclab.campaign.run import Campaign, run_campaign

__all__ = ["ITEMS", "Campaign", "Context", "Item", "Settings", "main", "run_campaign"]
