"""A simulated STOMP client: sends with receipts, transactions, the three ack modes, and all ways to leave."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from curbstone.core import headers as blocks
from curbstone.stomp.frames import escape
from tests.sim.history import Violation
from tests.sim.server_client import Client, ClientConsumer
from tests.sim.server_history import Copy, Received, Sent, Unit

OF_SERVER = frozenset(
    ("subscription", "message-id", "destination", "ack", "content-length", "timestamp", "redelivered")
    + ("x-tries", "x-mature")
)
PREFIX = "x-msg-x-"


class Subscription(ClientConsumer):
    """One subscription."""

    mode = ""
    is_active = True


class Open(Unit):
    """A transaction that is not committed yet."""

    name = ""

    def __init__(self) -> None:
        super().__init__()
        self.settled: list[tuple[Subscription, list[str]]] = []


class StompClient(Client):
    """See the module's text."""

    PORT = 1
    ACTS: ClassVar[dict[str, int]] = {
        "send": 8, "subscribe": 3, "ack": 8, "nack": 2, "begin": 2, "fill": 3, "commit": 2,
        "abort": 1, "unsubscribe": 1, "disconnect": 1, "end": 1, "die": 1,
    }  # fmt: skip

    version = ""

    def begin(self) -> None:
        self.version = self.rng.choice(("1.2", "1.2", "1.1", "1.0"))
        self.subscriptions: dict[str, Subscription] = {}
        self.open: Open | None = None
        self._unanswered: dict[str, list[tuple[int, list[Copy]]]] = {}
        self._implied: list[Copy] = []
        self._failures: dict[str, Callable[[bool], None]] = {}
        self.world.note(f"{self.name} connects with {self.version}")
        self.say(f"CONNECT\naccept-version:{self.version}\nhost:sim\n\n\0".encode())

    def forget(self) -> None:
        if self.open:
            self.history.hidden.update(self.open.publishes)
        self.open = None
        self.subscriptions.clear()

    # --- frames out

    def _frame(self, command: str, lines: list[str], body: bytes = b"") -> None:
        head = "".join([f"{line}\n" for line in lines])
        length = f"content-length:{len(body)}\n" if body else ""
        self.say(f"{command}\n{head}{length}\n".encode() + body + b"\0")

    def _receipt(self, done: Callable[[], object], failed: Callable[[bool], None] | None = None) -> str:
        name = self.next_id()
        self.pending[name] = done
        if failed is not None:
            self._failures[name] = failed
        return f"receipt:{name}"

    def _lines(self, sent: Sent) -> list[str]:
        lines = [f"destination:/queue/{sent.queue}"]
        if sent.delay_ms:
            lines.append(f"x-delta-t:{sent.delay_ms}")
        if sent.ttl_ms:
            lines.append(f"expiration:{sent.ttl_ms}")
        if sent.groups:
            lines.append("x-ks-groups:" + ",".join(sent.groups))
        for name, value in sent.fields.items():
            lines.append(f"{name.removeprefix(PREFIX)}:{escape(value, self.version)}")
        return lines

    def do_send(self) -> None:
        rng = self.rng
        queue = rng.choice(self.world.queues)
        count = rng.choice((1, 5, 20, 100))
        tokens = []
        for _ in range(count):
            sent = self.message(queue)
            self.options(sent)
            lines = self._lines(sent)
            if sent.ttl_ms:  # an order, and a header of the message as well
                sent.fields["x-msg-x-expiration"] = str(sent.ttl_ms)
            waiting = self._unanswered.setdefault(queue, [])
            waiting.append((sent.token, sent.copies))
            if rng.random() < 0.7:
                hide = partial(self._refused, sent.copies)
                lines.append(self._receipt(partial(self._confirmed, queue, sent.token), hide))
            self._frame("SEND", lines, sent.body)
            tokens.append(sent.token)
        self.world.note(f"{self.name} sends {tokens} to {queue}")

    def _confirmed(self, queue: str, token: int) -> None:
        """A receipt is for its message; for those before it in the queue as well, unless one is refused yet."""
        waiting = self._unanswered[queue]
        while waiting and waiting[0][0] <= token:
            earlier, copies = waiting.pop(0)
            if earlier == token:
                self.history.confirm(copies)
            else:
                self._implied += copies

    def _refused(self, copies: list[Copy], is_final: bool) -> None:
        if is_final:
            self.history.hidden.update(copies)

    # --- transactions

    def do_begin(self) -> None:
        if self.open is None:
            self.open = Open()
            self.open.name = self.next_id()
            self._frame("BEGIN", [f"transaction:{self.open.name}"])

    def do_fill(self) -> None:
        if self.open is None:
            self.do_begin()
        unit = self.open
        assert unit is not None
        for _ in range(self.rng.choice((0, 1, 3))):
            sent = self.message(self.rng.choice(self.world.queues), ordered=False)
            sent.groups = self.rng.choice(self.world.groups)
            unit.publishes += sent.copies
            self.history.hidden.update(sent.copies)
            self._frame("SEND", [*self._lines(sent), f"transaction:{unit.name}"], sent.body)
        holder = self._holder()
        if holder is not None:
            keys, line = self._choose(holder)
            holder.is_busy = True
            kind = self.rng.choice(("ACK", "ACK", "NACK")) if self.version != "1.0" else "ACK"
            lines = [*line, f"transaction:{unit.name}"]
            if kind == "NACK" and self.rng.random() < 0.5:
                lines.append("requeue:false")
            if kind == "ACK" or "requeue:false" in lines:
                unit.acks += [holder.held[key] for key in keys]
            unit.settled.append((holder, keys))
            self._frame(kind, lines)

    def do_commit(self) -> None:
        unit, self.open = self.open, None
        if unit is None:
            return
        self.history.hidden.difference_update(unit.publishes)
        self.history.units.append(unit)
        self.history.doom(unit.acks, alone=False)
        for holder, keys in unit.settled:
            holder.release_dropped(keys)
            holder.is_busy = False

        def done() -> None:
            unit.confirmed = True
            self.history.confirm(unit.publishes)
            self.history.gone.update(unit.acks)

        self.world.note(f"{self.name} commits {unit.publishes}, acks {unit.acks}")
        self._frame("COMMIT", [f"transaction:{unit.name}", self._receipt(done, partial(self._unit_refused, unit))])

    def _unit_refused(self, unit: Unit, is_final: bool) -> None:
        if is_final:
            self.history.refused(unit)

    def do_abort(self) -> None:
        unit, self.open = self.open, None
        if unit is not None:
            for holder, _ in unit.settled:
                holder.is_busy = False
            self._frame("ABORT", [f"transaction:{unit.name}"])

    # --- consuming

    def do_subscribe(self) -> None:
        if sum(s.is_active for s in self.subscriptions.values()) >= 2:
            return
        rng = self.rng
        queue, group, window = rng.choice(self.world.queues), rng.choice(self.world.readers), rng.choice((1, 5, 50))
        key = self.next_id()
        subscription = Subscription(self, key, queue, group, window)
        subscription.mode = rng.choice(("client", "client", "client-individual", "client-individual", "auto"))
        self.subscriptions[key] = subscription
        lines = [f"destination:/queue/{queue}", f"id:{key}", f"ack:{subscription.mode}", f"x-wsize:{window}"]
        lines += [f"x-ks-group:{group}"] if group else []
        self.world.note(f"{self.name} subscribes {key} to {queue} {group!r} {subscription.mode} {window}")
        self._frame("SUBSCRIBE", [*lines, self._receipt(bool)])

    def do_unsubscribe(self) -> None:
        active = [key for key, subscription in self.subscriptions.items() if subscription.is_active]
        if active:
            key = self.rng.choice(active)
            self.subscriptions[key].is_active = False
            self._frame("UNSUBSCRIBE", [f"id:{key}", self._receipt(bool)])

    def _holder(self) -> Subscription | None:
        found = [s for s in self.subscriptions.values() if s.held and not s.is_busy]
        return self.rng.choice(found) if found else None

    def _choose(self, holder: Subscription) -> tuple[list[str], list[str]]:
        """Return what one ACK settles, and the lines that name it."""
        keys = list(holder.held)
        at = self.rng.randrange(len(keys))
        chosen = keys[: at + 1] if holder.mode == "client" else [keys[at]]
        if self.version == "1.2":
            return chosen, [f"id:{keys[at]}"]
        return chosen, [f"subscription:{holder.name.partition('/')[2]}", f"message-id:{keys[at]}"]

    def do_ack(self) -> None:
        for _ in range(self.rng.choice((1, 10, 60))):
            holder = self._holder()
            if holder is None:
                return
            keys, lines = self._choose(holder)
            copies = holder.release_dropped(keys)
            self.history.doom(copies)
            if self.rng.random() < 0.6:
                lines.append(self._receipt(partial(self.history.gone.update, copies)))
            self.world.note(f"{holder.name} acks {copies}")
            self._frame("ACK", lines)

    def do_nack(self) -> None:
        holder = self._holder()
        if holder is None or self.version == "1.0":
            return
        keys, lines = self._choose(holder)
        copies = holder.release_dropped(keys)
        dice = self.rng.random()
        if dice < 0.3:
            lines.append("requeue:false")
            if holder.queue not in self.history.dying:
                self.history.doom(copies)
        elif dice < 0.6:
            lines.append("x-delta-t:100")
        self.world.note(f"{holder.name} nacks {copies} {lines}")
        self._frame("NACK", [*lines, self._receipt(bool)])

    def do_disconnect(self) -> None:
        self.is_leaving = True
        self._frame("DISCONNECT", [self._receipt(self._left)])

    def _left(self) -> None:
        """The receipt of a DISCONNECT is for all that was sent before it."""
        self.imply()
        for waiting in self._unanswered.values():
            for _, copies in waiting:
                self.history.confirm(copies)

    def imply(self) -> None:
        """Nothing was refused on this connection: a receipt was for all before it, too."""
        self.history.confirm(self._implied)
        self._implied = []

    # --- frames in

    def feed(self, data: bytearray) -> None:
        at = 0
        while True:
            while at < len(data) and data[at] == 10:
                at += 1
            blank = data.find(b"\n\n", at)
            if blank < 0:
                break
            length = data.find(b"\ncontent-length:", at, blank)
            if length < 0:
                end = data.find(b"\0", blank + 2)
            else:
                end = blank + 2 + int(data[length + 16 : data.index(b"\n", length + 1)])
            if end < 0 or end >= len(data):
                break
            command, _, head = bytes(data[at : blank + 1]).partition(b"\n")
            self._frame_in(command.decode(), head, bytes(data[blank + 2 : end]))
            at = end + 1
        del data[:at]

    def _frame_in(self, command: str, head: bytes, body: bytes) -> None:
        self.world.steps_done += 1
        if self.version == "1.0":
            lines = head.decode().splitlines()
            headers = {name: value for name, _, value in [line.partition(":") for line in lines]}
        else:
            headers = dict(reversed(blocks.decode(head)))
        if command == "MESSAGE":
            self._deliver(headers, body)
        elif command == "RECEIPT":
            done = self.pending.pop(headers["receipt-id"], None)
            if done is None:
                raise Violation(f"{self.name}: a receipt nobody asked for, {headers}")
            done()
        elif command == "ERROR":
            is_final = self.check_error(headers["message"] + " " + body.decode())
            self.world.note(f"{self.name} is told {headers['message']}")
            failed = self._failures.get(headers.get("receipt-id", ""))
            if failed is not None:
                failed(is_final)
            self._implied = []
        elif command != "CONNECTED":
            raise Violation(f"{self.name}: {command}")

    def _deliver(self, headers: dict[str, str], body: bytes) -> None:
        subscription = self.subscriptions.get(headers["subscription"])
        if subscription is None:
            raise Violation(f"{self.name}: a message for {headers['subscription']}")
        fields = {
            name if name.startswith("x-") else PREFIX + name: value
            for name, value in headers.items()
            if name not in OF_SERVER
        }
        key = "" if subscription.mode == "auto" else headers["ack" if self.version == "1.2" else "message-id"]
        subscription.take(key, Received(body, fields, int(headers["x-tries"])))
