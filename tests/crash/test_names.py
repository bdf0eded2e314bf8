"""The real process, killed at its Nth call to the disk while messages find their names taken, or replace each other."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from tests.crash.kill_points import MESSAGES, Work, call
from tests.crash.tracer import CALLS
from tests.kit.server import ServerProcess

pytestmark = pytest.mark.usefixtures("strace")


class NamedWork(Work):
    """What one client does: for each name one unique message, many that replace each other, and pops between them."""

    rounds = 30

    def __init__(self) -> None:
        self.latest = -1
        """The last one that replaces others and was confirmed."""
        self.sent = -1
        self.taken = -1
        """The last one of these that may have been popped."""
        self.is_named = False
        """Whether the unique message was confirmed, and nothing was popped since."""

    def make_round(self, server: ServerProcess, number: int) -> None:
        assert call(server, "POST", MESSAGES, b"u" * 100, {"x-unique": "a"})[0] == 201
        self.is_named = True
        self.sent = number
        body = b"%d:" % number + b"x" * 3000
        assert call(server, "POST", MESSAGES, body, {"x-replace": "b"})[0] == 201
        self.latest = number
        if number % 5 == 4:
            self.is_named, self.taken = False, number
            for _ in range(2):
                call(server, "DELETE", MESSAGES)

    def judge(self, server: ServerProcess) -> None:
        """Demand that of each name there is one message at most, and the last one that was confirmed."""
        if self.sent < 0:
            return
        found = json.loads(call(server, "GET", f"{MESSAGES}?limit=100")[1]).get("messages", [])
        names = Counter(each.get("unique") or each["replace"] for each in found)
        assert all(count == 1 for count in names.values()), names
        if self.is_named:
            assert names["a"] == 1
        numbers = [int(each["message"].partition(":")[0]) for each in found if "replace" in each]
        if self.latest > self.taken:
            assert numbers and self.latest <= numbers[0] <= self.sent, (numbers, self.latest, self.sent)
        for header in ("x-unique", "x-replace"):
            call(server, "POST", MESSAGES, b"1000:", {header: "a" if header == "x-unique" else "b"})
        again = json.loads(call(server, "GET", f"{MESSAGES}?limit=100")[1])["messages"]
        assert len(again) == 2, again


@pytest.mark.parametrize(("kind", "number"), [("sync", 20), ("write", 45), ("remove", 2)])
def test_killed_at_a_call(tmp_path: Path, kind: str, number: int) -> None:
    assert NamedWork().killed_at(tmp_path / "data", kind, number)


@pytest.mark.soak
@pytest.mark.parametrize("kind", CALLS)
def test_killed_at_every_call(tmp_path: Path, kind: str) -> None:
    for number in count(1):
        if not NamedWork().killed_at(tmp_path / f"{kind} {number}", kind, number):
            break
