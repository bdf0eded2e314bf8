"""Simulated WebSocket clients: publishers that send every form of a message, consumers that settle in every way."""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections import deque
from typing import Any, ClassVar

import orjson
from websockets.utils import apply_mask

from tests.sim.history import Violation
from tests.sim.server_client import Client, ClientConsumer
from tests.sim.server_history import Copy, Received, Sent

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
PROJECT = "/v2/default/queues/"
OF_JSON = frozenset(
    ("Content-Type", "timestamp", "redelivered", "ackId", "id", "tries", "expires", "message", "encoding", "dead")
)


def received_of(message: dict[str, Any], body: bytes | None = None) -> Received:
    """Return what a message is that came as a JSON object."""
    if body is None:
        text, encoding = message["message"], message.get("encoding")
        body = text.encode()
        if encoding is not None:
            body = base64.b64decode(text) if encoding == "base64" else bytes.fromhex(text)
    fields = {name: value for name, value in message.items() if name not in OF_JSON}
    return Received(body, fields, message["tries"])


class SocketClient(Client):
    """The handshake, and frames."""

    PORT = 3

    def hello(self, subprotocol: str, queue: str, query: str) -> None:
        self._is_open = self._is_closed = False
        self.world.note(f"{self.name} connects as {subprotocol} of {queue} {query}")
        lines = [f"GET {PROJECT}{queue}/messages?{query} HTTP/1.1", "Host: localhost", "Connection: Upgrade"]
        lines += ["Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
        self.say("\r\n".join([*lines, f"Sec-WebSocket-Protocol: {subprotocol}", "", ""]).encode())

    def frame(self, opcode: int, data: bytes) -> None:
        """Send a message, now and then in two pieces with a ping between them."""
        if opcode in (TEXT, BINARY) and data and self.rng.random() < 0.05:
            at = self.rng.randrange(len(data))
            self.say(self._one(opcode, data[:at]) + self._one(0x80 | PING, b"p") + self._one(0x80, data[at:]))
        else:
            self.say(self._one(0x80 | opcode, data))

    def _one(self, first: int, data: bytes) -> bytes:
        mask = self.rng.choice((b"\0\0\0\0", b"\x01\x82\xf3\x44"))
        size = len(data)
        length = bytes((0x80 | size,)) if size < 126 else bytes((0xFE,)) + size.to_bytes(2, "big")
        return bytes((first,)) + length + mask + apply_mask(data, mask)

    def do_close(self) -> None:
        self.is_leaving = True
        self.frame(CLOSE, (1000).to_bytes(2, "big"))

    def feed(self, data: bytearray) -> None:
        if not self._is_open:
            head, blank, rest = bytes(data).partition(b"\r\n\r\n")
            if not blank:
                return
            if not head.startswith(b"HTTP/1.1 101 "):
                raise Violation(f"{self.name} was not let in: {head!r} {rest!r}")
            self._is_open = True
            data[:] = rest
        at = 0
        while (end := self._whole(data, at)) is not None:
            size, start = end
            self._frame_in(data[at] & 15, bytes(data[start : start + size]))
            at = start + size
            if self.socket is None:
                return
        del data[:at]

    @staticmethod
    def _whole(data: bytearray, at: int) -> tuple[int, int] | None:
        """Return size and start of the payload at `at`, None where it is not all there."""
        if len(data) - at < 2:
            return None
        size, start = data[at + 1], at + 2
        if size >= 126:
            start += 2 if size == 126 else 8
            size = int.from_bytes(data[at + 2 : start], "big")
        return (size, start) if start + size <= len(data) else None

    def _frame_in(self, opcode: int, payload: bytes) -> None:
        self.world.steps_done += 1
        if opcode == CLOSE:
            if not self.is_leaving:
                self.is_leaving = True
                self.frame(CLOSE, payload[:2])
        elif opcode in (TEXT, BINARY):
            self.message_in(opcode == TEXT, payload)
        elif opcode not in (PING, PONG):
            raise Violation(f"{self.name}: a frame {opcode}")

    @abstractmethod
    def message_in(self, is_text: bool, payload: bytes) -> None:
        """Take one message."""


class PublishClient(SocketClient):
    """See the module's text."""

    ACTS: ClassVar[dict[str, int]] = {"send": 12, "close": 1, "end": 1, "die": 1}

    def begin(self) -> None:
        rng = self.rng
        self._queue = rng.choice(self.world.queues)
        self._groups = rng.choice(self.world.groups)
        self._sent: deque[list[Copy]] = deque()
        query = "confirm=json&" if rng.random() < 0.5 else ""
        self.hello("publish", self._queue, query + (f"groups={','.join(self._groups)}" if self._groups else ""))

    def forget(self) -> None:
        self._sent.clear()

    def do_send(self) -> None:
        tokens = []
        for _ in range(self.rng.choice((1, 5, 20, 100))):
            sent = self.message(self._queue)
            self._send(sent)
            self._sent.append(sent.copies)
            self.pending["confirms"] = bool
            tokens.append(sent.token)
        self.world.note(f"{self.name} sends {tokens}")

    def _send(self, sent: Sent) -> None:
        """Send a message in one of its forms; only those with metadata can have any."""
        form = self.rng.choice(("lone", "empty", "pair", "object"))
        if form in ("lone", "empty"):
            sent.fields, sent.groups = {}, self._groups
            if form == "empty":
                self.frame(TEXT, b"")
            self.frame(BINARY, sent.body)
            return
        sent.groups = self._groups
        self.options(sent)
        fields: dict[str, Any] = dict(sent.fields)
        if sent.delay_ms:
            fields["delay"] = sent.delay_ms / 1000
        if sent.ttl_ms:
            fields["ttl"] = sent.ttl_ms / 1000
        if sent.groups:
            fields["groups"] = ",".join(sent.groups)
        if form == "object":
            fields["encoding"] = self.rng.choice(("hex", "base64"))
            fields["message"] = sent.body.hex() if fields["encoding"] == "hex" else base64.b64encode(sent.body).decode()
        self.frame(TEXT, orjson.dumps(fields))
        if form == "pair":
            self.frame(BINARY, sent.body)

    def message_in(self, is_text: bool, payload: bytes) -> None:
        answer = orjson.loads(payload) if payload else {}
        if "error" in answer:
            is_final = self.check_error(answer["error"])
            if answer["code"] in (503, 507) and self._sent:
                copies = self._sent.popleft()
                if is_final:
                    self.history.hidden.update(copies)
        elif not self._sent:
            raise Violation(f"{self.name}: a confirm nobody asked for")
        else:
            self.history.confirm(self._sent.popleft())
        if not self._sent:
            self.pending.pop("confirms", None)


class ConsumeClient(SocketClient):
    """See the module's text. Its acks are not answered, so they doom a message and never say that it is gone."""

    ACTS: ClassVar[dict[str, int]] = {
        "ack": 8, "ack_to": 4, "nack": 2, "reject": 1, "stop": 1, "close": 1, "end": 1, "die": 1
    }  # fmt: skip

    def begin(self) -> None:
        rng = self.rng
        queue, group = rng.choice(self.world.queues), rng.choice(self.world.readers)
        window = rng.choice((1, 5, 50))
        settles = rng.random() < 0.8
        encoding = rng.choice(("", "", "base64", "hex"))
        self._metadata: dict[str, Any] | None = None
        self._consumer = ClientConsumer(self, queue, queue, group, window if settles else 0)
        words = [f"limit={window}", "ack" if settles else "", f"group={group}" if group else ""]
        self._is_whole = bool(encoding)
        self.hello(
            "consume", queue, "&".join([*filter(None, words), f"encoding={encoding}" if encoding else ""]).strip("&")
        )

    def forget(self) -> None:
        self._consumer.held.clear()

    def message_in(self, is_text: bool, payload: bytes) -> None:
        if is_text:
            metadata = orjson.loads(payload)
            if "error" in metadata and "code" in metadata:
                self.check_error(metadata["error"])
            elif self._is_whole:
                self._consumer.take(metadata.get("ackId", ""), received_of(metadata))
            else:
                self._metadata = metadata
        else:
            metadata, self._metadata = self._metadata, None
            if metadata is None:
                raise Violation(f"{self.name}: a payload without metadata")
            self._consumer.take(metadata.get("ackId", ""), received_of(metadata, payload))

    def _key(self) -> str:
        return self.rng.choice(list(self._consumer.held))

    def _settle(self, keys: list[str], **command: Any) -> list[Copy]:
        copies = self._consumer.release_dropped(keys)
        self.world.note(f"{self.name} {list(command)} {copies}")  # an ackId is drawn, and another in each run
        self.frame(TEXT, orjson.dumps(command))
        return copies

    def do_ack(self) -> None:
        for _ in range(self.rng.choice((1, 10, 60))):
            if self._consumer.held:
                key = self._key()
                self.history.doom(self._settle([key], ackId=key))

    def do_ack_to(self) -> None:
        if self._consumer.held:
            keys = list(self._consumer.held)
            at = self.rng.randrange(len(keys))
            self.history.doom(self._settle(keys[: at + 1], ackToId=keys[at]))

    def do_nack(self) -> None:
        if self._consumer.held:
            key = self._key()
            delay = {"delay": 0.1} if self.rng.random() < 0.5 else {}
            self._settle([key], nackId=key, error="no", **delay)

    def do_reject(self) -> None:
        if self._consumer.held:
            key = self._key()
            copies = self._settle([key], rejectId=key)
            if self._consumer.queue not in self.history.dying:
                self.history.doom(copies)

    def do_stop(self) -> None:
        self.frame(TEXT, b"")
