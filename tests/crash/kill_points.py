"""A client whose server is killed at the Nth call of a kind to the disk, and started again."""

from __future__ import annotations

import http.client
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from tests.crash.tracer import CALLS, TracedServer
from tests.kit.server import NotReady, ServerProcess

OPTIONS = ("--cap=65536", "--max-message-size=4096", "--log-level=warning")
PATH = "/v2/crash/queues/q"
MESSAGES = f"{PATH}/messages"


def call(server: ServerProcess, method: str, path: str, body: bytes = b"", headers: Any = ()) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*server.http, timeout=30)
    try:
        connection.request(method, path, body, dict(headers))
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


class Work(ABC):
    """The calls of one client in rounds, and what must hold after a crash."""

    rounds: int

    @abstractmethod
    def make_round(self, server: ServerProcess, number: int) -> None: ...

    @abstractmethod
    def judge(self, server: ServerProcess) -> None:
        """Check what the server has after a crash."""

    def _is_killed(self, server: ServerProcess) -> bool:
        """Work until the server dies; return whether it did."""
        try:
            assert call(server, "PUT", PATH, b"{}")[0] in (200, 201)
            for number in range(self.rounds):
                self.make_round(server, number)
        except (OSError, http.client.HTTPException):
            return True
        return False

    def killed_at(self, data_dir: Path, kind: str, number: int) -> bool:
        """Kill the server at its Nth call of a kind and judge the result; return whether there was that call."""
        died = False
        try:
            with TracedServer(data_dir, *OPTIONS, inject=f"{CALLS[kind]}:signal=KILL:when={number}") as server:
                died = self._is_killed(server)
                server.kill()
        except NotReady as error:
            assert error.code == -9, error
            died = True
        with ServerProcess(data_dir, *OPTIONS) as server:
            self.judge(server)
        return died
