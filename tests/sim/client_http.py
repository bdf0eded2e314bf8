"""A simulated HTTP client: one request at a time on a connection that is kept: publishes, batches, pops and leases."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar
from urllib.parse import unquote

import orjson

from tests.sim.client_sockets import PROJECT, received_of
from tests.sim.history import Violation
from tests.sim.server_client import Client
from tests.sim.server_history import Copy, Received, Sent

OF_HTTP = frozenset(("x-msg-id", "x-msg-timestamp", "x-msg-redelivered", "x-msg-tries"))
Answer = Callable[[int, dict[str, str], bytes], None]


class LeaseHolder:
    """A lease: it outlives its connection, and ends by itself."""

    def __init__(self, client: HttpClient, name: str, queue: str, group: str, until_ms: int) -> None:
        self._client = client
        self.name = name
        self.queue = queue
        self.group = group
        self.last: dict[str, int] = {}
        self.until_ms = until_ms
        self.token = ""
        self.copy: Copy | None = None

    @property
    def holds(self) -> bool:
        return self._client.world.loop.host.now_ms() < self.until_ms


class HttpClient(Client):
    """See the module's text."""

    PORT = 3
    ACTS: ClassVar[dict[str, int]] = {
        "post": 5,
        "batch": 3,
        "pop": 4,
        "lease": 4,
        "ack": 4,
        "nack": 2,
        "end": 1,
        "die": 1,
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.leases: list[LeaseHolder] = []
        self._pops: tuple[str, str] | None = None

    def begin(self) -> None:
        self._answer: Answer | None = None

    def forget(self) -> None:
        self._answer = self._pops = None

    def give_up(self) -> None:
        """Whatever was asked, its answer will not be seen."""
        if self._pops:
            self.history.orphans[self._pops] += 1
            self._pops = None

    def do_die(self) -> None:
        self.give_up()
        super().do_die()

    def do_end(self) -> None:
        self.give_up()
        super().do_end()

    def forget_leases(self) -> None:
        self.leases.clear()

    def _ask(self, method: str, path: str, answer: Answer, body: bytes = b"", headers: str = "") -> None:
        head = f"{method} {PROJECT}{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        self.world.note(f"{self.name} {method} {path}")
        self._answer = answer
        self.pending["request"] = bool
        self.say(head.encode() + body)

    # --- publishing

    def do_post(self) -> None:
        if self._answer is not None:
            return
        sent = self._message()
        words = [f"groups={','.join(sent.groups)}"] if sent.groups else []
        words += [f"delay={sent.delay_ms / 1000}"] if sent.delay_ms else []
        words += [f"ttl={sent.ttl_ms / 1000}"] if sent.ttl_ms else []
        headers = "".join([f"{name}: {value}\r\n" for name, value in sent.fields.items()])
        path = f"{sent.queue}/messages?" + "&".join(words)
        self._ask("POST", path.rstrip("?"), partial(self._published, sent.copies), sent.body, headers)

    def _message(self, queue: str = "") -> Sent:
        sent = self.message(queue or self.rng.choice(self.world.queues))
        if "x-n" in sent.fields:
            sent.fields = {"x-msg-x-n": sent.fields["x-n"]}  # no other name is kept over HTTP
        self.options(sent)
        return sent

    def do_batch(self) -> None:
        if self._answer is not None:
            return
        queue = self.rng.choice(self.world.queues)
        items: list[dict[str, Any]] = []
        copies: list[Copy] = []
        for _ in range(self.rng.choice((1, 10, 60))):
            sent = self._message(queue)
            item: dict[str, Any] = {
                **sent.fields,
                "message": base64.b64encode(sent.body).decode(),
                "encoding": "base64",
            }
            item |= {"delay": sent.delay_ms / 1000} if sent.delay_ms else {}
            item |= {"ttl": sent.ttl_ms / 1000} if sent.ttl_ms else {}
            item |= {"groups": ",".join(sent.groups)} if sent.groups else {}
            items.append(item)
            copies += sent.copies
        self.world.steps_done += len(items) - 1
        self._ask("POST", f"{queue}/messages/batch", partial(self._published, copies), orjson.dumps(items))

    def _published(self, copies: list[Copy], status: int, headers: dict[str, str], body: bytes) -> None:
        if status == 201:
            self.history.confirm(copies)
        elif self._refused(status, body):
            self.history.hidden.update(copies)

    def _refused(self, status: int, body: bytes) -> bool:
        """Return whether it was refused for good, for want of room in the queue."""
        if status not in (507, 503, 413):
            raise Violation(f"{self.name}: {status} {body!r}")
        return self.check_error(body.decode())

    # --- taking

    def do_pop(self) -> None:
        if self._answer is None:
            queue, group = self.rng.choice(self.world.queues), self.rng.choice(self.world.readers)
            holder = LeaseHolder(self, f"{self.name}/pop", queue, group, 1 << 60)
            wait = self.rng.choice(("", "&wait=1", "&wait=10"))
            self._pops = queue, group
            self._ask(
                "DELETE", f"{queue}/messages?group={group}{wait}".replace("group=&", ""), partial(self._popped, holder)
            )

    def _popped(self, holder: LeaseHolder, status: int, headers: dict[str, str], body: bytes) -> None:
        if status == 200:
            fields = {
                # A name that begins with x- for others is x-msg-x-x- here.
                name.replace("x-msg-x-x-", "x-"): value if not value.isascii() else unquote(value)
                for name, value in headers.items()
                if name.startswith("x-msg-x-") and name not in OF_HTTP
            }
            received = Received(body, fields if holder.queue != "dead" else None, int(headers["x-msg-tries"]))
            copy = self.history.receive(holder, received)
            self.history.live.pop(copy, None)
            self.history.doom([copy])
            self.history.gone.add(copy)
        elif status != 204:
            self._refused(status, body)

    def do_lease(self) -> None:
        if self._answer is None:
            queue, group = self.rng.choice(self.world.queues), self.rng.choice(self.world.readers)
            seconds = self.rng.choice((1, 20))
            asked: dict[str, Any] = {
                "count": self.rng.choice((1, 5, 20)),
                "seconds": seconds,
                "wait": self.rng.choice((0, 1)),
            }
            asked |= {"group": group} if group else {}
            until_ms = self.world.loop.host.now_ms() + 1000 * seconds
            self._ask(
                "POST", f"{queue}/messages/lease", partial(self._leased, queue, group, until_ms), orjson.dumps(asked)
            )

    def _leased(self, queue: str, group: str, until_ms: int, status: int, headers: dict[str, str], body: bytes) -> None:
        if status != 200:
            self._refused(status, body)
            return
        last: dict[str, int] = {}
        for message in orjson.loads(body)["messages"]:
            self.world.steps_done += 1
            lease = LeaseHolder(self, f"{self.name}/{message['ackId']}", queue, group, until_ms)
            lease.last, lease.token = last, message["ackId"]
            lease.copy = self.history.receive(lease, received_of(message))
            self.leases.append(lease)

    def _take_leases(self) -> list[LeaseHolder]:
        """Return a few leases of one queue that are to be settled; they are held no more."""
        self.leases = [lease for lease in self.leases if lease.holds]
        if not self.leases or self._answer is not None:
            return []
        queue = self.rng.choice(self.leases).queue
        chosen = [lease for lease in self.leases if lease.queue == queue][: self.rng.choice((1, 5, 20))]
        self.leases = [lease for lease in self.leases if lease not in chosen]
        for lease in chosen:
            assert lease.copy is not None
            if self.history.live.get(lease.copy) is lease:
                del self.history.live[lease.copy]
        return chosen

    def do_ack(self) -> None:
        chosen = self._take_leases()
        if chosen:
            self.history.doom([lease.copy for lease in chosen if lease.copy])
            body = orjson.dumps({"ackIds": [lease.token for lease in chosen]})
            self._ask("POST", f"{chosen[0].queue}/messages/ack", partial(self._acked, chosen), body)

    def _acked(self, chosen: list[LeaseHolder], status: int, headers: dict[str, str], body: bytes) -> None:
        if status != 200:
            self._refused(status, body)
            return
        stale = set(orjson.loads(body)["stale"])
        self.history.gone.update([lease.copy for lease in chosen if lease.copy and lease.token not in stale])

    def do_nack(self) -> None:
        chosen = self._take_leases()
        if chosen:
            asked: dict[str, Any] = {"ackIds": [lease.token for lease in chosen]}
            if self.rng.random() < 0.3:
                asked["reject"] = True
                if chosen[0].queue not in self.history.dying:
                    self.history.doom([lease.copy for lease in chosen if lease.copy])
            self._ask("POST", f"{chosen[0].queue}/messages/nack", self._nacked, orjson.dumps(asked))

    def _nacked(self, status: int, headers: dict[str, str], body: bytes) -> None:
        if status != 200:
            self._refused(status, body)

    # --- answers

    def feed(self, data: bytearray) -> None:
        while data:
            head, blank, rest = bytes(data).partition(b"\r\n\r\n")
            if not blank:
                return
            first, *lines = head.decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in [line.partition(": ") for line in lines]}
            length = int(headers.get("content-length", "0"))
            if len(rest) < length:
                return
            data[:] = rest[length:]
            self.world.steps_done += 1
            answer, self._answer = self._answer, None
            self._pops = None
            if answer is None and " 408 " in first:
                return  # it was silent for too long
            if answer is None:
                raise Violation(f"{self.name}: an answer nobody asked for, {first}")
            self.pending.clear()
            answer(int(first.split()[1]), headers, rest[:length])
