"""The tables of a lake with their columns, and the columns that a reader returns."""

from __future__ import annotations

MESSAGES, JOURNAL = "messages", "journal"
TABLES = (MESSAGES, JOURNAL)

COLUMNS = {
    MESSAGES: (
        *("project", "queue", "epoch", "seq", "message_id", "timestamp", "content_type", "headers", "body"),
        *("tries", "expires", "groups", "key"),
    ),
    JOURNAL: (
        *("project", "queue", "epoch", "position", "event", "seq", "count", "time", "group", "tries", "due"),
        "bytes",
    ),
}
"""The stored columns. `queue` is the name without the project.

A new column must be added at the end: an existing table gets it with its next batch, with null in its older rows (see
`table`).
"""
DAY, QUEUE = "date", "queue"
"""The columns that a table may be partitioned by: the day, which is not in the files, and the queue if wanted."""
NESTED = ("headers", "groups")
MOMENT = {MESSAGES: "timestamp", JOURNAL: "time"}
"""The column that determines the day of a row, by table."""
ORDER = {MESSAGES: "seq", JOURNAL: "position"}
"""The column that gives the rows of a queue their order, by table."""

Columns = tuple[tuple[str, bool], ...]
"""The columns to read, as sent from the driver to executors: names, and whether each may be null."""


def names_of(columns: Columns) -> set[str]:
    return {name for name, _ in columns}
