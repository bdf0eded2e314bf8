"""A short fixed workload that uses all of the engine that writes: publishes, acks, transactions, rolls, cleaning.

One request at a time, so that it does the same in each run until something fails. What fails is recorded as it is:
without an answer, or refused.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from itertools import count

from tests.crash.history import Answered, Delivered, History, Requeued, Sent, Settled, Settling
from tests.crash.killable import HANG_S, KillableServer, Stuck
from tests.crash.producers import VALUE
from tests.crash.stomp_peer import StompFrame, StompPeer, encode

CAP = 64 * 1024
A, B, C = "crash/a", "crash/b", "crash/c"
WINDOW = 30
STRAGGLERS_MAX = 6
ROUNDS = 12
UNSETTLED_LOOKS_MAX = 2000


class ServerDied(Exception):
    """The server has died."""


class Worker:
    """A client that does one thing at a time, over STOMP and HTTP. Raises ServerDied once the server has died."""

    def __init__(
        self,
        server: KillableServer,
        history: History,
        name: str,
        *,
        queues: tuple[str, ...] = (A, B),
        window: int = WINDOW,
    ) -> None:
        self._server = server
        self._queues = queues
        """What it consumes from."""
        self._window = window
        self._history = history
        self._name = name
        self._sessions = 0
        self._peer: StompPeer | None = None
        self._numbers = count(1)
        self.held: dict[str, tuple[str, str]] = {}
        """Handle to queue and message id, of what is delivered and not settled, in order."""
        self.errors: list[str] = []
        """What the server said of requests that it did not carry out."""

    @property
    def _session(self) -> str:
        return f"{self._name} {self._server.boot.number}.{self._sessions}"

    # --- the connection

    def _connected(self) -> StompPeer:
        if self._peer is None:
            self._sessions += 1
            try:
                self._peer = StompPeer(self._server.boot.stomp, HANG_S)
                for queue in self._queues:
                    wanted = {"id": queue, "destination": f"/queue/{queue}", "ack": "client-individual"}
                    self._peer.send(encode("SUBSCRIBE", wanted | {"prefetch-count": str(self._window)}))
            except OSError:
                self._died()
        assert self._peer is not None
        return self._peer

    def close(self) -> None:
        """Hang up; what is held goes back."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        boot = self._server.boot.number
        self._history.extend(Requeued(message_id, boot) for _, message_id in self.held.values())
        self.held.clear()

    def _died(self) -> None:
        """A connection broke for which there is one reason only."""
        self.close()
        try:
            self._server.process.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            raise Stuck("the server boots, and did not answer or broke a connection without a word") from None
        raise ServerDied

    def _request(self, frames: list[bytes], receipts: int) -> bool:
        """Send frames and wait for so many RECEIPTs; False where an ERROR ended the connection."""
        peer = self._connected()
        try:
            peer.send(b"".join(frames))
            while receipts:
                for frame in peer.read():
                    if frame.command == "ERROR":
                        self.errors.append(frame.headers["message"])
                        self.close()
                        return False
                    receipts -= self._take(frame)
        except OSError:
            self._died()
        return True

    def _take(self, frame: StompFrame) -> bool:
        """Take a MESSAGE, or a RECEIPT, which it returns; the receipt of an ack is the message's id."""
        headers = frame.headers
        if frame.command == "MESSAGE":
            queue, message_id = headers["subscription"], headers["message-id"]
            names = (self._session, self._server.boot.number, int(headers["x-tries"]))
            self._history.append(Delivered(headers[VALUE], queue, message_id, frame.body, *names))
            self.held[headers["ack"]] = queue, message_id
            return False
        assert frame.command == "RECEIPT", frame
        if headers["receipt-id"] != "r":
            self._history.append(Settled(headers["receipt-id"], self._server.boot.number))
        return True

    # --- what it can do

    def _new(self, queue: str, size: int, unit: str = "") -> Sent:
        value = f"{self._name}.{next(self._numbers)}"
        body = (value.encode() + b"\n\0 \xff").ljust(size, value[-1:].encode())
        sent = Sent(value, queue, body, self._session, unit)
        self._history.append(sent)
        return sent

    def _refused(self, sent: list[Sent]) -> None:
        if "cap" in self.errors[-1] or "no space" in self.errors[-1]:
            self._history.extend(Answered(each.value, False) for each in sent)

    def send(self, queue: str, size: int) -> bool:
        """Publish over STOMP; return whether it was confirmed."""
        self._connected()
        sent = self._new(queue, size)
        headers = {"destination": f"/queue/{queue}", "receipt": "r", VALUE: sent.value}
        if self._request([encode("SEND", headers, sent.body)], 1):
            self._history.append(Answered(sent.value, True))
            return True
        self._refused([sent])
        return False

    def post(self, queue: str, *sizes: int) -> int:
        """Publish over HTTP, several as a batch; return the status."""
        self._connected()
        unit = f"batch {self._name}.{next(self._numbers)}" if len(sizes) > 1 else ""
        sent = [self._new(queue, size, unit) for size in sizes]
        project, _, name = queue.partition("/")
        path = f"/v2/{project}/queues/{name}/messages"
        if unit:
            batch = [{VALUE: one.value, "encoding": "hex", "message": one.body.hex()} for one in sent]
            status = self.call("POST", f"{path}/batch", json.dumps(batch).encode(), {})
        else:
            status = self.call("POST", path, sent[0].body, {VALUE: sent[0].value})
        if status == 201:
            self._history.extend(Answered(each.value, True) for each in sent)
        elif status == 507:
            self._refused(sent)
        return status

    def call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> int:
        """Make an HTTP call; return the status."""
        connection = http.client.HTTPConnection(*self._server.boot.http, timeout=HANG_S)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            said = reply.read()
        except (OSError, http.client.HTTPException):
            self._died()
        finally:
            connection.close()
        if reply.status >= 400:
            self.errors.append(said.decode())
        return reply.status

    def collect(self) -> None:
        """Take deliveries until everything there is has come, or the window is full."""
        peer = self._connected()
        try:
            for _ in range(UNSETTLED_LOOKS_MAX):
                for queue in self._queues:
                    rdy, wip = self._counts(queue)
                    mine = sum(held == queue for held, _ in self.held.values())
                    if mine < wip or (rdy and wip < self._window):
                        break
                else:
                    return
                try:
                    frames = peer.read(0.02)
                except TimeoutError:
                    frames = []
                for frame in frames:
                    self._take(frame)
        except (OSError, http.client.HTTPException):
            self._died()
        raise Stuck(f"deliveries do not come: {[self._counts(queue) for queue in self._queues]}, held {len(self.held)}")

    def _counts(self, queue: str) -> tuple[int, int]:
        project, _, name = queue.partition("/")
        status, info = self._server.get(f"/v2/{project}/queues/{name}")
        return (int(info["rdy"]), int(info["wip"])) if status == 200 else (0, 0)

    def ack(self, handles: list[str]) -> bool:
        """Settle these, each with a receipt; return whether all were confirmed."""
        ids = [self.held[handle][1] for handle in handles]
        self._history.extend(map(Settling, ids))
        frames = [encode("ACK", {"id": h, "receipt": i}) for h, i in zip(handles, ids, strict=True)]
        if not self._request(frames, len(frames)):
            return False
        for handle in handles:
            del self.held[handle]
        return True

    def nack(self, handle: str) -> None:
        _, message_id = self.held.pop(handle)
        self._history.append(Requeued(message_id, self._server.boot.number))
        self._request([encode("NACK", {"id": handle, "receipt": "r"})], 1)

    def transact(self, handle: str, size: int) -> None:
        """Publish to two queues and settle one delivery, all or nothing."""
        unit = f"transaction {self._name}.{next(self._numbers)}"
        sent = [self._new(queue, size, unit) for queue in (A, B)]
        _, message_id = self.held[handle]
        self._history.append(Settling(message_id, unit))
        inside = {"transaction": "t"}
        frames = [encode("BEGIN", inside)]
        for one in sent:
            headers = {"destination": f"/queue/{one.queue}", VALUE: one.value}
            frames.append(encode("SEND", headers | inside, one.body))
        frames += [encode("ACK", {"id": handle} | inside), encode("COMMIT", inside | {"receipt": "r"})]
        if self._request(frames, 1):
            self._history.extend(Answered(one.value, True) for one in sent)
            self._history.append(Settled(message_id, self._server.boot.number))
            del self.held[handle]
        else:
            self._refused(sent)

    def churn(self) -> None:
        """Make a queue, put something into it, delete it."""
        path = f"/v2/{C}".replace("crash/", "crash/queues/")
        self.call("PUT", path)
        self.call("POST", f"{path}/messages", b"x" * 1000)
        self.call("DELETE", path)


def do_all(worker: Worker, rounds: int = ROUNDS) -> None:
    """Do the whole workload; in the end some messages are unsettled, and one consumer holds them."""
    for number in range(rounds):
        worker.send(A, 900)
        worker.send(A, 1300)
        worker.post(A, 700)
        worker.send(B, 300)
        if number % 2:
            worker.post(A, 500, 0, 800)
        worker.collect()
        handles = list(worker.held)
        settled = [handle for index, handle in enumerate(handles) if index % 5 or len(handles) > STRAGGLERS_MAX + 6]
        if handles and number % 4 == 2:
            worker.transact(settled.pop(), 600)
        if worker.held and number % 6 == 3 and settled:
            worker.nack(settled.pop())
        worker.ack([handle for handle in settled if handle in worker.held])
        if number == rounds // 2:
            worker.churn()


def drain(worker: Worker) -> None:
    """Settle everything, with all that still comes."""
    while True:
        worker.collect()
        if not worker.held:
            return
        assert worker.ack(list(worker.held)), worker.errors
