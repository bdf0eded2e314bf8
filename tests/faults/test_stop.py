"""SIGTERM under load, over all protocols: what was confirmed is true, and what was not is where it was.

Clients publish, consume and settle as fast as they can, many wait for messages in pops and leases, and the server is
told to stop in the middle of that. It ends in time with code 0. Then everything is taken out and compared with
the answers of the clients. Nothing is excused: a stop is no crash, so a request in flight is answered or has no effect.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.crash.mqks_peer import MqksPeer
from tests.crash.stomp_peer import StompPeer, encode
from tests.kit.server import ServerProcess

HANG_S = 120
WORK, POPPED, LEASED = "work", "popped", "leased"
QUEUES = (WORK, POPPED, LEASED)
EVENT = "jobs"
PIPELINED = 20
POSTS, POPS, LEASES = 4, 12, 4
LIVES = 3
BUSY = 60
"""What each kind of client has done before the server is stopped."""


class Record:
    """What clients of all threads did and which answers they got. Every message has a value, which is its body."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.confirmed: set[str] = set()
        self.settling: set[str] = set()
        """An ack was sent, and nothing returned."""
        self.settled: set[str] = set()
        self.done: Counter[str] = Counter()
        """By kind of client, in this life."""
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self._numbers = count(1)

    def new(self, kind: str, many: int = 1) -> list[str]:
        """Return values for messages that are about to be sent."""
        with self._changed:
            values = [f"{kind}-{next(self._numbers)}" for _ in range(many)]
            self.sent.update(values)
        return values

    def publish_confirmed(self, kind: str, *values: str) -> None:
        with self._changed:
            self.confirmed.update(values)
            self._count(kind, len(values))

    def acking(self, *values: str) -> None:
        """From here on they may be gone."""
        with self._changed:
            self.settling.update(values)

    def gone(self, kind: str, *values: str) -> None:
        """The server said that these are settled."""
        with self._changed:
            again = self.settled.intersection(values)
            assert not again, f"{again} came again after its settling was confirmed"
            self.settled.update(values)
            self._count(kind, len(values))

    def waited(self, kind: str) -> None:
        """A request that waited was answered with nothing."""
        with self._changed:
            self._count(kind, 0)

    def _count(self, kind: str, many: int) -> None:
        self.done[kind] += many
        self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the test with an error of a client."""
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def wait_until_busy(self, kinds: list[str]) -> None:
        """Wait until all have done something in this life."""
        with self._changed:
            came = self._changed.wait_for(lambda: self.failure or all(self.done[k] >= BUSY for k in kinds), HANG_S)
        if self.failure is not None:
            raise self.failure
        assert came, f"some do nothing: {self.done}"


class Http:
    """A kept connection; raises OSError or HTTPException once the server is gone."""

    def __init__(self, server: ServerProcess, queue: str) -> None:
        self._connection = http.client.HTTPConnection(*server.http, timeout=HANG_S)
        self._path = f"/v2/default/queues/{queue}"

    def __enter__(self) -> Http:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and body; a refusal because the server stops ends the client like a closed connection."""
        self._connection.request(method, self._path + path, body)
        reply = self._connection.getresponse()
        data = reply.read()
        if reply.status == 503:
            raise http.client.HTTPException("the server stops")
        return reply.status, data


# ---------------------------------------------------------------- producers


def publish_over_stomp(server: ServerProcess, record: Record) -> None:
    with StompPeer(server.stomp, HANG_S) as peer:
        while True:
            values = record.new("stomp", PIPELINED)
            destination = {"destination": f"/queue/{WORK}"}
            peer.send(b"".join([encode("SEND", {**destination, "receipt": v}, v.encode()) for v in values]))
            waiting = set(values)
            while waiting:
                for frame in peer.read():
                    assert frame.command in ("RECEIPT", "ERROR"), frame
                    if frame.command == "RECEIPT":
                        waiting.remove(frame.headers["receipt-id"])
                        record.publish_confirmed("publish over STOMP", frame.headers["receipt-id"])


