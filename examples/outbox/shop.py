"""Accepts orders. An order and its message are one transaction of the database, so no queue is needed here."""

import json
import sys

import psycopg


def place(database: psycopg.Connection, total: int) -> None:
    """Place an order."""
    with database.transaction():
        (order,) = database.execute("INSERT INTO orders (total) VALUES (%s) RETURNING id", [total]).fetchone()
        database.execute("INSERT INTO outbox (body) VALUES (%s)", [json.dumps({"order": order, "total": total})])


if __name__ == "__main__":
    with psycopg.connect(autocommit=True) as shop:
        for line in sys.stdin:
            place(shop, int(line))
            print("placed", line.strip(), flush=True)
