"""Producers and consumers of a queue that record a history. What serves may end at any time, and be replaced.

Producers publish with idempotency keys and ordering keys, and again until they are answered; consumers lease, settle
and give back.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from tests.histories.record import Event, Operation, Recorder

PRODUCERS, CONSUMERS, KEYS = 4, 3, 6
RETRY_S = 0.02
THREAD_S_MAX = 60

Address = tuple[str, int]


class Clients:
    """Producers and consumers of one queue, each on a thread.

    Each uses an address until a request there is not answered, or with 503, and then the next address.
    """

    def __init__(
        self,
        addresses: Callable[[], Sequence[Address]],
        rng: Random,
        messages: int,
        *,
        queue: str = "q",
        has_keys: bool = True,
        pause_s: float = 0.006,
        answer_s_max: float = THREAD_S_MAX,
        consumes_late: bool = False,
    ) -> None:
        """Each producer publishes so many messages, and more until the last fault, with such a pause between two.

        `has_keys`: whether the engine knows idempotency keys and ordering keys, and counts what it has.
        `consumes_late`: whether nothing is consumed before the last fault.
        """
        self._addresses = addresses
        self._path = f"/v2/default/queues/{queue}"
        self._has_keys = has_keys
        self._pause_s = pause_s
        self._answer_s_max = answer_s_max
        self._consumes_late = consumes_late
        self._acked: set[str] = set()
        self._recorder = Recorder()
        self._messages = messages
        self.published: list[str] = []
        """What was confirmed up to now."""
        self._publishing = PRODUCERS
        self._lock = threading.Lock()
        self._is_calm = threading.Event()
        """Set after the last fault."""
        self._done = threading.Event()
        self._failures: list[BaseException] = []
        works = [self._produce] * PRODUCERS + [self._consume] * CONSUMERS
        self._threads = [
            threading.Thread(target=self._watched, args=(work, number, Random(rng.getrandbits(64))))
            for number, work in enumerate(works)
        ]

    def run(self, faults: Iterable[Callable[[], object]], rng: Random) -> list[Event]:
        """Publish and consume everything while the faults happen, and return the history.

        Raise the first error of a client.
        """
        for thread in self._threads:
            thread.start()
        try:
            for fault in faults:
                self._done.wait(0.05 + rng.random() * 0.5)
                fault()
            self._is_calm.set()
            self._wait_until_drained()
        finally:
            self._done.set()
            self._is_calm.set()
            for thread in self._threads:
                thread.join(2 * THREAD_S_MAX)
                assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]
        for message in self.published:
            self._recorder.invoke("drained", message=message, key=_key(message)).end("ok")
        return self._recorder.events

    def _wait_until_drained(self) -> None:
        for _ in range(int(THREAD_S_MAX / RETRY_S)):
            if self._failures or (not self._publishing and self._is_empty()):
                return
            self._done.wait(RETRY_S)
        if self._has_keys or self._publishing:
            raise AssertionError(f"not drained: {self._info()}, {self._publishing} producers publish")

    def _is_empty(self) -> bool:
        """Return whether nothing is left. A cluster's counts are late, so there all messages have to be acked."""
        if not self._has_keys:
            return self._acked >= set(self.published)
        info = self._info()
        return info is not None and info["rdy"] + info["wip"] + info["delayed"] == 0

    def _info(self) -> Any:
        """Return what a server says of the queue, or None if none does."""
        for address in self._addresses():
            reply = self._request(address, "GET", "")
            if reply is not None and reply[0] == 200:
                return json.loads(reply[1])
        return None

    def _watched(self, work: Callable[[_Client, int, Random], None], number: int, rng: Random) -> None:
        try:
            work(_Client(self), number, rng)
        except BaseException as error:
            self._failures.append(error)
            self._done.set()

    def _request(
        self, address: Address, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes] | None:
        """Return status and body of the answer, or None if there was none."""
        connection = http.client.HTTPConnection(*address, timeout=self._answer_s_max)
        try:
            connection.request(method, self._path + path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _produce(self, client: _Client, number: int, rng: Random) -> None:
        index = 0
        while index < self._messages or not self._is_calm.is_set():
            message = f"{number}-{index}-{index % KEYS}"
            key = _key(message)
            headers = {"Idempotency-Key": f'"{message}"', "x-key": key} if self._has_keys else {"x-group": key}
            while not self._done.is_set():
                operation = self._recorder.invoke("publish", message=message, key=key)
                reply = client.post(operation, "/messages", message.encode(), headers)
                if reply is not None:
                    assert reply[0] == 201, reply
                    operation.end("ok")
                    with self._lock:
                        self.published.append(message)
                    break
            if self._done.wait(self._pause_s * rng.random()):
                return
            index += 1
        with self._lock:
            self._publishing -= 1

    def _consume(self, client: _Client, _number: int, rng: Random) -> None:
        if self._consumes_late:
            self._is_calm.wait()
        while not self._done.is_set():
            operation = self._recorder.invoke("lease")
            reply = client.post(None, "/messages/lease", json.dumps({"count": rng.randrange(1, 4)}).encode())
            if reply is None:
                continue
            assert reply[0] == 200, reply
            messages = json.loads(reply[1])["messages"]
            for each in messages:
                operation.delivered(each["message"], _key(each["message"]), each["id"])
            for each in messages:
                if rng.random() < 0.1:
                    client.post(None, "/messages/nack", _ids(each))
                else:
                    self._ack(client, each)
            if not messages:
                self._done.wait(RETRY_S)

    def _ack(self, client: _Client, each: dict[str, str]) -> None:
        operation = self._recorder.invoke("ack", message=each["message"], key=_key(each["message"]))
        reply = client.post(operation, "/messages/ack", _ids(each))
        if reply is not None:
            assert reply[0] == 200, reply
            is_settled = bool(json.loads(reply[1])["settled"])
            operation.end("ok" if is_settled else "fail")
            if is_settled:
                self._acked.add(each["message"])


class _Client:
    """One client, which remembers the address that it uses."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._turn = 0

    def post(
        self, operation: Operation | None, path: str, body: bytes, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes] | None:
        """POST; return status and body, or None if it has to be tried again: then the operation has ended."""
        clients = self._clients
        addresses = clients._addresses()
        reply = clients._request(addresses[self._turn % len(addresses)], "POST", path, body, headers)
        if reply is not None and reply[0] != 503:
            return reply
        self._turn += 1
        if operation is not None:
            # A standby changes nothing. After any other 503, and without an answer, nobody knows.
            is_standby = reply is not None and json.loads(reply[1])["type"].endswith("#standby")
            operation.end("fail" if is_standby else "info")
        clients._done.wait(RETRY_S)
        return None


def _ids(delivery: dict[str, str]) -> bytes:
    return json.dumps({"ackIds": [delivery["ackId"]]}).encode()


def _key(message: str) -> str:
    return f"k{message.rpartition('-')[2]}"
