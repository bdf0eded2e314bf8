"""`curbstone pipeline status`: how far the archive of a lake is behind its queues, and which messages it lacks.

A running archive with `--metrics` serves the same figures to Prometheus; see `Metrics`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from curbstone.spark import calls, jobs, positions
from curbstone.spark.client import Address, Client
from curbstone.spark.columns import MESSAGES
from curbstone.spark.failure import PipelineError, Refused
from curbstone.spark.frames import read_page
from curbstone.spark.options import address_of
from curbstone.spark.places import Place
from curbstone.spark.table import Table

if TYPE_CHECKING:
    from curbstone.spark.archive import Archived

GROUP = "archive"


@dataclass(frozen=True)
class QueueProgress:
    """The progress of the archive in a queue.

    The archive has processed all messages below seq `next`: `archived` of them are in the lake, `lost` were lost, and
    `left_out` had expired or were not for the group. At most `lag_messages` are not archived yet, the oldest of which
    is `lag_seconds` old. Both are None if the queue, or the group, no longer exists.
    """

    queue: str
    next: int
    archived: int
    lost: int
    left_out: int
    lag_messages: int | None
    lag_seconds: float | None


def status(lake: str, address: Address, group: str = GROUP) -> list[QueueProgress]:
    """Return the progress in each queue of a lake, in the order of their names. Raise PipelineError."""
    table = Table(lake, MESSAGES)
    if not table.exists:
        raise table.missing_error()
    places = positions.stored(table)
    client = Client(address)
    try:
        now = calls.offsets_of(client, {queue: at["next"] for queue, at in places.items()}, group=group)
        return [_progress(client, queue, places[queue], now.get(queue), group) for queue in sorted(places)]
    finally:
        client.close()


def _progress(client: Client, queue: str, at: Place, now: calls.Offsets | None, group: str) -> QueueProgress:
    begin, rows, lost = (at.get(name, 0) for name in ("begin", "rows", "missed"))
    left_out = max(0, at["next"] - begin - rows - lost) if begin else 0
    lag, lag_s = (None, None) if now is None else _lag(client, queue, at, now, group)
    return QueueProgress(queue, at["next"], rows, lost, left_out, lag, lag_s)


def _lag(client: Client, queue: str, at: Place, now: calls.Offsets, group: str) -> tuple[int, float]:
    """Return the number of messages not archived, at most, and the age of the oldest in seconds."""
    low = max(now.floor, at["next"] if now.epoch == at["epoch"] else now.first)
    while low < now.next:
        query = {"group": group, "from": low, "to": now.next, "limit": 1, "headers": "false", "body": "false"}
        try:
            page = read_page(calls.browse(client, queue, query).body)
        except Refused as refused:
            first = refused.members.get("first")
            if refused.status != calls.GONE or not isinstance(first, int) or first <= low:
                raise
            low = first
            continue
        kept = [place for place in range(len(page)) if page.keep is None or page.keep[place]]
        if not kept:
            break
        age_s = time.time() - page.times_ms[kept[0]] / 1000
        return now.next - page.seqs[kept[0]], round(max(0.0, age_s), 3)
    return 0, 0.0


class Metrics:
    """The figures of a running archive in the text format of Prometheus."""

    def __init__(self, lake: str, address: Address, group: str, done: Archived) -> None:
        self._lake = lake
        self._address = replace(address, request_s=10, retry_s=0)
        self._group = group
        self._done = done

    def text(self) -> str:
        """Return the metrics. Without an answer of the server, those that need it are left out."""
        done = self._done
        lines = [
            _family("messages_total", "counter", "Messages that this process has archived", done.messages),
            _family("events_total", "counter", "Events that this process has archived", done.events),
            _family("batches_total", "counter", "Batches that this process has committed", done.batches),
            _family("gaps_total", "counter", "Gaps that this process has found", len(done.gaps)),
        ]
        if done.committed_at:
            lines.append(_family("last_commit_timestamp_seconds", "gauge", "Last commit", done.committed_at))
        try:
            found = status(self._lake, self._address, self._group)
        except PipelineError:
            return "".join([*lines, _family("up", "gauge", "Whether lake and server answer", 0)])
        lines.append(_family("up", "gauge", "Whether lake and server answer", 1))
        for name, kind, text in _OF_QUEUES:
            member = name.removesuffix("_messages_total")
            values = [(one.queue, getattr(one, member)) for one in found]
            lines.append(_family(name, kind, text, [(queue, value) for queue, value in values if value is not None]))
        return "".join(lines)

    @contextmanager
    def served(self, address: str) -> Iterator[str]:
        """Serve `/metrics` at HOST:PORT in a thread, and yield the address. Raise PipelineError."""
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            raise PipelineError(f"--metrics {address}: expected HOST:PORT, such as 127.0.0.1:9109")
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] == "/metrics"
                body = metrics.text().encode() if is_known else b"see /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        try:
            served = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
        except (OSError, OverflowError) as error:
            raise PipelineError(f"--metrics {address}: {error}") from None
        threading.Thread(target=served.serve_forever, daemon=True).start()
        try:
            yield f"{host}:{served.server_address[1]}"
        finally:
            served.shutdown()
            served.server_close()


_OF_QUEUES = (
    ("lag_messages", "gauge", "Messages that are not archived yet, at most"),
    ("lag_seconds", "gauge", "Age of the oldest message that is not archived yet"),
    ("archived_messages_total", "counter", "Messages of the queue in the lake"),
    ("lost_messages_total", "counter", "Messages that were lost before they could be archived"),
    ("left_out_messages_total", "counter", "Messages that had expired, or were not for the group"),
)


def _family(name: str, kind: str, text: str, values: float | Sequence[tuple[str, float]]) -> str:
    """Return the lines of a metric, with one value, or with the value of each queue."""
    full = f"curbstone_archive_{name}"
    lines = [f"# HELP {full} {text}.\n# TYPE {full} {kind}\n"]
    if isinstance(values, (int, float)):
        lines.append(f"{full} {values}\n")
        return "".join(lines)
    for queue, value in values:
        project, _, short = queue.partition("/")
        lines.append(f'{full}{{project="{project}",queue="{short}"}} {value}\n')
    return "".join(lines)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse and return the command line. End the process with code 2 if it is wrong."""
    parser = jobs.parser("status", "Show how far a lake's archive is behind its queues. Exit code 1 if too far.")
    parser.add_argument("lake", metavar="LAKE", help="the lake that `archive` fills")
    parser.add_argument("--group", default=GROUP, help=f"the group that the archive reads as ({GROUP})")
    parser.add_argument(
        "--max-lag", type=int, metavar="N", help="exit with 1 if a queue has more messages that are not archived"
    )
    parser.add_argument("--max-lag-seconds", type=float, metavar="S", help="exit with 1 if a message has waited longer")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each queue")
    return parser.parse_args(given)


