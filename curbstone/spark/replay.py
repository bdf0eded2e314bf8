"""`curbstone pipeline replay`: publishes messages of a lake to queues again, in their order, once per name.

When a replay begins, its plan is written to the lake: the version of the table, the filter, and the target. The
messages are published in pieces, each a transaction named after the replay and the number of the piece. So a replay
that was killed resumes where it stopped, and a complete one does nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from curbstone.spark import calls, checks, jobs
from curbstone.spark.client import Address, Client, checked_name
from curbstone.spark.columns import DAY, MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.frames import write_part
from curbstone.spark.options import address_of, moment_ms
from curbstone.spark.sql import database, first_line
from curbstone.spark.table import Table, absolute, day_of

if TYPE_CHECKING:
    import duckdb

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,180}")
FROM_HEADER = "x-replayed-from"
PIECE_BYTES = 32 << 20
"""The total size of the bodies in one transaction. Each of its parts is at most half as large."""
ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Filter:
    """Selects messages of the lake: those of these queues, published from `since_ms` on and before `until_ms`."""

    queues: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    where: str = ""
    """A condition in DuckDB's SQL on the columns of the lake, such as `headers['lang'] = 'de'`."""


@dataclass(frozen=True)
class Replayed:
    """`messages` is the number of selected messages. `repeated`: the name was used before; nothing was published."""

    messages: int
    bytes: int
    queues: int
    repeated: bool = False


class Plan:
    """The plan of a replay, stored in the lake under its name, with the number of `pieces` published so far."""

    def __init__(self, lake: str, name: str, wanted: Filter, into: str) -> None:
        from curbstone.spark.parts import filesystem

        self._files, root = filesystem(absolute(lake))
        self._folder, self._path = f"{root}/_replays", f"{root}/_replays/{name}.json"
        meant = {**asdict(wanted), "queues": list(wanted.queues), "into": into}
        known = self._read()
        if known is not None and known["meant"] != meant:
            raise PipelineError(f"replay {name} was begun with other options; use another name for this one")
        fresh = {"meant": meant, "version": None, "pieces": 0, "done": False, "uid": secrets.token_hex(6)}
        self._facts: dict[str, Any] = known or fresh

    @property
    def version(self) -> int | None:
        """The version of the table; None before the replay begins."""
        version: int | None = self._facts["version"]
        return version

    @property
    def pieces(self) -> int:
        return int(self._facts["pieces"])

    def transaction(self, name: str, piece: int) -> str:
        """Return the id of a piece's transaction. It differs for a replay of the same name from another lake."""
        uid = self._facts.get("uid")  # missing in replays that version 0.1.0 began
        return f"replay-{name[:150]}-{uid}-{piece:06d}" if uid else f"replay-{name}-{piece:06d}"

    @property
    def is_done(self) -> bool:
        return bool(self._facts["done"])

    def note(self, **facts: int | bool) -> None:
        """Update the plan, and write it to the lake."""
        self._facts.update(facts)
        self._files.create_dir(self._folder, recursive=True)
        with self._files.open_output_stream(f"{self._path}.new") as file:
            file.write(json.dumps(self._facts).encode())
        self._files.move(f"{self._path}.new", self._path)

    def _read(self) -> dict[str, Any] | None:
        if not self._files.get_file_info(self._path).is_file:
            return None
        with self._files.open_input_file(self._path) as file:
            found: dict[str, Any] = json.loads(file.read())
        return found


def replay(lake: str, name: str, server: Address, wanted: Filter, *, into: str = "", dry_run: bool = False) -> Replayed:
    """Publish the selected messages to their own queues, or all to the queue `into`. Return their number.

    Raise PipelineError. Repeating the call does not publish again what was published before the error.
    """
    plan = Plan(lake, name, wanted, into)
    was_done = plan.is_done
    version = plan.version
    table = Table(lake, MESSAGES)
    read = table.open().version() if version is None else version
    with database() as base:
        jobs.show_status("reading the lake")
        base.register("stored", table.dataset(read))
        _choose(base, wanted)
        found = Replayed(*base.execute(_SUMS).fetchall()[0])
        if not dry_run and found.messages and not was_done:
            if version is None:
                plan.note(version=read)
            _publish(base, plan, name, server, into, found)
        jobs.clear_status()
    return replace(found, repeated=was_done and not dry_run)


_SUMS = """
    SELECT count(*), coalesce(sum(octet_length(body)), 0)::BIGINT, count(DISTINCT project || '/' || queue) FROM chosen
"""


def _choose(base: duckdb.DuckDBPyConnection, wanted: Filter) -> None:
    """Create the view `chosen` of the selected rows, with each message once."""
    import duckdb

    limits = ["TRUE"]
    if wanted.queues:
        limits.append("project || '/' || queue IN (" + ", ".join(f"'{queue}'" for queue in wanted.queues) + ")")
    for time_ms, compares in ((wanted.since_ms, ">="), (wanted.until_ms, "<")):
        if time_ms is not None:
            limits.append(f"timestamp {compares} make_timestamptz({time_ms * 1000})")
            limits.append(f"{DAY} {compares[0]}= DATE '{day_of(time_ms)}'")
    try:
        base.execute(f"CREATE VIEW limited AS SELECT * FROM stored WHERE {' AND '.join(limits)}")
        base.execute(
            "CREATE VIEW chosen AS SELECT DISTINCT ON (project, queue, epoch, seq) *"
            f" FROM limited WHERE ({wanted.where or 'TRUE'})"
        )
    except duckdb.Error as error:
        raise PipelineError(f"--where: {first_line(error)}") from None


