"""The tables of a lake and what is stored in them."""

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
"""What is stored; `queue` is its name alone, without the project. What is added here comes last: a table that is there
already gets it with its next batch, and has null in its older rows (see `table`)."""
DAY = "date"
"""The table is partitioned by it; it is not in the files."""
MOMENT = {MESSAGES: "timestamp", JOURNAL: "time"}
"""The column that a row's day is taken from."""
