"""Publishes the rows of the outbox, each exactly once, whether this relay, the server or the database is killed.

After a crash, rows that were published and not deleted yet are published again under the same numbers. The server
remembers the last number of a producer for 7 days, so it does not store them again. Only one relay works at a time: a
second one waits for the lock, and takes over when the first is gone. If the database becomes unreachable, this program
ends; let systemd, or another supervisor, restart it.
"""

import time

import psycopg

from curbstone_client.sync import Client

WAIT_S = 0.1
LOCK = 0x6F7574626F78  # a number that no other program uses

# Rows get numbers in the order of the ids that are visible. The numbers are committed before they are used to publish.
NUMBER = """
    WITH numbered AS (
        UPDATE outbox SET seq = new.seq
        FROM (
            SELECT id, (SELECT last_seq FROM relay) + row_number() OVER (ORDER BY id) AS seq
            FROM outbox WHERE seq IS NULL ORDER BY id LIMIT 1000
        ) AS new
        WHERE outbox.id = new.id
        RETURNING outbox.seq
    )
    UPDATE relay SET last_seq = (SELECT max(seq) FROM numbered) WHERE EXISTS (SELECT FROM numbered)
"""


def relay(database: psycopg.Connection, client: Client) -> None:
    """Publish forever. Each statement is its own transaction."""
    orders = client.queue("orders")
    while True:
        database.execute(NUMBER)
        rows = database.execute("SELECT seq, body FROM outbox WHERE seq IS NOT NULL ORDER BY seq").fetchall()
        for seq, body in rows:
            orders.send(body, type="application/json", seq=seq)
        client.flush()  # now all is on disk; otherwise this raises, and the rows stay
        if rows:
            database.execute("DELETE FROM outbox WHERE seq <= %s", [rows[-1][0]])
        else:
            time.sleep(WAIT_S)


if __name__ == "__main__":
    with psycopg.connect(autocommit=True) as shop:
        shop.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        with Client(project="shop", producer="outbox-relay") as connected:
            relay(shop, connected)
