"""`curbstone pipeline status`, and the metrics of a running archive."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from curbstone.spark import status as job
from curbstone.spark.archive import Archived, archive
from curbstone.spark.options import address_of
from curbstone.spark.status import Metrics, status
from tests.kit.server import ServerProcess
from tests.spark.kit import call, make_queue, numbered, publish

QUEUE = "shop/kept"


@pytest.fixture
def lake(server: ServerProcess, tmp_path: Path) -> Path:
    """A lake with 10 messages, of a queue where 5 more were lost, 3 expired, and 2 were for others."""
    make_queue(server.url, QUEUE)
    call(server.url, "PUT", "/v2/shop/queues/kept/groups/archive", {"start": "earliest"})
    publish(server.url, QUEUE, numbered(10))
    options = {"url": server.url, "queues": QUEUE, "failOnDataLoss": "false"}
    archive(None, str(tmp_path), options, once=True)
    publish(server.url, QUEUE, numbered(5))
    call(server.url, "POST", "/v2/shop/queues/kept/purge")
    publish(server.url, QUEUE, numbered(3), ttl=0.2)
    publish(server.url, QUEUE, numbered(2), groups=["other"])
    time.sleep(0.3)
    publish(server.url, QUEUE, numbered(4, 10))
    archive(None, str(tmp_path), options, once=True)
    return tmp_path


def test_status_reports_archived_and_missing_data(
    server: ServerProcess, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(lake), "--server", server.url]
    assert job.main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        **{"queue": QUEUE, "next": 25, "archived": 14, "lost": 5, "left_out": 5},
        **{"lag_messages": 0, "lag_seconds": 0.0},
    }
    publish(server.url, QUEUE, numbered(7))
    time.sleep(0.05)
    assert job.main([*asked, "--max-lag", "7", "--max-lag-seconds", "600"]) == 0
    heads, row = capsys.readouterr().out.splitlines()
    assert heads.split() == ["queue", "archived", "lost", "left", "out", "not", "archived", "oldest"]
    assert row.split()[:5] == [QUEUE, "14", "5", "5", "7"]
    for limit in (["--max-lag", "6"], ["--max-lag-seconds", "0.01"]):
        assert job.main([*asked, *limit]) == 1
        shown = capsys.readouterr()
        assert QUEUE in shown.out and "shop/kept is 7 messages and 0 s behind" in shown.err
    assert job.main([*asked, "--group", "none"]) == 0
    assert "no such queue or group" in capsys.readouterr().out
    assert job.main([str(lake / "none"), "--server", server.url]) == 1
    assert "there are no messages in the lake" in capsys.readouterr().err
    assert job.main([str(lake), "--server", "http://127.0.0.1:9"]) == 1
    assert "can't reach http://127.0.0.1:9" in capsys.readouterr().err


def test_a_running_archive_has_metrics(server: ServerProcess, tmp_path: Path) -> None:
    make_queue(server.url, QUEUE)
    publish(server.url, QUEUE, numbered(20))
    options = {"url": server.url, "queues": QUEUE, "failOnDataLoss": "false", "pollWait": "0.1"}
    done, stop, address = Archived(), threading.Event(), address_of(server.url, "")
    with Metrics(str(tmp_path), address, "archive", done).served("127.0.0.1:0") as place:
        page = urllib.request.urlopen(f"http://{place}/metrics").read().decode()
        assert "curbstone_archive_up 0\n" in page and "lag" not in page
        running = threading.Thread(
            target=archive, args=(None, str(tmp_path), options), kwargs={"every_s": 0, "stop": stop, "done": done}
        )
        running.start()
        while done.messages < 20 and running.is_alive():
            stop.wait(0.02)
        stop.set()
        running.join()
        publish(server.url, QUEUE, numbered(3, 20))
        page = urllib.request.urlopen(f"http://{place}/metrics").read().decode()
    for line in (
        "curbstone_archive_messages_total 20",
        "curbstone_archive_up 1",
        'curbstone_archive_lag_messages{project="shop",queue="kept"} 3',
        'curbstone_archive_archived_messages_total{project="shop",queue="kept"} 20',
        "# TYPE curbstone_archive_lag_seconds gauge",
    ):
        assert f"{line}\n" in page
    assert done.committed_at > 0
    [standing] = status(str(tmp_path), address)
    assert (standing.archived, standing.lag_messages) == (20, 3)
