"""The figures of the report per queue, group and minute, computed from the journal and the lake.

A message counts as published once for each group that reads the queue (the unnamed group always does), because each of
them has to settle it. A message that names its groups counts for those. Latency is the exact time from publish to
settle; that of a named group excludes messages from before its first settle, because the age of the backlog that a late
group finds says nothing about the group. The backlog is the number of messages published and not yet settled, rejected,
expired, purged or skipped, since the beginning of the journal and the lake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from curbstone.spark.client import Address, Client
from curbstone.spark.columns import JOURNAL, MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.table import Table

if TYPE_CHECKING:
    import duckdb

MINUTES_MAX = 500_000
"""The most rows of a report. A report with more covers too long a time."""


@dataclass(frozen=True, slots=True)
class Minute:
    """The figures of one minute, or of another interval that begins at `minute`.

    `p50` and so on are latencies in ms, None if nothing was settled. `rejected` counts dead letters. `skipped` counts
    messages that a group lost in a full queue.
    """

    project: str
    queue: str
    group: str
    minute: datetime
    published: int
    bytes: int
    settled: int
    retried: int
    rejected: int
    expired: int
    purged: int
    skipped: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    backlog: int


def gather(base: duckdb.DuckDBPyConnection, *, server: Address | None, queues: Sequence[str], lake: str) -> None:
    """Create the tables `events` and `published` from the server's journals of `queues`, the lake's journal, or both.

    `events` has each event once. `published` has each message once for each group it names ("" means all groups). It
    also has messages from before the beginning of the journal, if they are in the lake. Raises PipelineError if there
    is no journal.
    """
    base.execute(f"CREATE TEMP TABLE gathered ({_EVENT})")
    if server is not None:
        from curbstone.spark import live

        client = Client(server)
        try:
            base.register("fetched", live.journal(client, queues))
            base.execute(f"INSERT INTO gathered SELECT {_EVENT_NAMES} FROM fetched")
            base.unregister("fetched")
        finally:
            client.close()
    has_journal = bool(lake) and Table(lake, JOURNAL).exists
    if has_journal:
        base.register("stored", Table(lake, JOURNAL).dataset())
        base.execute(f"INSERT INTO gathered SELECT {_EVENT_NAMES} FROM stored")
        base.unregister("stored")
    elif server is None:
        raise PipelineError("there is no journal: name queues, or a lake that `archive --journal` has filled")
    base.execute(_EVENTS)
    if lake and Table(lake, MESSAGES).exists:
        base.register("messages", Table(lake, MESSAGES).dataset())
        base.execute(_OLDER)
        base.unregister("messages")


def minutes(
    base: duckdb.DuckDBPyConnection,
    *,
    queues: Sequence[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
    step_s: int = 60,
) -> list[Minute]:
    """Return the figures in the order of project, queue, group and time. Raise PipelineError if there are too many.

    Each row covers `step_s` seconds.

    `queues` (`project/queue`) and the times limit the returned rows, not what they count.
    """
    step_ms = step_s * 1000
    base.execute(_MINUTES.format(step_s=step_s, step_ms=step_ms))
    wanted = f"""
        SELECT * FROM figures_{step_s}
        WHERE (len($queues) = 0 OR list_contains($queues, project || '/' || queue))
          AND ($since IS NULL OR epoch_ms(minute) >= $since // {step_ms} * {step_ms})
          AND ($until IS NULL OR epoch_ms(minute) < $until)
        ORDER BY project, queue, "group", minute
    """
    limits = {"queues": list(queues), "since": since_ms, "until": until_ms}
    rows = base.sql(f"{wanted} LIMIT {MINUTES_MAX + 1}", params=limits).to_arrow_table().to_pylist()
    if len(rows) > MINUTES_MAX:
        raise PipelineError(f"more than {MINUTES_MAX:,} rows; report on fewer queues or a shorter time")
    return [Minute(**row) for row in rows]


def range_s(
    base: duckdb.DuckDBPyConnection,
    *,
    queues: Sequence[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> float:
    """Return the seconds between the first and the last event of these queues and times; 0 without events."""
    query = """
        SELECT (max(epoch_ms("time")) - min(epoch_ms("time"))) / 1000 FROM events
        WHERE (len($queues) = 0 OR list_contains($queues, project || '/' || queue))
          AND ($since IS NULL OR epoch_ms("time") >= $since) AND ($until IS NULL OR epoch_ms("time") < $until)
    """
    limits = {"queues": list(queues), "since": since_ms, "until": until_ms}
    found = base.execute(query, limits).fetchone()
    return float(found[0] or 0) if found else 0.0


_EVENT = (
    'project VARCHAR, queue VARCHAR, epoch VARCHAR, "position" BIGINT, event VARCHAR, seq BIGINT, "count" BIGINT,'
    ' "time" TIMESTAMPTZ, "group" VARCHAR, bytes BIGINT'
)
_EVENT_NAMES = 'project, queue, epoch, "position", event, seq, "count", "time", "group", bytes'

_EVENTS = """
    CREATE TEMP TABLE events AS
        SELECT DISTINCT ON (project, queue, epoch, "position", event, seq, "group") * FROM gathered;
    DROP TABLE gathered;
    CREATE TEMP TABLE published AS
        SELECT DISTINCT ON (project, queue, epoch, seq, "group") project, queue, epoch, seq, "time", bytes, "group"
        FROM events WHERE event = 'published'
"""

_OLDER = """
    INSERT INTO published
        SELECT DISTINCT ON (project, queue, epoch, seq)
            project, queue, epoch, seq, "timestamp", octet_length(body), ''
        FROM messages
        WHERE NOT EXISTS (
            FROM published AS known
            WHERE known.project = messages.project AND known.queue = messages.queue
              AND known.epoch = messages.epoch AND known.seq = messages.seq
        )
"""

_MINUTES = """
    CREATE OR REPLACE TEMP MACRO begin_of(moment, step) AS make_timestamptz(epoch_ms(moment) // step * step * 1000);
    CREATE TEMP TABLE IF NOT EXISTS figures_{step_s} AS
    WITH readers AS (
        SELECT project, queue, "group" FROM events WHERE event <> 'published'
        UNION SELECT project, queue, '' FROM published
    ),
    arrivals AS (
        SELECT readers.project, readers.queue, readers."group", begin_of("time", {step_ms}) AS minute,
            count(*) AS published, sum(bytes) AS bytes
        FROM published JOIN readers ON published.project = readers.project AND published.queue = readers.queue
            AND published."group" IN ('', readers."group")
        GROUP BY ALL
    ),
    ends AS (
        SELECT project, queue, "group", begin_of("time", {step_ms}) AS minute,
            sum("count") FILTER (event = 'settled') AS settled,
            sum("count") FILTER (event = 'released') AS retried,
            sum("count") FILTER (event IN ('rejected', 'dead')) AS rejected,
            sum("count") FILTER (event = 'expired') AS expired,
            sum("count") FILTER (event = 'purged') AS purged,
            sum("count") FILTER (event = 'skipped') AS skipped,
            sum("count") FILTER (
                event IN ('settled', 'rejected', 'dead', 'expired', 'purged', 'skipped', 'replaced')
            ) AS ended
        FROM events WHERE event <> 'published' GROUP BY ALL
    ),
    settled AS (
        SELECT project, queue, epoch, "group", "time" AS settled_at, unnest(range(seq, seq + "count")) AS seq
        FROM events WHERE event = 'settled'
    ),
    first AS (SELECT project, queue, epoch, seq, min("time") AS "time" FROM published GROUP BY ALL),
    starts AS (SELECT project, queue, "group", min(settled_at) AS began FROM settled GROUP BY ALL),
    ranks AS (
        SELECT project, queue, settled."group", begin_of(settled_at, {step_ms}) AS minute,
            quantile_cont(epoch_ms(settled_at) - epoch_ms("time"), [0.5, 0.95, 0.99]) AS ranks
        FROM settled JOIN first USING (project, queue, epoch, seq) JOIN starts USING (project, queue, "group")
        WHERE settled."group" = '' OR first."time" >= began GROUP BY ALL
    )
    SELECT project, queue, "group", minute,
        coalesce(published, 0)::BIGINT AS published, coalesce(bytes, 0)::BIGINT AS bytes,
        coalesce(settled, 0)::BIGINT AS settled, coalesce(retried, 0)::BIGINT AS retried,
        coalesce(rejected, 0)::BIGINT AS rejected, coalesce(expired, 0)::BIGINT AS expired,
        coalesce(purged, 0)::BIGINT AS purged, coalesce(skipped, 0)::BIGINT AS skipped,
        ranks[1]::DOUBLE AS p50_ms, ranks[2]::DOUBLE AS p95_ms, ranks[3]::DOUBLE AS p99_ms,
        greatest(0, sum(coalesce(published, 0) - coalesce(ended, 0))
            OVER (PARTITION BY project, queue, "group" ORDER BY minute))::BIGINT AS backlog
    FROM arrivals FULL JOIN ends USING (project, queue, "group", minute)
        LEFT JOIN ranks USING (project, queue, "group", minute)
"""