def publish_over_websocket(server: ServerProcess, record: Record) -> None:
    host, port = server.http
    url = f"ws://{host}:{port}/v2/default/queues/{WORK}/messages"
    with connect(url, subprotocols=[Subprotocol("publish")], proxy=None) as peer:
        while True:
            values = record.new("ws", PIPELINED)
            for value in values:
                peer.send(value.encode())
            for value in values:
                confirm = peer.recv(HANG_S)
                if confirm:  # an error, and the end
                    return
                record.publish_confirmed("publish over WebSocket", value)


def publish_over_mqks(server: ServerProcess, record: Record) -> None:
    with MqksPeer(server.mqks, HANG_S) as peer:
        while True:
            values = record.new("mqks", PIPELINED)
            peer.send(*[f"{value} publish --confirm {EVENT} {value}".encode() for value in values])
            waiting = set(values)
            while waiting:
                for answer in peer.read():
                    waiting.remove(answer.request_id)
                    if answer.is_ok:
                        record.publish_confirmed("publish over MQKS", answer.request_id)


def publish_over_http(server: ServerProcess, record: Record, queue: str) -> None:
    with Http(server, queue) as peer:
        while True:
            (value,) = record.new("http")
            assert peer.call("POST", "/messages", value.encode())[0] == 201
            record.publish_confirmed(f"publish to {queue}", value)


# ---------------------------------------------------------------- consumers


def consume_over_stomp(server: ServerProcess, record: Record) -> None:
    with StompPeer(server.stomp, HANG_S) as peer:
        head = {"id": "s", "destination": f"/queue/{WORK}", "ack": "client-individual", "prefetch-count": "50"}
        peer.send(encode("SUBSCRIBE", head))
        while True:
            acks = []
            for frame in peer.read():
                if frame.command == "MESSAGE":
                    value = frame.body.decode()
                    record.acking(value)
                    acks.append(encode("ACK", {"id": frame.headers["ack"], "receipt": value}))
                elif frame.command == "RECEIPT":
                    record.gone("consume over STOMP", frame.headers["receipt-id"])
            peer.send(b"".join(acks))


def consume_by_taking_over_stomp(server: ServerProcess, record: Record) -> None:
    """`ack:auto`: what is in the socket is settled; so nothing is known to be gone before it is read."""
    with StompPeer(server.stomp, HANG_S) as peer:
        peer.send(encode("SUBSCRIBE", {"id": "s", "destination": f"/queue/{WORK}", "ack": "auto"}))
        while True:
            for frame in peer.read():
                if frame.command == "MESSAGE":
                    record.acking(frame.body.decode())
                    record.gone("consume by taking over STOMP", frame.body.decode())


def consume_over_mqks(server: ServerProcess, record: Record) -> None:
    with MqksPeer(server.mqks, HANG_S) as peer:
        peer.send(f"c consume --confirm {WORK} --manual-ack --window=50".encode())
        acks: dict[str, str] = {}
        numbers = count(1)
        while True:
            out = []
            for answer in peer.read():
                if answer.request_id in acks and answer.is_ok:
                    record.gone("consume over MQKS", acks.pop(answer.request_id))
                elif answer.request_id == "c" and answer.data.count(b" ") > 1:
                    message_id, _, body = answer.data.split(b" ", 2)
                    request = f"a{next(numbers)}"
                    acks[request] = body.decode()
                    record.acking(body.decode())
                    out.append(b"%s ack --confirm c %s" % (request.encode(), message_id))
            if out:
                peer.send(*out)


def pop(server: ServerProcess, record: Record) -> None:
    """Wait for a message, again and again. What a stop answers with 204 has taken none."""
    with Http(server, POPPED) as peer:
        while True:
            status, body = peer.call("DELETE", "/messages?wait=30")
            if status == 200:
                record.gone("pop", body.decode())
            else:
                assert status == 204
                record.waited("pop")


