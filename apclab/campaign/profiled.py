"""What ncu looks at: a cold launch of each case after one that compiles. Prints nothing.

`python -m apclab.campaign.profiled MODEL DTYPE WORKLOAD`, the workload as JSON.
"""

import json
import sys

from apclab import bench
from apclab.workload import Workload

if __name__ == "__main__":
    model, dtype, work = sys.argv[1:]
    bench.launch_once(Workload(**json.loads(work)), model, dtype=dtype)
