"""A simulated MQKS client: publishes, consumes with and without acks, acks, rejects, and all ways to leave."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from tests.sim.history import Violation
from tests.sim.server_client import Client, ClientConsumer
from tests.sim.server_history import Received

EVENT = "ev-"
"""Begins the name of the event that is bound to a queue; the rest is the queue's name."""


class MqksClient(Client):
    """See the module's text."""

    PORT = 2
    ACTS: ClassVar[dict[str, int]] = {
        "publish": 8,
        "consume": 3,
        "ack": 8,
        "reject": 2,
        "drop": 1,
        "ping": 1,
        "end": 1,
        "die": 1,
    }

    def begin(self) -> None:
        self.consumers: dict[str, ClientConsumer] = {}
        self.ended: set[str] = set()

    def forget(self) -> None:
        self.consumers.clear()

    def _request(self, action: str, rest: str | bytes, *, name: str = "", confirm: bool = True) -> str:
        name = name or self.next_id()
        data = rest.encode() if isinstance(rest, str) else rest
        flag = b"--confirm " if confirm else b""
        self.say(f"{name} {action} ".encode() + flag + data + self.rng.choice((b"\n", b"\r\n")))
        return name

    def do_publish(self) -> None:
        queue = self.rng.choice(self.world.queues)
        for _ in range(self.rng.choice((1, 5, 20, 100))):
            sent = self.message(queue, plain=True, named=False)
            name = self.next_id()
            sent.fields = {"x-msg-x-mqks-id": name, "x-msg-x-mqks-event": EVENT + queue}
            confirm = self.rng.random() < 0.8
            self.world.note(f"{self.name} publishes {sent.token} to {queue}")
            self._request("publish", f"{EVENT}{queue} ".encode() + sent.body, name=name, confirm=confirm)
            if confirm:
                self.pending[name] = partial(self.history.confirm, sent.copies)

    def do_consume(self) -> None:
        if len(self.consumers) >= 2:
            return
        queue, window = self.rng.choice(self.world.queues), self.rng.choice((1, 5, 50))
        manual = self.rng.random() < 0.8
        options = f" --manual-ack --window={window}" if manual else ""
        name = self._request("consume", queue + options)
        self.pending[name] = bool
        self.consumers[name] = ClientConsumer(self, name, queue, "", window if manual else 0)
        self.world.note(f"{self.name} consumes {queue}{options} as {name}")

    def _holder(self) -> tuple[str, ClientConsumer] | None:
        found = [item for item in self.consumers.items() if item[1].held]
        return self.rng.choice(found) if found else None

    def do_ack(self) -> None:
        for _ in range(self.rng.choice((1, 10, 60))):
            found = self._holder()
            if found is None:
                return
            name, consumer = found
            key = self.rng.choice(list(consumer.held))
            copies = consumer.release_dropped([key])
            self.history.doom(copies)
            self.world.note(f"{consumer.name} acks {copies}")
            request = self._request("ack", f"{name} {key}")
            self.pending[request] = partial(self.history.gone.update, copies)

    def do_reject(self) -> None:
        found = self._holder()
        if found is not None:
            name, consumer = found
            key = self.rng.choice(list(consumer.held))
            self.world.note(f"{consumer.name} rejects {consumer.release_dropped([key])}")
            self.pending[self._request("reject", f"{name} {key}")] = bool

    def do_drop(self) -> None:
        """End one consumer: what it holds goes back as soon as the server reads that."""
        if self.consumers:
            name = self.rng.choice(list(self.consumers))
            consumer = self.consumers.pop(name)
            consumer.release_dropped(list(consumer.held))
            self.ended.add(name)
            self.pending[self._request("delete_consumer", name)] = bool

    def do_ping(self) -> None:
        self.pending[self._request("ping", "x", confirm=False)] = bool

    def feed(self, data: bytearray) -> None:
        *lines, rest = bytes(data).split(b"\n")
        data[:] = rest
        for line in lines:
            self.world.steps_done += 1
            self._line(line)

    def _line(self, line: bytes) -> None:
        name, word, rest = line.split(b" ", 2)
        key = name.decode()
        if word == b"error":
            # Why is in the server's log only; whoever keeps the rules is refused for want of room or disk.
            self.pending.pop(key, None)
        elif word != b"ok":
            raise Violation(f"{self.name}: {line[:80]!r}")
        elif key in self.consumers and rest:
            if not rest.startswith(b"--update"):
                self._deliver(self.consumers[key], rest)
        elif key in self.pending:
            self.pending.pop(key)()
        elif key not in self.ended:
            raise Violation(f"{self.name}: an answer nobody asked for, {line[:80]!r}")

    def _deliver(self, consumer: ClientConsumer, rest: bytes) -> None:
        msg_id, reported, body = rest.split(b" ", 2)
        head = body.partition(b":")[0]
        sent = self.history.sent.get(int(head)) if head.isdigit() else None
        if sent is None:
            raise Violation(f"{consumer.name} got a message nobody sent: {body[:40]!r}")
        written = sent.body.replace(b"\r", b"\\r").replace(b"\n", b"\\n").replace(b"\t", b"\\t")
        wanted = sent.fields.get("x-msg-x-mqks-id", msg_id.decode())
        if body == written:
            body = sent.body
        if msg_id.decode() != wanted:
            raise Violation(f"{consumer.name}: {sent.token} is called {msg_id!r}")
        tries = int(reported.partition(b"retry=")[2] or b"0")
        consumer.take(msg_id.decode() if consumer.window else "", Received(body, None, tries))
