"""A STOMP client without a socket: it talks to a Session on an engine with a simulated disk and reads its frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller
from curbstone.access.identity import Identity
from curbstone.core import headers as blocks
from curbstone.core.errors import CurbstoneError
from curbstone.core.names import parse_queue_name
from curbstone.stomp.limits import Limits
from curbstone.stomp.session import Session
from tests.kit.lab import Lab

SUB = "SUBSCRIBE|id:0|destination:/queue/a|ack:client-individual"
CLIENT_SUB = "SUBSCRIBE|id:0|destination:/queue/a|ack:client"

Refuse = Callable[[str, CurbstoneError | None], None]
"""The fixture `refuse`."""


def send(body: str = "x", *headers: str, queue: str = "/queue/a") -> str:
    """Return a SEND as `Client.send` takes it."""
    return "|".join(["SEND", f"destination:{queue}", *headers]) + f"||{body}"


@dataclass
class Received:
    """One frame of the server, headers unescaped as 1.2 does (CONNECTED as it came)."""

    command: str
    headers: dict[str, str]
    body: bytes
    raw: bytes


def read_frames(data: bytes) -> list[Received]:
    """Return the frames of a server's bytes; written without the codec under test."""
    found: list[Received] = []
    while data := data.lstrip(b"\n"):
        head, blank, rest = data.partition(b"\n\n")
        assert blank, f"no blank line in {data!r}"
        command, *lines = head.decode().split("\n")
        pairs = [line.partition(":") for line in lines]
        headers: dict[str, str] = {}
        for name, colon, value in pairs:
            assert colon, f"no colon in {head!r}"
            if command != "CONNECTED":
                name, value = blocks.unescape(name), blocks.unescape(value)
            headers.setdefault(name, value)
        length = int(headers["content-length"]) if "content-length" in headers else rest.index(b"\0")
        assert rest[length : length + 2] == b"\0\n", f"a frame ends with NUL and LF, this does not: {rest!r}"
        found.append(Received(command, headers, rest[:length], data[: len(head) + 2 + length + 1]))
        data = rest[length + 2 :]
    return found


def _no_quota(_project: str) -> None:
    """Nothing is counted."""


class Client:
    """Drives one session. Frames are written `LINE|LINE||body`, with `|` for LF; the NUL is added."""

    def __init__(
        self,
        lab: Lab | None = None,
        *,
        version: str | None = "1.2",
        limits: Limits | None = None,
        single_queue: str | None = None,
        name: str = "s1",
        connect: str = "",
        identity: Identity | None = None,
    ) -> None:
        """`identity`: who has logged in, if anybody."""
        self.lab = lab or Lab()
        self.changes = 0
        self.now_ms = 1_000_000
        authenticator = OpenAuthenticator(self.lab.broker, self.lab.host)
        everyone = authenticator.everyone
        access = (
            everyone
            if identity is None
            else AuthorizedBroker(authenticator.registries, self.lab.broker, identity, _no_quota)
        )
        self.session = Session(
            authenticator,
            access,
            limits or Limits(),
            self._changed,
            caller=Caller("127.0.0.1", 1, "stomp"),
            name=name,
            now_ms=self.now_ms,
            single_queue=parse_queue_name(single_queue) if single_queue else None,
        )
        self.connected: Received
        if version is not None:
            accept = "" if version == "1.0" else f"|accept-version:{version}"
            (self.connected,) = self.send(f"CONNECT{accept}|host:x{connect}")

    def _changed(self, _more_bytes: int) -> None:
        self.changes += 1

    def feed(self, data: bytes) -> None:
        """Hand bytes over without a turn of the engine."""
        self.session.receive(data, self.now_ms, self.lab.host.wall_ms())

    def send(self, *frames: str) -> list[Received]:
        """Send frames in one read, let the engine work, and return what returns."""
        self.feed(b"".join([self.frame(text) for text in frames]))
        self.lab.settle()
        return self.read()

    def read(self) -> list[Received]:
        return read_frames(b"".join(self.session.take_output()))

    def turn(self) -> list[Received]:
        """Let the engine work and return the frames that came."""
        self.lab.settle()
        return self.read()

    @staticmethod
    def frame(text: str) -> bytes:
        head, blank, body = text.partition("||")
        return f"{head.replace('|', chr(10))}\n\n{body if blank else ''}\0".encode()

    def error(self, *frames: str) -> Received:
        """Send frames and return the ERROR they must end with; the session must be closing then."""
        received = self.send(*frames)
        assert received, "nothing returned"
        assert received[-1].command == "ERROR", f"expected an ERROR, got {received}"
        assert self.session.closing
        error = received[-1]
        assert error.headers["message"]
        assert error.headers["content-type"] == "text/plain"
        assert int(error.headers["content-length"]) == len(error.body)
        return error

    def receipts(self, *frames: str) -> list[str]:
        """Send frames and return the receipt ids that return."""
        return [frame.headers["receipt-id"] for frame in self.send(*frames) if frame.command == "RECEIPT"]
