"""A program, not a test: consumers whose packets vanish. Run in a network namespace of its own.

It serves STOMP, MQKS and WebSockets, has a consumer on each take a message, and switches the network off: no FIN, no
RST, nothing. Then it waits until each message is free again, and prints what it had to wait for.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.host import AsyncioHost
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions, SyncMode
from curbstone.gateway.app import create_app
from curbstone.gateway.server import GatewayServer
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket import protocol
from curbstone.mqks.server import MqksServer
from curbstone.net.limits import KEEPALIVE
from curbstone.stomp.server import StompServer

LIMIT_S = 60
ANY = ("127.0.0.1", 0)
QUEUES = ("stomp", "mqks", "websocket")

CONNECT = b"CONNECT\naccept-version:1.2\nheart-beat:4500,4500\n\n\0"
SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/queue/stomp\nack:client-individual\n\n\0"
CONSUME = b"c consume mqks --manual-ack\n"
UPGRADE = b"""GET /v2/default/queues/websocket/messages?ack HTTP/1.1\r
Host: localhost\r
Connection: Upgrade\r
Upgrade: websocket\r
Sec-WebSocket-Version: 13\r
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r
Sec-WebSocket-Protocol: consume\r
\r
"""


def link(state: str) -> None:
    """Switch the network on or off."""
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


async def consumer(address: tuple[str, int], hello: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(hello)
    await reader.readuntil(b"the body")
    return reader, writer


async def beat(writer: asyncio.StreamWriter) -> None:
    """What keeps a STOMP consumer alive as long as its packets arrive."""
    while True:
        writer.write(b"\n")
        await asyncio.sleep(0.1)


async def main(data: Path) -> None:
    host = AsyncioHost(asyncio.get_running_loop(), threads=2)
    broker = Broker.open(host, OsDisk(data), defaults=QueueOptions(), sync=SyncMode.parse("never"))
    queues = {name: broker.ensure(QueueName("default", name)) for name in QUEUES}
    for queue in queues.values():
        queue.publish([Message(b"the body")], lambda *_: None)
    authenticator = OpenAuthenticator(broker, host)
    stomp, mqks = StompServer(authenticator, host), MqksServer(authenticator, host)
    gateway = GatewayServer(create_app(authenticator, host, GatewaySettings()))
    peers = [await consumer(await stomp.start(ANY), CONNECT + SUBSCRIBE)]
    beating = asyncio.ensure_future(beat(peers[0][1]))
    peers += [await consumer(await mqks.start(ANY), CONSUME), await consumer(await gateway.start(ANY), UPGRADE)]
    assert all(queue.counts().wip == 1 for queue in queues.values())
    link("down")
    async with asyncio.timeout(LIMIT_S):
        while held := [name for name, queue in queues.items() if queue.counts().wip]:
            await asyncio.sleep(0.05)
            print("held:", *held, flush=True)
    assert all(queue.counts().rdy == 1 for queue in queues.values())
    print("all free", flush=True)
    beating.cancel()


if __name__ == "__main__":
    link("up")
    KEEPALIVE.update(TCP_KEEPIDLE=1, TCP_KEEPINTVL=1, TCP_KEEPCNT=2)
    vars(protocol).update(PING_AFTER_S=1, DEAD_AFTER_S=10)
    asyncio.run(main(Path(sys.argv[1])))
