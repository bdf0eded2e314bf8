"""`curbstone cron FILE`: publishes messages on a schedule. It is an ordinary producer; the server has no schedules.

Each job is a numbered producer, and the number of a message is its minute. So each run is published once, even if the
command is killed and restarted, or runs several times with the same file. The last runs are also kept in a file,
because a server drops the state of a producer that was idle for a week.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from curbstone.cli.client import Client, Refused, queue_of
from curbstone.cli.crontab import BadSchedule, Schedule
from curbstone.core.names import QueueName
from curbstone.exit_codes import WRONG, CommandFailed
from curbstone.http_client import Backoff

Missed = Literal["last", "all", "none"]

LATE = timedelta(minutes=1)
"""A run that is later than this was missed."""
MISSED_MAX = 1000
"""How many missed runs of a job are published at most, the latest ones."""
LOOK_S_MAX = 30.0
"""How often the clock is read at least, because it may be set, or the machine may sleep."""
RETRY_S_MAX = 30.0

_MEMBERS = {"schedule", "queue", "body", "type", "headers", "zone", "missed", "alone"}


@dataclass(frozen=True)
class Job:
    """A job: one table of the file."""

    name: str
    schedule: Schedule
    queue: QueueName
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    missed: Missed = "last"
    alone: bool = False

    def due(self, last: datetime, now: datetime) -> list[datetime]:
        """Return the runs after `last` that are due now and are to be published."""
        runs = list(takewhile(lambda run: run <= now, self.schedule.after(last)))[-MISSED_MAX:]
        if self.missed == "last":
            return runs[-1:]
        return [run for run in runs if self.missed == "all" or now - run < LATE]


def cron(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file with the jobs")],
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", metavar="FILE", help="The file in which the last runs are recorded. Default: FILE.state"
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the file, print when each job runs next, and exit")
    ] = False,
) -> None:
    """Publish messages on a schedule until SIGTERM.

    Each run is published once. Runs that were missed while this command was not running are published later as the
    file says.
    """
    jobs = read_jobs(file)
    if check:
        for job in jobs:
            print(f"{job.name}: {next(job.schedule.after(datetime.now(UTC))):%Y-%m-%d %H:%M} UTC to {job.queue}")
        return

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with Client() as client:
        Clockwork(jobs, client, Done(state or file.with_name(file.name + ".state")), stop.wait).run()


def read_jobs(file: Path) -> list[Job]:
    """Return the jobs of a file. Raise CommandFailed if the file is missing or wrong."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}", WRONG) from None
    except ValueError as error:
        raise CommandFailed(f"{file}: {error}", WRONG) from None
    tables = found.get("jobs")
    if found.keys() != {"jobs"} or not isinstance(tables, dict) or not tables:
        raise CommandFailed(f"{file}: expected tables [jobs.NAME], at least one, and nothing else", WRONG)
    return [_job(file, name, table) for name, table in tables.items()]


def _job(file: Path, name: str, table: Any) -> Job:
    from curbstone.access.authorization import PRODUCER_NAME

    def wrong(text: str) -> CommandFailed:
        return CommandFailed(f"{file}: [jobs.{name}]: {text}", WRONG)

    if not isinstance(table, dict):
        raise wrong("expected a table")
    if unknown := sorted(table.keys() - _MEMBERS):
        raise wrong(f"unknown key {unknown[0]!r}; known keys: {', '.join(sorted(_MEMBERS))}")
    if missing := sorted({"schedule", "queue"} - table.keys()):
        raise wrong(f"the key {missing[0]!r} is missing")
    if not PRODUCER_NAME.fullmatch(f"cron:{name}"):
        raise wrong("a name is 1 to 59 of A-Z a-z 0-9 . _ : -")
    body, headers = table.get("body", ""), table.get("headers", {})
    texts = [table["schedule"], table["queue"], table.get("type", ""), table.get("zone", "UTC")]
    if not all(isinstance(text, str) for text in texts):
        raise wrong("schedule, queue, type and zone must be strings")
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise wrong("headers must be a table of strings")
    if table.get("missed", "last") not in get_args(Missed) or not isinstance(table.get("alone", False), bool):
        raise wrong(f"missed is one of {', '.join(get_args(Missed))}, and alone is true or false")
    try:
        schedule = Schedule(table["schedule"], _zone(texts[3]))
    except BadSchedule as error:
        raise wrong(str(error)) from None
    kind = texts[2] or ("text/plain; charset=utf-8" if isinstance(body, str) else "application/json")
    data = body.encode() if isinstance(body, str) else json.dumps(body, default=str).encode()
    named = {f"x-msg-x-{key}": value for key, value in headers.items()} | {"content-type": kind}
    return Job(
        name, schedule, queue_of(table["queue"]), data, named, table.get("missed", "last"), table.get("alone", False)
    )


