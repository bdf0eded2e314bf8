"""A history in Jepsen's form: what clients did to a queue, and what they were answered, with times."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Recorder:
    """Collects the events of clients on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[Event] = []
        self._processes = 0

    def invoke(self, f: str, **value: str) -> Operation:
        return Operation(self, f, value, self.now())

    def now(self) -> int:
        return time.monotonic_ns()

    def add(self, f: str, value: dict[str, str], begun: int, outcome: str) -> None:
        """Note an operation that has ended: `ok`, `fail` (it changed nothing) or `info` (nobody knows)."""
        with self._lock:
            self._processes += 1  # an operation of which nobody knows the end uses up its process
            for kind, at in (("invoke", begun), (outcome, self.now())):
                self.events.append({"process": self._processes, "type": kind, "f": f, "value": {**value}, "time": at})


class Operation:
    """An operation that has begun."""

    def __init__(self, recorder: Recorder, f: str, value: dict[str, str], begun: int) -> None:
        self._recorder, self._f, self._value, self._begun = recorder, f, value, begun

    def end(self, outcome: str) -> None:
        self._recorder.add(self._f, self._value, self._begun, outcome)

    def delivered(self, message: str, key: str, message_id: str) -> None:
        """Note a message that it returned."""
        self._recorder.add("deliver", {"message": message, "key": key, "id": message_id}, self._begun, "ok")


def written(events: list[Event], file: Path) -> Path:
    """Write events in the order of their times, one a line, and return the file."""
    ordered = sorted(events, key=lambda event: event["time"])
    file.write_text("".join(json.dumps(event) + "\n" for event in ordered), encoding="utf-8")
    return file
