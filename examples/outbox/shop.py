"""Takes orders: the order and what is to be told of it are one transaction of the database. It needs no queue."""

import json
import os
import sqlite3
import sys
from pathlib import Path


def opened() -> sqlite3.Connection:
    """Return the shop's database, made if need be."""
    database = sqlite3.connect(os.environ.get("SHOP_DATABASE", "shop.db"), timeout=60)
    database.executescript((Path(__file__).parent / "schema.sql").read_text(encoding="utf-8"))
    return database


def place(database: sqlite3.Connection, total: int) -> None:
    """Place an order."""
    with database:
        order = database.execute("INSERT INTO orders (total) VALUES (?)", [total]).lastrowid
        event = json.dumps({"order": order, "total": total})
        database.execute("INSERT INTO outbox (body) VALUES (?)", [event])


if __name__ == "__main__":
    shop = opened()
    for line in sys.stdin:
        place(shop, int(line))