def _zone(name: str) -> Any:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadSchedule(f"unknown time zone {name!r}") from None


class Done:
    """The last run of each job, kept in a file that is replaced as a whole."""

    def __init__(self, file: Path) -> None:
        """Read the file, if there is one. Raise CommandFailed if it can't be read."""
        self._file = file
        self._runs: dict[str, int] = {}
        try:
            if file.exists():
                self._runs = {str(name): int(run) for name, run in json.loads(file.read_text("utf-8")).items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise CommandFailed(f"can't read {file}: {error}; delete it to start the jobs from now", WRONG) from None

    def __getitem__(self, job: str) -> int | None:
        return self._runs.get(job)

    def __setitem__(self, job: str, run: int) -> None:
        self._runs[job] = run
        written = self._file.with_name(self._file.name + ".new")
        with written.open("w", encoding="utf-8") as file:
            json.dump(self._runs, file)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._file)


class Clockwork:
    """Publishes the runs that are due, and waits for the next."""

    def __init__(
        self,
        jobs: list[Job],
        client: Client,
        done: Done,
        wait: Callable[[float], bool],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`wait` waits for a number of seconds, and returns whether to stop."""
        self._jobs = jobs
        self._client = client
        self._done = done
        self._wait = wait
        self._now = now
        self._last: dict[str, datetime] = {}

    def run(self) -> None:
        """Run until `wait` returns True. If the server can't be reached or refuses, retry."""
        backoff = Backoff(1, RETRY_S_MAX)
        while True:
            try:
                self._publish_due()
            except CommandFailed as error:
                if error.code == WRONG:
                    raise
                retry_s = backoff.next_s()
                print(f"curbstone cron: {error}; retrying in {retry_s:g} s", file=sys.stderr, flush=True)
                if self._wait(retry_s):
                    return
                continue
            backoff.reset()
            if self._wait(min(LOOK_S_MAX, self._seconds_left())):
                return

    def _seconds_left(self) -> float:
        now = self._now()
        return min([(next(job.schedule.after(now)) - now).total_seconds() for job in self._jobs])

    def _publish_due(self) -> None:
        for job in self._jobs:
            if job.name not in self._last:
                self._last[job.name] = self._begin(job)
            now = self._now()
            for run in job.due(self._last[job.name], now):
                if not (job.alone and self._is_waiting(job)):
                    self._publish(job, run)
                self._note(job, run)
            self._last[job.name] = max(self._last[job.name], now)

    def _begin(self, job: Job) -> datetime:
        """Return the time after which a job's runs are due: that of its last run, or now if there was none."""
        known = [self._done[job.name], self._stored(job)]
        runs = [run for run in known if run is not None]
        if runs:
            return datetime.fromtimestamp(max(runs) * 60, UTC)
        now = self._now()
        self._done[job.name] = int(now.timestamp()) // 60
        return now

    def _stored(self, job: Job) -> int | None:

        try:
            return int(self._client.json("GET", job.queue, f"/producers/cron:{job.name}")["seq"])
        except Refused as refused:
            if refused.status != 404:
                raise
        return None

    def _is_waiting(self, job: Job) -> bool:
        info = self._client.json("GET", job.queue)
        return bool(info["rdy"] + info["wip"] + info["delayed"])

    def _publish(self, job: Job, run: datetime) -> None:
        headers: Mapping[str, str] = job.headers | {
            "x-msg-x-cron-job": job.name,
            "x-msg-x-cron-time": f"{run:%Y-%m-%dT%H:%MZ}",
            "x-msg-producer": f"cron:{job.name}",
            "x-msg-seq": str(int(run.timestamp()) // 60),
            "x-msg-after": "0",
        }
        self._client.queue("POST", job.queue, "/messages", content=job.body, headers=dict(headers))
        print(f"{run:%Y-%m-%d %H:%M} UTC: {job.name} published to {job.queue}", flush=True)

    def _note(self, job: Job, run: datetime) -> None:
        self._last[job.name] = run
        self._done[job.name] = int(run.timestamp()) // 60
