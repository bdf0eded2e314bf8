"""A server that is killed and started again while clients use it, and what clients on threads need to live with it."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.kit.server import ServerProcess

HANG_S = 120
"""Nothing takes so long unless something is stuck; no test depends on how long it takes."""


class Boot(NamedTuple):
    """One start of the server: its number and its addresses."""

    number: int
    stomp: tuple[str, int]
    http: tuple[str, int]
    mqks: tuple[str, int]


class Stuck(AssertionError):
    """Something that must happen did not."""


class KillableServer:
    """A server process that is killed and started again, each time on other ports."""

    def __init__(self, process: ServerProcess, number: int = 1) -> None:
        self.process = process
        self.kills = 0
        self._changed = threading.Condition()
        self._boot = self._read(number)

    def _read(self, number: int) -> Boot:
        return Boot(number, self.process.stomp, self.process.http, self.process.mqks)

    @property
    def boot(self) -> Boot:
        """The current boot, or the last one while the server starts again."""
        return self._boot

    def wait_for_boot(self, number: int) -> Boot:
        with self._changed:
            if not self._changed.wait_for(lambda: self._boot.number > number, HANG_S):
                raise Stuck(f"the server did not return after boot {number}, or was not killed but hung up")
            return self._boot

    def kill(self, before_it_ends: Callable[[], None] | None = None) -> None:
        """Kill it with SIGKILL; it must be running. `before_it_ends` is called behind the signal."""
        code = self.process.process.poll()
        assert code is None, f"the server ended by itself, with code {code}:\n{self.process.log[-4000:]}"
        self.process.process.kill()
        if before_it_ends is not None:
            before_it_ends()
        self.process.kill()
        self.kills += 1

    def start(self) -> None:
        """Begin the next boot on the same data."""
        self.process.restart()
        self._begin_boot()

    def _begin_boot(self) -> None:
        with self._changed:
            self._boot = self._read(self._boot.number + 1)
            self._changed.notify_all()

    def get(self, path: str) -> tuple[int, Any]:
        """GET a JSON resource; return the status and what it says."""
        host, port = self._boot.http
        request = urllib.request.Request(f"http://{host}:{port}{path}")
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def put_queue(self, queue: str, options: dict[str, object]) -> None:
        host, port = self._boot.http
        project, _, name = queue.partition("/")
        url = f"http://{host}:{port}/v2/{project}/queues/{name}"
        request = urllib.request.Request(url, json.dumps(options).encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=HANG_S) as reply:
            assert reply.status == 201

    def count(self, queue: str) -> int:
        """Return how many messages a queue has, in any state."""
        project, _, name = queue.partition("/")
        status, info = self.get(f"/v2/{project}/queues/{name}")
        assert status == 200, info
        return int(info["rdy"]) + int(info["wip"]) + int(info["delayed"])

    def check_health(self) -> None:
        """A kill damages nothing: the server must be ready and have nothing to complain of."""
        status, said = self.get("/healthz")
        assert (status, said["status"], said["reasons"]) == (200, "ok", [])


class Progress:
    """How far a run is: messages confirmed, and messages settled."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.confirmed = 0
        self.settled = 0
        self.failure: BaseException | None = None

    def add(self, confirmed: int = 0, settled: int = 0) -> None:
        with self._changed:
            self.confirmed += confirmed
            self.settled += settled
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the run with an error of a client."""
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        """Wait until something is so; raise Stuck if nothing happens any more, or a client's error."""
        seen, since = -1, time.monotonic()
        while not is_done():
            self.wait_for_room(1)
            self.check()
            if self.confirmed + self.settled != seen:
                seen, since = self.confirmed + self.settled, time.monotonic()
            elif time.monotonic() - since > HANG_S:
                raise Stuck(f"nothing confirmed or settled any more: {self.confirmed} and {self.settled} so far")

    def check(self) -> None:
        """Raise the error that a client ended with, if one did."""
        if self.failure is not None:
            raise self.failure

    def wait_for_room(self, wanted: int) -> None:
        """Wait for some settles, which make room; not for long, as nobody may be left to settle."""
        with self._changed:
            aim = self.settled + wanted
            self._changed.wait_for(lambda: self.settled >= aim or self.failure is not None, 0.25)
