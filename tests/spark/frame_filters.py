"""Filters rows of a lake with Polars and pandas: a line of JSON on stdin for each question, and one for each answer.

A question is the reader, the table's address, the column with the places, the filtered column, and its value as text.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

import polars
from deltalake import DeltaTable


def by_polars(uri: str, place: str, column: str, value: Any) -> list[int]:
    is_it = polars.col(column).is_null() if value is None else polars.col(column) == value
    return list(polars.scan_delta(uri).filter(is_it).select(place).collect().to_series())


def by_pandas(uri: str, place: str, column: str, value: Any) -> list[int]:
    return [int(one) for one in DeltaTable(uri).to_pandas(columns=[place], filters=[(column, "=", value)])[place]]


VALUES: dict[str, Any] = {
    "str": str,
    "int": int,
    "bytes": bytes.fromhex,
    "datetime": datetime.fromisoformat,
    "NoneType": lambda _: None,
}
for line in sys.stdin:
    reader, uri, place, column, kind, text = json.loads(line)
    read = by_polars if reader == "polars" else by_pandas
    print(json.dumps(sorted(read(uri, place, column, VALUES[kind](text)))), flush=True)
