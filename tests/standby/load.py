"""Clients that publish to a server and its standby, and what they know to be confirmed."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException

from tests.kit.server import ServerProcess, call
from tests.kit.waiting import wait_until


def confirms(server: ServerProcess) -> str:
    """Return whether confirms of a server wait for a standby, and how it is doing."""
    return str(call(server, "GET", "/v2/standby")["confirms"])


def wait_in_sync(server: ServerProcess) -> None:
    wait_until(lambda: confirms(server) == "sync")


class Load:
    """Clients that publish numbers, one after the other, to whichever server answers."""

    def __init__(self, *urls: str, timeout_s: float = 30) -> None:
        self.urls = list(urls)
        self.confirmed: list[str] = []
        self._timeout_s = timeout_s
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(3)]

    def _publish(self, number: int) -> None:
        count = turn = 0
        while not self._is_over.is_set():
            body = f"{number}-{count}"
            data = json.dumps([{"message": body}]).encode()
            url = self.urls[turn % len(self.urls)] + "/v2/default/queues/q/messages/batch"
            request = urllib.request.Request(url, data, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s):
                    self.confirmed.append(body)
                    count += 1
            except (OSError, HTTPException):
                turn += 1
                self._is_over.wait(0.05)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Publish until the end of the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join()

    def wait_for_progress(self, count: int = 50) -> None:
        """Wait until so many more messages are confirmed."""
        before = len(self.confirmed)
        wait_until(lambda: len(self.confirmed) >= before + count)
