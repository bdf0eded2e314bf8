"""Clients for tests over sockets: a raw one, and a use of stomp.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import stomp
from stomp.utils import Frame

from tests.kit import engine
from tests.kit.engine import WAIT_S
from tests.stomp.harness import Received, read_frames

CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


class Peer(engine.Peer):
    """A client that reads frames."""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> Received:
        head = await asyncio.wait_for(self.reader.readuntil(b"\n\n"), WAIT_S)
        length = next((int(line[15:]) for line in head.split(b"\n") if line.startswith(b"content-length:")), None)
        if length is None:
            rest = await self.reader.readuntil(b"\0\n")
        else:
            rest = await self.reader.readexactly(length + 2)
        (frame,) = read_frames(head + rest)
        return frame

    async def read_all(self) -> list[Received]:
        """Everything up to the server's end of the connection."""
        return read_frames(await asyncio.wait_for(self.reader.read(), WAIT_S))

    async def connect(self) -> Received:
        await self.send(CONNECT)
        return await self.frame()


class Listener(stomp.ConnectionListener):  # type: ignore[misc]
    """Collects what stomp.py hears."""

    def __init__(self) -> None:
        self.messages: list[Frame] = []
        self.receipts: list[str] = []
        self.errors: list[Frame] = []
        self.heard = threading.Condition()

    def on_message(self, frame: Frame) -> None:
        with self.heard:
            self.messages.append(frame)
            self.heard.notify_all()

    def on_receipt(self, frame: Frame) -> None:
        with self.heard:
            self.receipts.append(frame.headers["receipt-id"])
            self.heard.notify_all()

    def on_error(self, frame: Frame) -> None:
        with self.heard:
            self.errors.append(frame)
            self.heard.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.heard:
            assert self.heard.wait_for(condition, WAIT_S)
