"""Publishes what is in the outbox, exactly once: kill it, kill the server, cut the network, start it again.

What was published before a crash and not yet deleted is published again under the same number, and the server does not
store it again. Only one relay may run at a time; a second one would end the connection of the first.
"""

import sqlite3
import time

from shop import opened

from curbstone_client.sync import Client

WAIT_S = 0.1


def number(database: sqlite3.Connection) -> list[tuple[int, str]]:
    """Give numbers to what has none yet; return all that is to be published, in order."""
    with database:
        (last,) = database.execute("SELECT last_seq FROM relay").fetchone()
        for (row,) in database.execute("SELECT id FROM outbox WHERE seq IS NULL ORDER BY id").fetchall():
            last += 1
            database.execute("UPDATE outbox SET seq = ? WHERE id = ?", [last, row])
        database.execute("UPDATE relay SET last_seq = ?", [last])
    return database.execute("SELECT seq, body FROM outbox WHERE seq IS NOT NULL ORDER BY seq").fetchall()


def relay(database: sqlite3.Connection, client: Client) -> None:
    """Publish for ever."""
    orders = client.queue("orders")
    while True:
        rows = number(database)
        for seq, body in rows:
            orders.send(body, type="application/json", seq=seq)
        client.flush()  # all is on disk, or this raises, and the rows stay
        if rows:
            with database:
                database.execute("DELETE FROM outbox WHERE seq <= ?", [rows[-1][0]])
        else:
            time.sleep(WAIT_S)


if __name__ == "__main__":
    with Client(project="shop", producer="outbox-relay") as connected:
        relay(opened(), connected)
