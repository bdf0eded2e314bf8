"""The dead letters of the report: counted by the queue where they died, the reason, and the consumer's error text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from curbstone.spark import calls
from curbstone.spark.client import Address, Client, queue_path
from curbstone.spark.columns import MESSAGES
from curbstone.spark.failure import Refused
from curbstone.spark.table import Table

if TYPE_CHECKING:
    import duckdb

SAMPLES, SAMPLE_BYTES = 3, 300
KINDS_MAX = 200
"""The most kinds that are returned; the most frequent ones come first."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An example of a dead letter: the message's id in its queue, and the beginning of its body.

    `place` is the queue that the dead letter was in (`project/queue`).
    """

    message_id: str
    tries: str
    body: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of one kind. `samples` are the last of them."""

    queue: str
    reason: str
    error: str
    count: int
    last: datetime
    samples: tuple[Sample, ...]


def dead_letters(
    base: duckdb.DuckDBPyConnection,
    *,
    server: Address | None,
    queues: Sequence[str] = (),
    lake: str = "",
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> list[DeadLetters]:
    """Return the dead letters in the lake and in the dead-letter queues of `queues`, the most frequent kinds first.

    `queues` (`project/queue`) and the times, which are those of death, limit what is counted.
    """
    base.execute(f"CREATE TEMP TABLE dead ({_TABLE})")
    if server is not None:
        client = Client(server)
        try:
            if where := _places(client, queues):
                from curbstone.spark import live

                base.register("fetched", live.messages(client, "", where))
                base.execute(f"INSERT INTO dead SELECT {_COLUMNS} FROM fetched WHERE {_IS_DEAD}")
                base.unregister("fetched")
        finally:
            client.close()
    if lake and Table(lake, MESSAGES).exists:
        base.register("stored", Table(lake, MESSAGES).dataset())
        base.execute(f"INSERT INTO dead SELECT {_COLUMNS} FROM stored WHERE {_IS_DEAD}")
        base.unregister("stored")
    limits = {"queues": list(queues), "since": since_ms, "until": until_ms}
    rows = base.sql(_KINDS, params=limits).to_arrow_table().to_pylist()
    return [DeadLetters(**{**row, "samples": tuple(map(_sample, row["samples"]))}) for row in rows]


def _places(server: Client, queues: Sequence[str]) -> list[str]:
    """Return the dead-letter queues of these queues."""
    found = []
    for queue in queues:
        name = str(server.json("GET", queue_path(queue))["options"]["dead_letter"])
        if name:
            found.append(name if "/" in name else f"{calls.project_of(queue)}/{name}")
    return [name for name in dict.fromkeys(found) if _exists(server, name)]


def _exists(server: Client, queue: str) -> bool:
    try:
        calls.offsets(server, queue)
    except Refused as refused:
        if refused.status != calls.NOT_FOUND:
            raise
        return False
    return True


def _sample(found: dict[str, object]) -> Sample:
    body = found["body"]
    assert isinstance(body, bytes)
    return Sample(str(found["id"]), str(found["tries"]), body.decode("utf-8", "replace"), str(found["place"]))


_TABLE = """
    project VARCHAR, queue VARCHAR, epoch VARCHAR, seq BIGINT, came_from VARCHAR, reason VARCHAR, error VARCHAR,
    died TIMESTAMPTZ, id VARCHAR, tries VARCHAR, body BLOB
"""
_IS_DEAD = "headers['x-dead-reason'] IS NOT NULL AND headers['x-dead-queue'] IS NOT NULL"
_COLUMNS = f"""
    project, queue, epoch, seq, headers['x-dead-queue'], headers['x-dead-reason'],
    left(coalesce(headers['x-dead-error'], ''), {SAMPLE_BYTES}),
    make_timestamptz(coalesce(TRY_CAST(headers['x-dead-time'] AS BIGINT), epoch_ms(timestamp)) * 1000),
    coalesce(headers['x-dead-id'], ''), coalesce(headers['x-dead-tries'], ''), body[:{SAMPLE_BYTES}]
"""
_AGE = "lpad(epoch_ms(died)::VARCHAR, 20, '0') || lpad(seq::VARCHAR, 20, '0') || id"
"""The order of death. In the same millisecond the higher seq is the later one, so that the same dead letters always
give the same samples.
"""
_KINDS = f"""
    SELECT came_from AS queue, reason, error, count(*) AS "count", max(died) AS last,
        arg_max(
            {{'id': id, 'tries': tries, 'body': body, 'place': project || '/' || queue}}, {_AGE}, {SAMPLES}
        ) AS samples
    FROM (SELECT DISTINCT ON (project, queue, epoch, seq) * FROM dead)
    WHERE (len($queues) = 0 OR list_contains($queues, came_from))
      AND ($since IS NULL OR epoch_ms(died) >= $since) AND ($until IS NULL OR epoch_ms(died) < $until)
    GROUP BY came_from, reason, error
    ORDER BY "count" DESC, last DESC, queue, reason, error LIMIT {KINDS_MAX}
"""
"""A dead letter that is both in the lake and in a queue is counted once."""