def _job(known: argparse.Namespace) -> str:
    address = address_of(known.server, known.token_file or "", known.ca_file or "")
    found = status(known.lake, replace(address, retry_s=0), known.group)
    text = "\n".join(json.dumps(asdict(one)) for one in found) if known.json else _table(found)
    most, most_s = known.max_lag, known.max_lag_seconds
    late = [
        one
        for one in found
        if (most is not None and (one.lag_messages or 0) > most)
        or (most_s is not None and (one.lag_seconds or 0) > most_s)
    ]
    if not late:
        return text
    print(text, flush=True)
    worst = max(late, key=lambda one: one.lag_seconds or 0)
    behind = (
        f"{worst.queue} is {jobs.quantity(worst.lag_messages or 0, 'message')} and {worst.lag_seconds:,.0f} s behind"
    )
    raise PipelineError(f"{behind}; {jobs.quantity(len(late), 'queue')} are late" if len(late) > 1 else behind)


def _table(found: Sequence[QueueProgress]) -> str:
    heads = ("queue", "archived", "lost", "left out", "not archived", "oldest")
    rows = [
        (
            one.queue,
            f"{one.archived:,}",
            f"{one.lost:,}",
            f"{one.left_out:,}",
            "no such queue or group" if one.lag_messages is None else f"{one.lag_messages:,}",
            "" if not one.lag_seconds else f"{one.lag_seconds:,.0f} s",
        )
        for one in found
    ]
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    lines = []
    for row in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given), needs=jobs.LAKE_PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
