"""A client that was there all the time: it publishes and counts what was confirmed, whatever happens to the server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.crash.history import Answered, Delivered, History, Sent, Settled, Settling
from tests.crash.killable import HANG_S
from tests.crash.producers import VALUE
from tests.crash.stomp_peer import StompPeer, encode
from tests.kit.server import ServerProcess

QUEUE = "default/witness"

Login = tuple[str, str]
"""A user, and its token."""


def bearer(login: Login | None) -> dict[str, str]:
    """Return the header field of a login."""
    return {"Authorization": f"Bearer {login[1]}"} if login is not None else {}


def call(
    server: ServerProcess, path: str, method: str = "GET", body: bytes | None = None, login: Login | None = None
) -> tuple[int, Any]:
    """Make an HTTP call; return the status and the JSON it says, None for no JSON."""
    request = urllib.request.Request(server.url + path, body, bearer(login), method=method)
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as reply:
            said = reply.read()
            return reply.status, json.loads(said) if said[:1] == b"{" else None
    except urllib.error.HTTPError as error:
        with error:
            said = error.read()
            return error.code, json.loads(said) if said[:1] == b"{" else None


def memory_bytes(server: ServerProcess) -> int:
    """Return the resident memory of the server."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def cpu_s(server: ServerProcess) -> float:
    """Return the processor time the server has used."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class Witness:
    """Publishes over STOMP; in the end everything is drained and judged."""

    def __init__(self, server: ServerProcess, login: Login | None = None) -> None:
        self.server = server
        self.login = login
        self.history = History()
        self._number = 0
        self._lives = 0

    def new(self, size: int = 100) -> Sent:
        """Return a message that is about to be sent."""
        self._number += 1
        value = f"w{self._number}"
        sent = Sent(value, QUEUE, value.encode().ljust(size, b"."), f"witness {self._lives}", "")
        self.history.append(sent)
        return sent

    def publish(self, peer: StompPeer, count: int = 10, size: int = 100) -> int:
        """Publish on a connection, one by one, until one is refused; return how many were confirmed."""
        for done in range(count):
            sent = self.new(size)
            answer = peer.call("SEND", {"destination": f"/queue/{QUEUE}", VALUE: sent.value}, sent.body)
            if answer.command == "ERROR":
                return done
            self.history.append(Answered(sent.value, True))
        return count

    def connect(self) -> StompPeer:
        """Return a connection; what is published on it has an order."""
        self._lives += 1
        return StompPeer(self.server.stomp, HANG_S, login=self.login)

    def drain(self, life: int = 1) -> None:
        """Consume and settle everything, and judge."""
        project, _, name = QUEUE.partition("/")
        with self.connect() as peer:
            peer.send(encode("SUBSCRIBE", {"id": "1", "destination": f"/queue/{QUEUE}", "ack": "client-individual"}))
            settled = 0
            while True:
                _, info = call(self.server, f"/v2/{project}/queues/{name}", login=self.login)
                if not info["rdy"] + info["wip"] + info["delayed"]:
                    break
                for frame in peer.read():
                    assert frame.command in ("MESSAGE", "RECEIPT"), frame
                    if frame.command == "RECEIPT":
                        self.history.append(Settled(frame.headers["receipt-id"], life))
                        settled += 1
                        continue
                    headers = frame.headers
                    message_id = headers["message-id"]
                    tries = int(headers["x-tries"])
                    self.history.append(
                        Delivered(headers[VALUE], QUEUE, message_id, frame.body, f"drain {life}", life, tries)
                    )
                    self.history.append(Settling(message_id))
                    peer.send(encode("ACK", {"id": headers["ack"], "receipt": message_id}))
        verdict = self.history.judge()
        print(verdict.figures())
        verdict.check()