def lease(server: ServerProcess, record: Record) -> None:
    with Http(server, LEASED) as peer:
        while True:
            asked = {"count": 5, "seconds": 600, "wait": 30, "encoding": "base64"}
            status, body = peer.call("POST", "/messages/lease", json.dumps(asked).encode())
            assert status == 200
            leases: list[dict[str, Any]] = json.loads(body)["messages"]
            if not leases:
                record.waited("lease")
                continue
            values = [base64.b64decode(item["message"]).decode() for item in leases]
            record.acking(*values)
            status, body = peer.call(
                "POST", "/messages/ack", json.dumps({"ackIds": [i["ackId"] for i in leases]}).encode()
            )
            assert (status, json.loads(body)) == (200, {"settled": len(leases), "stale": []})
            record.gone("lease", *values)


def wait_in_vain(server: ServerProcess, _: Record, ended: list[tuple[int, bytes]]) -> None:
    """Wait in a pop of a queue that stays empty until the server stops."""
    with Http(server, "empty") as peer:
        ended.append(peer.call("DELETE", "/messages?wait=30"))


# ---------------------------------------------------------------- the test


class Load:
    """All clients of one life of the server."""

    def __init__(self, server: ServerProcess, record: Record) -> None:
        self._server = server
        self._record = record
        self._threads: list[threading.Thread] = []
        self.ended: list[tuple[int, bytes]] = []

    def begin(self) -> None:
        server, record = self._server, self._record
        works: list[Callable[[ServerProcess, Record], None]] = [
            *(publish_over_stomp, publish_over_websocket, publish_over_mqks),
            *[partial(publish_over_http, queue=POPPED)] * POSTS,
            partial(publish_over_http, queue=LEASED),
            *(consume_over_stomp, consume_by_taking_over_stomp, consume_over_mqks),
            *[pop] * POPS,
            *[lease] * LEASES,
            partial(wait_in_vain, ended=self.ended),
        ]
        for work in works:
            thread = threading.Thread(target=self._run, args=(work, server, record), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, work: Callable[..., None], server: ServerProcess, record: Record) -> None:
        try:
            with suppress(OSError, http.client.HTTPException, WebSocketException):
                work(server, record)
        except BaseException as error:
            record.fail(error)

    def join(self) -> None:
        """Wait until all have noticed the end."""
        for thread in self._threads:
            thread.join(HANG_S)
            assert not thread.is_alive()


def remaining(server: ServerProcess, queue: str) -> Iterator[str]:
    """Yield what is in a queue."""
    after = ""
    with Http(server, queue) as peer:
        while True:
            status, body = peer.call("GET", f"/messages?limit=1000&after={after}")
            assert status == 200
            messages = json.loads(body)["messages"]
            if not messages:
                return
            yield from [message["message"] for message in messages]
            after = messages[-1]["id"]


def compare(server: ServerProcess, record: Record) -> None:
    """See that all that was said is true."""
    there = [value for queue in QUEUES for value in remaining(server, queue)]
    assert len(there) == len(set(there))
    assert not record.settled.intersection(there), "settled, and back"
    assert record.sent.issuperset(there)
    lost = record.confirmed - record.settled - record.settling - set(there)
    assert not lost, f"{len(lost)} lost: {sorted(lost)[:20]}"


def test_stop_under_load_loses_nothing(tmp_path: Path) -> None:
    """Pops that were served when the stop came were told that there was nothing, and their messages were gone."""
    record = Record()
    with ServerProcess(tmp_path / "data", "--cap=64MiB", "--log-level=error") as server:
        for queue in (*QUEUES, "empty"):
            with Http(server, queue) as http:
                assert http.call("PUT", "", b"{}")[0] == 201
        with MqksPeer(server.mqks, HANG_S) as peer:
            peer.call("b", f"rebind --confirm {WORK} {EVENT}")
        for _ in range(LIVES):
            record.done.clear()
            load = Load(server, record)
            load.begin()
            kinds = [f"publish over {protocol}" for protocol in ("STOMP", "WebSocket", "MQKS")]
            kinds += [f"publish to {queue}" for queue in (POPPED, LEASED)]
            kinds += ["consume over STOMP", "consume by taking over STOMP", "consume over MQKS", "pop", "lease"]
            record.wait_until_busy(kinds)
            assert server.stop() == 0
            load.join()
            assert record.failure is None, record.failure
            assert load.ended == [(204, b"")]
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(server.http, HANG_S)
            server.restart()
            compare(server, record)
        assert "Traceback" not in server.log
