"""Clocks of the server and of the archive that jump: each message is in the lake once, in the file of its day."""

from __future__ import annotations

import json
from pathlib import Path

import curbstone.sql
from curbstone.spark.columns import JOURNAL, MESSAGES
from curbstone.spark.gaps import gaps_of
from curbstone.spark.table import Table
from tests.kit.clock import Clock
from tests.kit.server import ServerProcess
from tests.spark import jobs
from tests.spark.kit import make_queue, numbered, publish

QUEUE = "shop/kept"
DAY_S = 86_400
JUMPS = (("+0", "+0"), (f"-{3 * DAY_S}", "+0"), (f"+{40 * DAY_S}", "-3600"), ("-7200", f"+{40 * DAY_S}"))
"""Offsets of the clocks of the server and of the archive: back and on, over days, and over what is due to expire."""
LASTING, EXPIRING = 40, 10
ARCHIVE_AND_COMPACT = """
import sys
from curbstone.spark import archive, compact
lake, *words = sys.argv[1:]
sys.exit(archive.main([*words, "--lake", lake]) or compact.main([lake, "--keep-hours", "1"]))
"""


def test_clock_jumps_lose_duplicate_and_hide_nothing(tmp_path: Path) -> None:
    of_server, of_archive = Clock(tmp_path / "server-clock"), Clock(tmp_path / "archive-clock")
    lake, sent = tmp_path / "lake", list[str]()
    with ServerProcess(tmp_path / "data", "--log-level=warning", env=of_server.env) as server:
        make_queue(server.url, QUEUE)
        words = (str(lake), QUEUE, "--journal", "--once", "--server", server.url)
        for number, (offset, offset_of_archive) in enumerate(JUMPS):
            of_server.set(offset)
            of_archive.set(offset_of_archive)
            sent += numbered(LASTING, number * LASTING)
            publish(server.url, QUEUE, sent[-LASTING:])
            server.restart(same_ports=True)
            publish(server.url, QUEUE, [f"expires {number} {index}" for index in range(EXPIRING)], ttl=1800)
            jobs.run(jobs.start("-c", ARCHIVE_AND_COMPACT, *words, env=of_archive.env))
        [status] = jobs.run(jobs.job("status", str(lake), "--json", "--server", server.url)).splitlines()
    found = jobs.bodies(lake)
    assert [body for body in found if body.startswith("message")] == sent
    assert len(set(found)) == len(found)
    standing = json.loads(status)
    assert (standing["lost"], standing["lag_messages"], gaps_of(str(lake))) == (0, 0, [])
    assert standing["archived"] == len(found)
    assert standing["archived"] + standing["left_out"] == len(JUMPS) * (LASTING + EXPIRING)
    rows = Table(str(lake), MESSAGES).dataset().to_table(columns=["date", "timestamp"]).to_pylist()
    assert all(row["date"] == row["timestamp"].date() for row in rows)
    assert len({row["date"] for row in rows}) >= 3
    with curbstone.sql.connect(lake) as base:
        for day in {row["date"] for row in rows}:
            count = sum(row["date"] == day for row in rows)
            for where in (f"date = '{day}'", f"timestamp >= '{day}' AND timestamp < DATE '{day}' + 1"):
                assert base.sql(f"SELECT count(*) FROM messages WHERE {where}").fetchall() == [(count,)]
    events = Table(str(lake), JOURNAL).dataset().to_table(columns=["event", "seq", "count"]).to_pylist()
    published = [row["seq"] + place for row in events if row["event"] == "published" for place in range(row["count"])]
    assert sorted(published) == list(range(1, len(JUMPS) * (LASTING + EXPIRING) + 1))
