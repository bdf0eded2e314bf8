"""Consumers that settle whatever comes, out of order and with stragglers, whatever happens to the server.

A straggler is kept unsettled while many later ones are settled, so the cleaner has to copy it forward; a few
deliveries are given back once, and now and then a consumer hangs up with all that it holds. In two of three boots
of the server they begin only when the queue is at its cap.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.crash.history import Delivered, History, Requeued, Settled, Settling
from tests.crash.killable import HANG_S, Boot, KillableServer
from tests.crash.line_consumers import lease_session, mqks_session
from tests.crash.producers import VALUE
from tests.crash.source import Source
from tests.crash.stomp_peer import StompPeer, encode

WINDOW = 200
STRAGGLERS_MAX = 40
IDLE_S = 0.1


class ConsumerRecord:
    """What one consumer's connection holds: decides what is settled when, and keeps the record.

    A handle is what the protocol calls a delivery (the `ack` header, the `ackId`).
    """

    def __init__(self, queue: str, consumer: str, boot: int, history: History, rng: Random) -> None:
        self._names = (queue, consumer, boot)
        self._boot = boot
        self._history = history
        self._rng = rng
        self._due: deque[str] = deque()
        self._stragglers: deque[str] = deque()
        self._left = rng.randint(500, 6000)
        self._unconfirmed: set[str] = set()
        self.ids: dict[str, str] = {}
        """Handle to message id, of all that is not settled, in order of delivery."""

    def take(self, handle: str, value: str, message_id: str, body: bytes, tries: int) -> bool:
        """Record a delivery; return whether it is to be given back, in which case it is forgotten here."""
        queue, consumer, boot = self._names
        self._history.append(Delivered(value, queue, message_id, body, consumer, boot, tries))
        self._left -= 1
        if tries == 0 and self._rng.random() < 0.01:
            self._history.append(Requeued(message_id, boot))
            return True
        self.ids[handle] = message_id
        (self._stragglers if self._rng.random() < 0.03 else self._due).append(handle)
        return False

    def to_settle(self, *, idle: bool) -> list[str]:
        """Return the handles to settle now; all that there are when nothing else comes."""
        due = list(self._due)
        self._due.clear()
        self._rng.shuffle(due)
        while len(self._stragglers) > (0 if idle else STRAGGLERS_MAX):
            due.append(self._stragglers.popleft())
        return due

    def settling(self, handles: list[str]) -> None:
        """Record that acks are about to be sent."""
        message_ids = [self.ids.pop(handle) for handle in handles]
        self._unconfirmed.update(message_ids)
        self._history.extend(map(Settling, message_ids))

    def settled(self, message_ids: list[str]) -> None:
        self._unconfirmed.difference_update(message_ids)
        self._history.extend(Settled(message_id, self._boot) for message_id in message_ids)

    @property
    def is_tired(self) -> bool:
        """Whether it is time to hang up."""
        return self._left <= 0

    @property
    def unconfirmed(self) -> int:
        """How many acks were sent and not confirmed."""
        return len(self._unconfirmed)

    def hang_up(self) -> None:
        """Record that all it holds goes back; an ack on its way may get lost."""
        held = {*self.ids.values(), *self._unconfirmed}
        self._history.extend(Requeued(message_id, self._boot) for message_id in held)

    def forget(self, handles: set[str]) -> None:
        """Not settle these any more: something else has."""
        self._due = deque(handle for handle in self._due if handle not in handles)
        self._stragglers = deque(handle for handle in self._stragglers if handle not in handles)


class Consumer:
    """One consumer over all boots of a server, until `done` is set."""

    def __init__(self, server: KillableServer, source: Source, name: str, history: History, rng: Random) -> None:
        self._server = server
        self._source = source
        self.queue = source.queue
        self._name = name
        self._history = history
        self.progress = source.progress
        self._rng = rng
        self.done = threading.Event()

    def over_stomp(self) -> None:
        """Consume with client-individual acks, each with a receipt."""
        self._through_all_boots(self._stomp_session)

    def over_websocket(self) -> None:
        """Consume with acks, single and cumulative; the protocol does not confirm them."""
        self._through_all_boots(self._websocket_session)

    def over_mqks(self) -> None:
        """Consume over MQKS with manual acks, each with `--confirm`."""
        self._through_all_boots(partial(mqks_session, self))

    def with_leases(self) -> None:
        self._through_all_boots(partial(lease_session, self))

    def _through_all_boots(self, session: Callable[[Boot, ConsumerRecord], None]) -> None:
        sessions = 0
        while not self.done.is_set():
            boot = self._server.boot
            sessions += 1
            name = f"{self._name} {boot.number}.{sessions}"
            if boot.number % 3:
                self._source.wait_until_full()
            try:
                session(boot, ConsumerRecord(self.queue, name, boot.number, self._history, self._rng))
            except (OSError, WebSocketException):
                if self.done.is_set():
                    return
                self._server.wait_for_boot(boot.number)

    def _stomp_session(self, boot: Boot, record: ConsumerRecord) -> None:
        with StompPeer(boot.stomp, HANG_S) as peer:
            wanted = {"id": "1", "destination": f"/queue/{self.queue}", "ack": "client-individual"}
            peer.send(encode("SUBSCRIBE", wanted | {"prefetch-count": str(WINDOW)}))
            while not self.done.is_set() or record.ids or record.unconfirmed:
                if record.is_tired:
                    record.hang_up()
                    return
                idle = False
                out: list[bytes] = []
                confirmed: list[str] = []
                try:
                    frames = peer.read(IDLE_S)
                except TimeoutError:
                    frames, idle = [], True
                for frame in frames:
                    headers = frame.headers
                    if frame.command == "RECEIPT":
                        confirmed.append(headers["receipt-id"])
                        continue
                    assert frame.command == "MESSAGE", frame
                    handle, tries = headers["ack"], int(headers["x-tries"])
                    assert headers["redelivered"] == ("true" if tries else "false")
                    if record.take(handle, headers[VALUE], headers["message-id"], frame.body, tries):
                        out.append(encode("NACK", {"id": handle}))
                handles = record.to_settle(idle=idle)
                out += [encode("ACK", {"id": handle, "receipt": record.ids[handle]}) for handle in handles]
                record.settling(handles)
                record.settled(confirmed)
                self.progress.add(settled=len(confirmed))
                if out:
                    peer.send(b"".join(out))

    def _websocket_session(self, boot: Boot, record: ConsumerRecord) -> None:
        host, port = boot.http
        project, _, queue = self.queue.partition("/")
        with connect(
            f"ws://{host}:{port}/v2/{project}/queues/{queue}/messages?ack&limit={WINDOW}",
            subprotocols=[Subprotocol("consume")],
            compression=None,
            ping_interval=None,
            open_timeout=HANG_S,
            close_timeout=IDLE_S,
            proxy=None,
        ) as socket:
            while not self.done.is_set() or record.ids:
                if record.is_tired:
                    record.hang_up()
                    return
                frame: str | bytes | None = None
                with suppress(TimeoutError):
                    frame = socket.recv(timeout=IDLE_S)
                if frame is not None:
                    self._websocket_message(socket, record, frame)
                handles = record.to_settle(idle=frame is None)
                for handle in handles:
                    self._websocket_settle(socket, record, handle)

    def _websocket_message(self, socket: ClientConnection, record: ConsumerRecord, frame: str | bytes) -> None:
        assert isinstance(frame, str), frame
        metadata = json.loads(frame)
        assert "ackId" in metadata, metadata
        body = socket.recv(timeout=HANG_S)
        assert isinstance(body, bytes), body
        assert metadata["redelivered"] == (metadata["tries"] > 0)
        handle = metadata["ackId"]
        if record.take(handle, metadata[VALUE], metadata["id"], body, metadata["tries"]):
            socket.send(json.dumps({"nackId": handle}))

    def _websocket_settle(self, socket: ClientConnection, record: ConsumerRecord, handle: str) -> None:
        if handle not in record.ids:  # settled by a cumulative ack
            return
        handles = [handle]
        if self._rng.random() < 0.02:
            handles = [other for other in record.ids if place_of(other) <= place_of(handle)]
            record.forget(set(handles))
            command = {"ackToId": handle}
        else:
            command = {"ackId": handle}
        record.settling(handles)
        socket.send(json.dumps(command))
        self.progress.add(settled=len(handles))


def place_of(ack_id: str) -> int:
    """Return how many deliveries a connection had when it got this one: what is behind its name."""
    return int(ack_id.partition(".")[2])
