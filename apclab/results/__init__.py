"""What a measurement is: its record, JSON Lines in and out, tables, the sentence. Nothing is timed.

`record` and `kinds` define and check records, `store` writes and reads files of them, `tables`
turns them into pandas tables, `sentence` puts them into words. Writing records needs no pandas.
"""

from apclab.results.kinds import (
    CALIBRATION_FIELDS,
    CAMPAIGN_FIELDS,
    PEER_FIELDS,
    PROBES,
    kind_of,
    validate,
)
from apclab.results.record import RECORD_FIELDS, SCHEMA, Record
from apclab.results.sentence import finding
from apclab.results.store import append, destination, load, measured_dir
from apclab.results.tables import decode_times, frame, ladder, load_results, published

__all__ = [
    "CALIBRATION_FIELDS",
    "CAMPAIGN_FIELDS",
    "PEER_FIELDS",
    "PROBES",
    "RECORD_FIELDS",
    "SCHEMA",
    "Record",
    "append",
    "decode_times",
    "destination",
    "finding",
    "frame",
    "kind_of",
    "ladder",
    "load",
    "load_results",
    "measured_dir",
    "published",
    "validate",
]