def _publish(
    base: duckdb.DuckDBPyConnection, plan: Plan, name: str, address: Address, into: str, found: Replayed
) -> None:
    server = Client(address)
    done = 0
    try:
        for number, piece in enumerate(_pieces(base, into)):
            done += piece.messages
            if number < plan.pieces:
                continue
            transaction = plan.transaction(name, number)
            state = calls.transaction_state(server, piece.project, transaction)
            if state is None or state["state"] != "committed":
                parts = [f"{place:05d}" for place in range(len(piece.parts))]
                for part, frames in zip(parts, piece.parts, strict=True):
                    calls.put_part(server, piece.project, transaction, part, frames)
                calls.commit(server, piece.project, transaction, parts)
            plan.note(pieces=number + 1)
            jobs.show_status(f"replayed {done:,} of {found.messages:,} messages")
        plan.note(done=True)
    finally:
        server.close()


@dataclass
class _Piece:
    """The contents of one transaction: parts of frames, for queues of one project."""

    project: str
    parts: list[bytes]
    messages: int
    size: int

    def add(self, queue: str, bodies: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        frame = write_part(queue, bodies, blocks, [0] * len(bodies))
        if self.parts and len(self.parts[-1]) + len(frame) <= PIECE_BYTES // 2:
            self.parts[-1] += frame
        else:
            self.parts.append(frame)
        self.messages += len(bodies)
        self.size += sum(map(len, bodies))


_IN_ORDER = """
    SELECT project, queue, seq, content_type, headers, body FROM (
        SELECT *, min(timestamp) OVER (PARTITION BY project, queue, epoch) AS began FROM chosen
    ) ORDER BY project, queue, began, epoch, seq
"""
"""By queue, and then in the order of publishing, even if a queue was deleted and created again."""


def _pieces(base: duckdb.DuckDBPyConnection, into: str) -> Iterator[_Piece]:
    """Yield the pieces to publish. The same rows always give the same pieces."""
    from curbstone.spark.arrow import Blocks

    blocks = Blocks()
    target = checked_name(into) if into else None
    piece: _Piece | None = None
    for batch in base.sql(_IN_ORDER).to_arrow_reader(ROWS_AT_ONCE):
        rows = batch.to_pylist()
        start = 0
        while start < len(rows):
            first = rows[start]
            project, queue = target or (first["project"], first["queue"])
            end, size = start, 0
            while end < len(rows) and size < PIECE_BYTES // 4:
                if not target and (rows[end]["project"], rows[end]["queue"]) != (project, queue):
                    break
                size += len(rows[end]["body"])
                end += 1
            if piece is not None and (piece.project != project or piece.size + size > PIECE_BYTES):
                yield piece
                piece = None
            piece = piece or _Piece(project, [], 0, 0)
            part = rows[start:end]
            piece.add(queue, [row["body"] for row in part], [_block(row, blocks) for row in part])
            start = end
    if piece is not None:
        yield piece


def _block(row: dict[str, Any], blocks: Any) -> bytes:
    pairs = [(name, value) for name, value in row["headers"] or () if name != FROM_HEADER]
    pairs.append((FROM_HEADER, f"{row['project']}/{row['queue']}/{row['seq']}"))
    made: bytes = blocks.of(row["content_type"], pairs)
    return made


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse and return the command line. End the process with code 2 if it is wrong."""
    parser = jobs.parser(
        "replay", "Publish messages of a lake again, in their order. Repeating a NAME publishes nothing."
    )
    parser.add_argument(
        "name", metavar="NAME", help="a name for this replay: 1 to 180 characters of A-Z a-z 0-9 . _ : -"
    )
    parser.add_argument("--lake", required=True, metavar="DIR", help="the lake that `archive` fills")
    parser.add_argument(
        "--queue", action="append", default=[], metavar="QUEUE", help="only messages of this queue (repeatable)"
    )
    parser.add_argument(
        "--since",
        default="",
        metavar="TIME",
        help="only messages published at this time or later, such as 2026-01-31T12:00:00Z",
    )
    parser.add_argument("--until", default="", metavar="TIME", help="only messages published before this time")
    parser.add_argument(
        "--where",
        default="",
        metavar="SQL",
        help="only messages that meet this condition, such as \"content_type = 'text/csv'\"",
    )
    parser.add_argument(
        "--into",
        default="",
        metavar="QUEUE",
        help="publish to this queue, instead of those that the messages came from",
    )
    parser.add_argument("--dry-run", action="store_true", help="only report what would be published")
    return parser.parse_args(given)


def _job(known: argparse.Namespace) -> str:
    try:
        if not _NAME.fullmatch(known.name):
            raise PipelineError("the name of a replay must be 1 to 180 of A-Z a-z 0-9 . _ : -")
        address = address_of(known.server, known.token_file or "", known.ca_file or "")
        into = str(checked_name(known.into)) if known.into else ""
        wanted = Filter(
            tuple(str(checked_name(queue)) for queue in known.queue),
            moment_ms(known.since, "--since") if known.since else None,
            moment_ms(known.until, "--until") if known.until else None,
            known.where,
        )
    except PipelineError as error:
        raise jobs.UsageError(str(error)) from None
    checks.check_lake(known.lake, MESSAGES)
    if not known.dry_run:
        checks.check_server(address, (into,) if into else ())
    done = replay(known.lake, known.name, address, wanted, into=into, dry_run=known.dry_run)
    what = f"{jobs.quantity(done.messages, 'message')} ({done.bytes:,} bytes) of {jobs.quantity(done.queues, 'queue')}"
    if known.dry_run:
        return f"would replay {what}"
    if done.repeated:
        return f"replay {known.name} was done before; nothing was published"
    return f"replayed {what}"


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given), needs=jobs.SQL_PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
