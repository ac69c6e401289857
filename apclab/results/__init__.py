"""What a measurement is: its record, JSON Lines in and out, tables, the sentence. Nothing is timed.

`field`, `record` and `kinds` define and check records, `store` writes and reads files of them,
`tables` turns them into pandas tables; `gain` and `places` judge what they say of two cases,
`sentence` puts that into words. Writing and judging records needs no pandas.
"""

from apclab.results.field import SCHEMA, Record
from apclab.results.gain import (
    SAME_PRIVATE,
    Gain,
    Point,
    dram_rates,
    floor_of,
    gain_of,
    middle_of,
    plain_read,
    point_of,
    pooled,
    unsettled,
)
from apclab.results.kinds import (
    CALIBRATION_FIELDS,
    CAMPAIGN_FIELDS,
    PEER_FIELDS,
    PROBES,
    kind_of,
    validate,
)
from apclab.results.record import RECORD_FIELDS
from apclab.results.sentence import finding
from apclab.results.store import append, destination, load, measured_dir
from apclab.results.tables import decode_times, frame, ladder, load_results, published

__all__ = [
    "CALIBRATION_FIELDS",
    "CAMPAIGN_FIELDS",
    "PEER_FIELDS",
    "PROBES",
    "RECORD_FIELDS",
    "SAME_PRIVATE",
    "SCHEMA",
    "Gain",
    "Point",
    "Record",
    "append",
    "decode_times",
    "destination",
    "dram_rates",
    "finding",
    "floor_of",
    "frame",
    "gain_of",
    "kind_of",
    "ladder",
    "load",
    "load_results",
    "measured_dir",
    "middle_of",
    "plain_read",
    "point_of",
    "pooled",
    "published",
    "unsettled",
    "validate",
]
