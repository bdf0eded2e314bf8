"""A server for the client's core, in memory and without sockets: small, slow, and written without the code under test.

It stores what it is sent when it gets round to it, so that a connection may end between storing and telling. Where it
is asked for refusals it refuses what its queues have no room for.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field


@dataclass
class Connection:
    """What the server knows of one connection."""

    inbound: bytes = b""
    outbound: bytes = b""
    work: deque[tuple[str, dict[str, str], bytes]] = field(default_factory=deque)
    subscriptions: dict[str, tuple[str, int]] = field(default_factory=dict)
    unsettled: dict[str, tuple[str, int]] = field(default_factory=dict)


class FakeServer:
    """Queues of bodies, and the connections to them."""

    def __init__(self, dice: random.Random, cap: int, keeps_numbers: bool) -> None:
        self.dice = dice
        self.keeps_numbers = keeps_numbers
        self.numbers: dict[tuple[str, str], int] = {}
        """The last number stored, by queue and producer."""
        self.cap = cap
        self.stored: dict[str, list[bytes]] = {}
        """Everything that was ever stored, in order."""
        self.ready: dict[str, list[int]] = {}
        self.settled: dict[str, list[int]] = {}
        self._deliveries = 0

    def open(self) -> Connection:
        return Connection()

    def lose(self, connection: Connection) -> None:
        """The connection is gone: what it held is ready again, what it sent and was not carried out is lost."""
        for queue, index in connection.unsettled.values():
            self.ready[queue].insert(0, index)
        connection.unsettled.clear()
        connection.subscriptions.clear()

    def take(self, connection: Connection, data: bytes) -> None:
        """Read frames; no body of the model has a NUL."""
        *frames, connection.inbound = (connection.inbound + data).split(b"\0")
        for frame in frames:
            head, _, body = frame.lstrip(b"\n").partition(b"\n\n")
            command, *lines = head.decode().split("\n")
            # Of a header that is repeated the first counts, says STOMP 1.2.
            connection.work.append((command, dict(line.split(":", 1) for line in reversed(lines)), body))

    def turn(self, connection: Connection) -> None:
        """Carry out some of what came, and deliver."""
        for _ in range(min(len(connection.work), self.dice.randrange(8))):
            command, headers, body = connection.work.popleft()
            getattr(self, f"_{command.lower()}")(connection, headers, body)
        for key, (queue, window) in connection.subscriptions.items():
            held = sum(1 for ack in connection.unsettled if ack.startswith(f"{key}."))
            while held < window and self.ready.get(queue):
                index = self.ready[queue].pop(0)
                self._deliveries += 1
                ack = f"{key}.{self._deliveries}"
                connection.unsettled[ack] = (queue, index)
                held += 1
                text = self.stored[queue][index]
                lines = f"subscription:{key}\nmessage-id:m-{index}\nack:{ack}\ncontent-length:{len(text)}"
                connection.outbound += f"MESSAGE\n{lines}\n\n".encode() + text + b"\0\n"

    def depth(self, queue: str) -> int:
        """What a queue holds, what is in hand included."""
        return len(self.stored.get(queue, ())) - len(self.settled.get(queue, ()))

    def _connect(self, connection: Connection, headers: dict[str, str], body: bytes) -> None:
        assert headers["x-features"].split(",") == ["refusals", "ids", "window", "joined", "numbers"]
        features = "refusals,ids,numbers" if self.keeps_numbers else "refusals,ids"
        connection.outbound += f"CONNECTED\nversion:1.2\nx-features:{features}\nx-body-max:100\n\n\0\n".encode()

    def _send(self, connection: Connection, headers: dict[str, str], body: bytes) -> None:
        queue = headers["destination"]
        receipt = f"RECEIPT\nreceipt-id:{headers['receipt']}\n"
        assert ("x-producer" in headers) == self.keeps_numbers
        line = queue, headers.get("x-producer", "")
        number = int(headers.get("x-seq", headers["receipt"].rpartition(".")[2]))
        last = self.numbers.get(line, 0)
        if self.keeps_numbers and number <= last:
            receipt += "x-duplicate:true\n"
        elif self.keeps_numbers and int(headers.get("x-after", number - 1)) > last:
            receipt += f"x-error-code:409\nx-error:too early\nx-expected:{last + 1}\n"
        elif self.depth(queue) >= self.cap:
            receipt += "x-error-code:507\nx-error:full\nretry-after:1\n"
        elif body.endswith(b"!"):
            receipt += "x-error-code:413\nx-error:too loud\n"
        else:
            self.stored.setdefault(queue, []).append(body)
            self.numbers[line] = number
            self.ready.setdefault(queue, []).append(len(self.stored[queue]) - 1)
            receipt += f"x-msg-id:m-{len(self.stored[queue]) - 1}\n"
        connection.outbound += receipt.encode() + b"\n\0\n"

    def _subscribe(self, connection: Connection, headers: dict[str, str], body: bytes) -> None:
        assert headers["id"] not in connection.subscriptions
        connection.subscriptions[headers["id"]] = (headers["destination"], int(headers["prefetch-count"]))
        self._answer(connection, headers)

    def _unsubscribe(self, connection: Connection, headers: dict[str, str], body: bytes) -> None:
        del connection.subscriptions[headers["id"]]

    def _ack(self, connection: Connection, headers: dict[str, str], body: bytes) -> None:
        # A KeyError here is a settle that crossed a connection, or came twice.
        queue, index = connection.unsettled.pop(headers["id"])
        self.settled.setdefault(queue, []).append(index)
        self._answer(connection, headers)

    def _nack(self, connection: Connection, headers: dict[str, str], body: bytes) -> None:
        queue, index = connection.unsettled.pop(headers["id"])
        if headers.get("requeue") == "false":
            self.settled.setdefault(queue, []).append(index)
        else:
            self.ready[queue].append(index)
        self._answer(connection, headers)

    def _answer(self, connection: Connection, headers: dict[str, str]) -> None:
        if "receipt" in headers:
            connection.outbound += f"RECEIPT\nreceipt-id:{headers['receipt']}\n\n\0\n".encode()
