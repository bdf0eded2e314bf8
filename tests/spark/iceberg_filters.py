"""Filters rows of Iceberg tables with pyiceberg, Polars and DuckDB: a line of JSON for each question and each answer.

A question is the reader, the table's folder, the column with the places, and the filter: column, type and text of the
value, or null for all rows.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import duckdb_ext
import polars
from pyiceberg.expressions import AlwaysTrue, EqualTo, IsNull
from pyiceberg.table import StaticTable

EXTENSIONS = Path(duckdb_ext.__path__[0]) / "extensions" / f"v{duckdb.__version__}"
VALUES: dict[str, Any] = {
    "str": str,
    "int": int,
    "bytes": bytes.fromhex,
    "datetime": datetime.fromisoformat,
    "NoneType": lambda _: None,
}


def by_pyiceberg(folder: str, place: str, column: str | None, value: Any) -> list[int]:
    rows = AlwaysTrue() if column is None else IsNull(column) if value is None else EqualTo(column, _plain(value))
    found = StaticTable.from_metadata(folder).scan(row_filter=rows, selected_fields=(place,)).to_arrow()
    return list(found.column(place).to_pylist())


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def by_polars(folder: str, place: str, column: str | None, value: Any) -> list[int]:
    found = polars.scan_iceberg(StaticTable.from_metadata(folder), reader_override="native")
    if column is not None:
        found = found.filter(polars.col(column).is_null() if value is None else polars.col(column) == value)
    return list(found.select(place).collect().to_series())


def by_duckdb(folder: str, place: str, column: str | None, value: Any) -> list[int]:
    query, given = f'SELECT "{place}" FROM iceberg_scan(?)', [folder]
    if column is not None:
        query += f' WHERE "{column}" IS NOT DISTINCT FROM ?'
        given.append(value)
    return [row[0] for row in base.execute(query, given).fetchall()]


base = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "iceberg"):
    [path] = EXTENSIONS.glob(f"*/{name}.duckdb_extension")
    base.execute(f"LOAD '{path}'")
READERS = {"pyiceberg": by_pyiceberg, "polars": by_polars, "duckdb": by_duckdb}
for line in sys.stdin:
    reader, folder, place, column, kind, text = json.loads(line)
    print(json.dumps(sorted(READERS[reader](folder, place, column, VALUES[kind](text)))), flush=True)
