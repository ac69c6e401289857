"""What a measurement is: its record, JSON Lines in and out, tables, the sentence. Nothing is timed.

`record` defines and checks a record, `store` writes and reads files of them, `tables` turns them
into pandas tables, `sentence` puts them into words. No pandas is needed to write records.
"""

from apclab.results.record import RECORD_FIELDS, SCHEMA, Record, validate
from apclab.results.sentence import finding
from apclab.results.store import append, destination, load, measured_dir
from apclab.results.tables import decode_times, frame, ladder, load_results, published

__all__ = [
    "RECORD_FIELDS",
    "SCHEMA",
    "Record",
    "append",
    "decode_times",
    "destination",
    "finding",
    "frame",
    "ladder",
    "load",
    "load_results",
    "measured_dir",
    "published",
    "validate",
]
