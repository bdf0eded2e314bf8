"""A node behind TLS: what ends it here stands before the node that the tests share."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from curbstone.rabbit.amqp.address import parse
from curbstone.rabbit.amqp.connection import PikaConnector
from curbstone.rabbit.amqp.port import AmqpError, Arrived, Channel, Connection, Properties
from tests.kit.authority import Authority

pytestmark = pytest.mark.anyio
PATIENCE_S = 60


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops that a gateway may run on."""
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def tls_before(url: str, authority: Authority) -> AsyncIterator[int]:
    """Listen with a certificate of an authority, and pass all on to a node; yields the port."""
    node = parse(url).nodes[0]
    pair = authority.signed("node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    ended: list[asyncio.Task[None]] = []

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
        except OSError:
            pass  # the other side has gone first
        finally:
            target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_node = await asyncio.open_connection(*node)
        ended.append(asyncio.create_task(copy(reader, to_node[1])))
        await copy(to_node[0], writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*ended)
    finally:
        server.close()
        await server.wait_closed()


class Client:
    """A connection through the connector, or why there is none."""

    def __init__(self, port: int, ca: Path) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Connection] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        connector = PikaConnector(parse(f"amqps://127.0.0.1:{port}/", ca=str(ca)), loop)
        connector.connect("test", self.opened.set_result, self.lost.set_result, lambda _reason: None)

    async def channel(self) -> Channel:
        found: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

        def closed(error: AmqpError) -> None:
            if not found.done():
                found.set_exception(error)

        (await self.opened).channel(found.set_result, closed)
        return await found


@pytest.mark.parametrize("size", [0, 100, 1 << 20], ids=["nothing", "little", "several frames"])
async def test_messages_pass_tls_unchanged(node_url: str, tmp_path: Path, size: int) -> None:
    authority = Authority(tmp_path)
    body = bytes(range(256)) * (size // 256 + 1)
    async with asyncio.timeout(PATIENCE_S), tls_before(node_url, authority) as port:
        client = Client(port, authority.file)
        channel = await client.channel()
        name = f"test.tls.{size}.{port}"
        made: asyncio.Future[AmqpError | None] = asyncio.get_running_loop().create_future()
        got: asyncio.Queue[Arrived] = asyncio.Queue()
        channel.declare_queue(name, lambda error, *_: made.set_result(error), exclusive=True, durable=False)
        assert await made is None
        channel.consume(name, "c", got.put_nowait, lambda _error: None)
        sent = Properties({"n": b"\x00\xff"}, "id", "text/plain", timestamp=1)
        for _ in range(3):
            channel.publish("", name, sent, body[:size], mandatory=True)
        for _ in range(3):
            arrived = await got.get()
            assert (arrived.body, arrived.properties) == (body[:size], sent)
            channel.ack(arrived.tag)
        (await client.opened).close()
        await client.lost


async def test_untrusted_node_is_refused(node_url: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    own, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    async with asyncio.timeout(PATIENCE_S), tls_before(node_url, own) as port:
        client = Client(port, other.file)
        assert "certificate verify failed" in (await client.lost).lower()
        assert not client.opened.done()
