"""`curbstone cron`: when runs are due, and that each is published once."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from curbstone.cli.client import Client
from curbstone.cli.cron import Clockwork, Done, read_jobs
from curbstone.cli.crontab import BadSchedule, Schedule
from curbstone.exit_codes import WRONG, CommandFailed
from tests.kit.commands import curbstone, running
from tests.kit.server import ServerProcess

START = datetime(2026, 3, 27, 10, 17, tzinfo=UTC)  # a Friday, two days before summer time in Berlin
BERLIN = ZoneInfo("Europe/Berlin")


def runs(text: str, count: int = 3, zone: ZoneInfo | None = None, start: datetime = START) -> list[str]:
    """Return the next runs, in the zone."""
    found = islice(Schedule(text, zone or UTC).after(start), count)
    return [f"{run.astimezone(zone or UTC):%m-%d %H:%M}" for run in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", ["03-27 10:18", "03-27 10:19", "03-27 10:20"]),
        ("*/20 * * * *", ["03-27 10:20", "03-27 10:40", "03-27 11:00"]),
        ("17 10 * * *", ["03-28 10:17", "03-29 10:17", "03-30 10:17"]),
        ("0 8-18/5 * * *", ["03-27 13:00", "03-27 18:00", "03-28 08:00"]),
        ("5/25 12 * * *", ["03-27 12:05", "03-27 12:30", "03-27 12:55"]),
        ("0 0 1,15 * *", ["04-01 00:00", "04-15 00:00", "05-01 00:00"]),
        ("0 9 * * mon-fri", ["03-30 09:00", "03-31 09:00", "04-01 09:00"]),
        ("0 9 * * 7", ["03-29 09:00", "04-05 09:00", "04-12 09:00"]),
        ("0 0 13 * fri", ["04-03 00:00", "04-10 00:00", "04-13 00:00"]),
        ("0 0 29 feb *", ["02-29 00:00", "02-29 00:00", "02-29 00:00"]),
        ("@weekly", ["03-29 00:00", "04-05 00:00", "04-12 00:00"]),
    ],
)
def test_cron_fields(text: str, expected: list[str]) -> None:
    assert runs(text) == expected


def test_dst_gap_runs_after_the_change_and_dst_overlap_runs_once() -> None:
    assert runs("30 2 * * *", 3, BERLIN) == ["03-28 02:30", "03-29 03:00", "03-30 02:30"]
    autumn = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert runs("30 2 * * *", 3, BERLIN, autumn) == ["10-25 02:30", "10-26 02:30", "10-27 02:30"]
    assert runs("0 0 * * *", 2, ZoneInfo("America/Santiago"), datetime(2026, 9, 5, 12, tzinfo=UTC)) == [
        *("09-06 01:00", "09-07 00:00")
    ]


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *"]
    + ["a * * * *", "*-3 * * * *", "1,,2 * * * *", "0 0 31 feb *", "-1 * * * *", "@never"],
)
def test_a_bad_schedule_is_reported(text: str) -> None:
    with pytest.raises(BadSchedule, match="schedule"):
        Schedule(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "tables"),
        ("[jobs.a]\nqueue='q'", "the key 'schedule' is missing"),
        ("[jobs.a]\nqueue='q'\nschedule='* * * * *'\ntime=1", "unknown key 'time'; known keys: alone, body"),
        ("[jobs.a]\nqueue='q'\nschedule='x'", "expected minute hour"),
        ("[jobs.a]\nqueue='q'\nschedule='@daily'\nzone='Europe/Atlantis'", "time zone"),
        ("[jobs.a]\nqueue='q'\nschedule='@daily'\nmissed='some'", "missed is one of"),
        ("[jobs.a]\nqueue='q'\nschedule='@daily'\nheaders={a=1}", "headers"),
        ("[jobs.'a b']\nqueue='q'\nschedule='@daily'", "a name is"),
        ("jobs", "Expected"),
    ],
)
def test_a_bad_file_is_reported_with_the_name_of_the_job(tmp_path: Path, text: str, rule: str) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CommandFailed, match=rule) as caught:
        read_jobs(file)
    assert caught.value.code == WRONG


class Lab:
    """A server, a file of jobs, and a clock that is turned by hand."""

    def __init__(self, path: Path, server: ServerProcess, jobs: str, *, state: str = "state") -> None:
        self.url = f"{server.url}/v2/shop/queues/q"
        file = path / "jobs.toml"
        file.write_text(jobs, encoding="utf-8")
        httpx.put(self.url).raise_for_status()
        self.jobs = read_jobs(file)
        self.server = server
        self.state = path / state
        self.now = START

    def live(self, *minutes: float) -> None:
        """Run from a start to SIGTERM: now, and again each time that so many minutes have passed."""
        left = list(minutes)

        def wait(_seconds: float) -> bool:
            if left:
                self.now += timedelta(minutes=left.pop(0))
                return False
            return True

        with Client(self.server.url) as client:
            Clockwork(self.jobs, client, Done(self.state), wait, lambda: self.now).run()

    def minutes(self) -> list[str]:
        """Return the minutes of what is in the queue."""
        messages = httpx.get(f"{self.url}/messages").json()["messages"]
        return [message["x-msg-x-cron-time"][11:16] for message in messages]


def job(**more: str) -> str:
    lines = [f"{name} = {value}" for name, value in more.items()]
    return "\n".join(["[jobs.tick]", 'queue = "shop/q"', 'schedule = "*/10 * * * *"', *lines])


def test_each_run_is_published_once_across_processes_and_restarts(tmp_path: Path, server: ServerProcess) -> None:
    lab = Lab(tmp_path, server, job(body="{n = 1}", headers='{kind = "x"}'))
    other = Lab(tmp_path, server, job(), state="other")
    lab.live(2)
    other.live(2)
    assert lab.minutes() == []
    lab.live(1, 1, 5, 5)
    assert lab.minutes() == ["10:20", "10:30"]
    lab.live()
    other.live(9, 5)
    assert lab.minutes() == ["10:20", "10:30"]
    lab.state.unlink()
    lab.live()
    assert lab.minutes() == ["10:20", "10:30"], "the server knows it, too"
    (first, _) = httpx.get(f"{lab.url}/messages").json()["messages"]
    assert (json.loads(first["message"]), first["x-msg-x-kind"], first["x-msg-x-cron-job"]) == ({"n": 1}, "x", "tick")
    assert first["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("last", ["11:10"]), ("all", ["10:20", "10:30", "10:40", "10:50", "11:00", "11:10"]), ("none", [])],
)
def test_missed_runs_are_caught_up_as_configured(
    tmp_path: Path, server: ServerProcess, missed: str, expected: list[str]
) -> None:
    lab = Lab(tmp_path, server, job(missed=f'"{missed}"'))
    lab.live()
    lab.now += timedelta(minutes=57)
    lab.live()
    assert lab.minutes() == expected


def test_run_is_skipped_while_the_previous_waits(tmp_path: Path, server: ServerProcess) -> None:
    lab = Lab(tmp_path, server, job(alone="true"))
    lab.live(3, 10, 10)
    assert lab.minutes() == ["10:20"]
    assert httpx.delete(f"{lab.url}/messages").status_code == 200
    lab.live()
    assert lab.minutes() == [], "what was left out is not made up for"
    lab.live(10)
    assert lab.minutes() == ["10:50"]


def test_cron_waits_for_an_unreachable_server(tmp_path: Path, server: ServerProcess) -> None:
    lab = Lab(tmp_path, server, job())
    lab.live()
    server.kill()
    lab.live(4, 0.1)
    server.restart(same_ports=True)
    lab.live()
    assert lab.minutes() == ["10:20"]


def test_cron_command_runs_until_stopped(tmp_path: Path, server: ServerProcess) -> None:
    httpx.put(f"{server.url}/v2/shop/queues/q").raise_for_status()
    file = tmp_path / "jobs.toml"
    file.write_text('[jobs.tick]\nqueue = "shop/q"\nschedule = "* * * * *"\nbody = "hello"', encoding="utf-8")
    assert "tick: " in curbstone("cron", str(file), "--check", cwd=tmp_path).out
    minute = int(datetime.now(UTC).timestamp()) // 60
    (tmp_path / "jobs.toml.state").write_text(json.dumps({"tick": minute - 5}), encoding="utf-8")
    with running("cron", str(file), "--server", server.url, cwd=tmp_path) as process:
        messages: list[dict[str, Any]] = []
        while not messages:  # a lease waits for 30 s at most
            assert process.poll() is None
            reply = httpx.post(f"{server.url}/v2/shop/queues/q/messages/lease", json={"wait": 30})
            messages = reply.json()["messages"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert [message["message"] for message in messages] == ["hello"]
    assert json.loads((tmp_path / "jobs.toml.state").read_text())["tick"] >= minute
