"""Clients on threads that publish and settle over any of several gateways, and record all of it for the judge.

Each uses one gateway until it hangs up, then the next, as behind a load balancer. What was sent and not confirmed is
sent again under a new value; so nothing that a gateway or a node does is an excuse for a value that is missing.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from tests.cluster.gateway import GatewayProcess
from tests.crash.history import Answered, Delivered, History, Requeued, Sent, Settled, Settling
from tests.crash.stomp_peer import StompPeer, encode

PATIENCE_S = 40
WINDOW = 50
PADDING = b"." * 80
QUEUE_OPTIONS = {"cap": "200MiB"}


class Load:
    """Producers and consumers of some queues; `stop` ends the producers, `drain` waits until all is settled."""

    def __init__(self, gateways: Sequence[GatewayProcess], queues: Sequence[str], seed: int) -> None:
        self.gateways = gateways
        self.history = History()
        self.failures: list[str] = []
        self.confirmed = 0
        self.pause_s = 0.0
        """The longest time between two confirms of one producer."""
        self._stop = threading.Event()
        self._drained = threading.Event()
        self._last_delivery_s = time.monotonic()
        self._rng = Random(seed)
        self._lives = itertools.count(1)
        names = itertools.count(1)
        self._producers = [
            self._thread(kind, queue, f"{kind.__name__}{next(names)}")
            for queue in queues
            for kind in (self._send_over_stomp, self._post_over_http)
        ]
        self._consumers = [
            self._thread(kind, queue, f"{kind.__name__}{next(names)}")
            for queue in queues
            for kind in (self._take_over_stomp, self._lease_over_http)
        ]

    def _thread(self, work: Callable[[str, str, GatewayProcess], None], queue: str, name: str) -> threading.Thread:
        dice = Random(self._rng.random())

        def run() -> None:
            is_done = self._drained if work in (self._take_over_stomp, self._lease_over_http) else self._stop
            while not is_done.is_set():
                try:
                    work(queue, name, dice.choice(list(self.gateways)))
                except (OSError, http.client.HTTPException, Refused):
                    time.sleep(0.1)
                except Exception as error:  # a bug of the test, or of the server
                    self.failures.append(f"{name}: {type(error).__name__}: {error}")
                    return

        return threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        for thread in [*self._producers, *self._consumers]:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._producers:
            thread.join(2 * PATIENCE_S)

    def drain(self, quiet_s: float) -> None:
        """Wait until no delivery has come for a while, then end the consumers."""
        while time.monotonic() - self._last_delivery_s < quiet_s:
            time.sleep(0.2)
        self._drained.set()
        for thread in self._consumers:
            thread.join(2 * PATIENCE_S)

    # --- producers

    def _value(self, name: str, numbers: deque[int]) -> str:
        numbers[0] += 1
        return f"{name}-{numbers[0]}"

    def _confirmed(self, values: Sequence[str], last_s: float) -> float:
        now_s = time.monotonic()
        self.history.extend(Answered(value, True) for value in values)
        self.confirmed += len(values)
        self.pause_s = max(self.pause_s, now_s - last_s)
        return now_s

    def _send_over_stomp(self, queue: str, name: str, gateway: GatewayProcess) -> None:
        session = f"{name}.{next(self._lives)}"
        numbers = deque([0])
        last_s = time.monotonic()
        with StompPeer(gateway.stomp, PATIENCE_S) as peer:
            waiting: set[str] = set()
            while not self._stop.is_set() or waiting:
                fresh = (
                    [] if self._stop.is_set() else [self._value(session, numbers) for _ in range(WINDOW - len(waiting))]
                )
                for value in fresh:
                    body = value.encode() + b" " + PADDING
                    self.history.append(Sent(value, queue, body, session, ""))
                    waiting.add(value)
                peer.send(
                    b"".join(
                        encode("SEND", {"destination": queue, "receipt": value}, value.encode() + b" " + PADDING)
                        for value in fresh
                    )
                )
                for frame in peer.read():
                    if frame.command != "RECEIPT":
                        raise Refused(str(frame))
                    value = frame.headers["receipt-id"]
                    waiting.remove(value)  # in any order: what was refused at first comes late
                    last_s = self._confirmed([value], last_s)

    def _post_over_http(self, queue: str, name: str, gateway: GatewayProcess) -> None:
        session = f"{name}.{next(self._lives)}"
        numbers = deque([0])
        last_s = time.monotonic()
        connection = _connect(gateway)
        with _closing(connection):
            while not self._stop.is_set():
                values = [self._value(session, numbers) for _ in range(10)]
                bodies = [value.encode() + b" " + PADDING for value in values]
                self.history.extend(
                    Sent(value, queue, body, session, "") for value, body in zip(values, bodies, strict=True)
                )
                reply = _call(connection, queue, "/batch", [{"message": body.decode()} for body in bodies])
                if "ids" in reply:
                    last_s = self._confirmed(values, last_s)

    # --- consumers

    def _take(self, consumer: str, queue: str, boot: int, message_id: str, body: bytes, tries: int) -> None:
        self._last_delivery_s = time.monotonic()
        value = body.partition(b" ")[0].decode()
        self.history.append(Delivered(value, queue, message_id, body, consumer, boot, tries))

    def _take_over_stomp(self, queue: str, name: str, gateway: GatewayProcess) -> None:
        boot = next(self._lives)
        held: dict[str, str] = {}
        try:
            with StompPeer(gateway.stomp, PATIENCE_S) as peer:
                options = {"id": "s", "destination": queue, "ack": "client-individual", "prefetch-count": "100"}
                peer.send(encode("SUBSCRIBE", options))
                while not self._drained.is_set():
                    try:
                        frames = peer.read(1)
                    except TimeoutError:
                        continue
                    acks = []
                    for frame in frames:
                        if frame.command == "RECEIPT":
                            settled = held.pop(frame.headers["receipt-id"], "")
                            if settled:  # else both copies of one that was stored twice were here at once
                                self.history.append(Settled(settled, boot))
                            continue
                        if frame.command != "MESSAGE":
                            raise Refused(str(frame))
                        message_id, ack = frame.headers["message-id"], frame.headers["ack"]
                        tries = int(frame.headers.get("x-tries", "0"))
                        self._take(name, queue, boot, message_id, frame.body, tries)
                        self.history.append(Settling(message_id))
                        held[ack] = message_id
                        acks.append(encode("ACK", {"id": ack, "receipt": ack}))
                    peer.send(b"".join(acks))
        finally:
            self.history.extend(Requeued(message_id, boot) for message_id in held.values())

    def _lease_over_http(self, queue: str, name: str, gateway: GatewayProcess) -> None:
        """Lease over one gateway, and settle over any."""
        boot = next(self._lives)
        connection = _connect(gateway)
        settles = _connect(self._rng.choice(list(self.gateways)))
        with _closing(connection), _closing(settles):
            while not self._drained.is_set():
                messages = _call(connection, queue, "/lease", {"count": 10, "wait": 1, "seconds": 30})["messages"]
                for message in messages:
                    self._take(name, queue, boot, message["id"], message["message"].encode(), message["tries"])
                    self.history.append(Settling(message["id"]))
                if messages:
                    tokens = [message["ackId"] for message in messages]
                    reply = _call(settles, queue, "/ack", {"ackIds": tokens})
                    gone = set(reply["stale"])
                    self.history.extend(Settled(each["id"], boot) for each in messages if each["ackId"] not in gone)


class Refused(Exception):
    """The gateway has said no: go to another one."""


def _connect(gateway: GatewayProcess) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*gateway.http, timeout=PATIENCE_S)


class _closing:
    """Closes a connection, whatever happened to it."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError):
            self._connection.close()


def _call(connection: http.client.HTTPConnection, queue: str, what: str, fields: object) -> Any:
    name = queue.removeprefix("/queue/").partition("/")
    path = f"/v2/{name[0]}/queues/{name[2]}/messages{what}"
    connection.request("POST", path, json.dumps(fields), {"content-type": "application/json"})
    reply = connection.getresponse()
    body = reply.read()
    if reply.status >= 300:
        raise Refused(f"{reply.status} {body[:200]!r}")
    return json.loads(body)


def make_queues(gateway: GatewayProcess, queues: Sequence[str]) -> None:
    """Make queues with room for a long pause of their consumers."""
    for queue in queues:
        project, _, name = queue.removeprefix("/queue/").partition("/")
        connection = _connect(gateway)
        with _closing(connection):
            connection.request("PUT", f"/v2/{project}/queues/{name}", json.dumps(QUEUE_OPTIONS))
            reply = connection.getresponse()
            assert reply.status == 201, reply.read()
