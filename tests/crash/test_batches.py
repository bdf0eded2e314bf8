"""The real process, killed at its Nth call to the disk while batches are filled, settled and reported."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.crash.kill_points import MESSAGES, PATH, Work, call
from tests.crash.tracer import CALLS
from tests.kit.server import ServerProcess

pytestmark = pytest.mark.usefixtures("strace")

DONE = "/v2/crash/queues/done/messages"
SIZE = 3


class BatchWork(Work):
    """What one client does: it fills batches, and settles what there is, with large messages between them."""

    rounds = 12

    def __init__(self) -> None:
        self.confirmed: set[str] = set()
        """The batches whose messages were all confirmed."""

    def make_round(self, server: ServerProcess, number: int) -> None:
        batch = str(number)
        array = json.dumps([{"message": "x" * 200, "batch": batch} for _ in range(SIZE - 1)]).encode()
        assert call(server, "POST", f"{MESSAGES}/batch", array)[0] == 201
        headers = {"x-batch": batch, "x-batch-size": str(SIZE), "x-batch-to": "done"}
        assert call(server, "POST", MESSAGES, b"last", headers)[0] == 201
        self.confirmed.add(batch)
        assert call(server, "POST", MESSAGES, b"z" * 4000)[0] == 201
        for _ in range(SIZE):
            call(server, "DELETE", MESSAGES)

    def judge(self, server: ServerProcess) -> None:
        """Settle everything, and demand one report of each batch."""
        while call(server, "DELETE", MESSAGES)[0] == 200:
            pass
        open_batches = json.loads(call(server, "GET", f"{PATH}/batches")[1]).get("batches", [])
        for each in open_batches:  # the server died before all of its messages were stored
            assert each["pending"] == 0
            headers = {"x-batch": each["batch"], "x-batch-size": str(SIZE), "x-batch-to": "done"}
            for _ in range(SIZE - each["stored"]):
                assert call(server, "POST", MESSAGES, b"late", headers)[0] == 201
                assert call(server, "DELETE", MESSAGES)[0] == 200
        reports = self._reports(server, len(self.confirmed | {each["batch"] for each in open_batches}))
        batches = [report["batch"] for report in reports]
        assert len(batches) == len(set(batches)), batches
        assert self.confirmed <= set(batches)
        for report in reports:
            assert report["total"] == report["acked"] + report["unknown"] == SIZE, report

    @staticmethod
    def _reports(server: ServerProcess, least: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < least:
            status, body = call(server, "DELETE", f"{DONE}?wait=20")
            assert status == 200, f"{len(found)} of {least} reports"
            found.append(json.loads(body))
        while (reply := call(server, "DELETE", f"{DONE}?wait=0.1"))[0] == 200:
            found.append(json.loads(reply[1]))
        return found


@pytest.mark.parametrize(("kind", "number"), [("sync", 30), ("write", 60), ("write", 71), ("remove", 2)])
def test_killed_at_a_call(tmp_path: Path, kind: str, number: int) -> None:
    assert BatchWork().killed_at(tmp_path / "data", kind, number)


@pytest.mark.soak
@pytest.mark.parametrize("kind", CALLS)
def test_killed_at_every_call(tmp_path: Path, kind: str) -> None:
    for number in count(1):
        if not BatchWork().killed_at(tmp_path / f"{kind} {number}", kind, number):
            break
