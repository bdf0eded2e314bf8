"""The way in: TLS and the PROXY protocol before what is spoken on a connection, on both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from curbstone.net import acceptor as rules
from curbstone.net.acceptor import Acceptor
from curbstone.net.address import Address
from curbstone.net.certificates import CertificateFiles, Certificates, load
from curbstone.net.connection_limits import Bounds
from curbstone.net.peer import Networks, Peer
from curbstone.net.proxy_protocol import SIGNATURE
from tests.kit.authority import Authority
from tests.kit.engine import wait_until
from tests.stomp.client import CONNECT
from tests.stomp.client import Peer as Client
from tests.stomp.serving import World, serving

SEND = b"SEND\ndestination:/queue/a\nreceipt:r\n\n%b\0"
MIB = 1024 * 1024
ORDERS = ("URI:spiffe://example/orders", "DNS:orders.example")


class Site:
    """A server with TLS and a trusted proxy on this machine, and what its clients need."""

    def __init__(self, world: World, authority: Authority, certificates: Certificates) -> None:
        self.world = world
        self.authority = authority
        self.certificates = certificates
        self.acceptor: Acceptor = world.server.acceptor

    async def listen(self, *, tls: bool = True, proxy: bool = False) -> tuple[str, int]:
        return await self.world.server.start(Address("127.0.0.1", 0, tls, proxy))

    async def client(
        self, address: tuple[str, int], context: ssl.SSLContext | None = None, hello: bytes = b""
    ) -> Client:
        """Return a client that speaks TLS; `hello` goes before that."""
        reader, writer = await asyncio.open_connection(*address)
        writer.write(hello)
        await writer.start_tls(context or self.authority.client(), server_hostname="localhost")
        client = Client(reader, writer)
        self.world.peers.append(client)
        return client

    async def plain(self, address: tuple[str, int]) -> Client:
        """Return a client that speaks no TLS."""
        client = await Client.open(address)
        self.world.peers.append(client)
        return client

    async def peers(self) -> list[Peer]:
        """Return who is connected, as the server knows them."""
        return [client.peer for client in self.world.server.clients]

    async def empty(self) -> None:
        """Wait until nobody is counted any more."""
        await wait_until(lambda: not self.acceptor.admission.slots)


@asynccontextmanager
async def guarded(folder: Path, bounds: Bounds | None = None) -> AsyncIterator[Site]:
    authority = Authority(folder)
    certificates = Certificates(CertificateFiles(*authority.signed("server"), client_authorities=authority.file))
    async with serving(folder / "data") as world:
        acceptor: Acceptor = world.server.acceptor
        acceptor.certificates = certificates
        acceptor.trusted_proxies = Networks(["127.0.0.1"])
        acceptor.admission.bounds = bounds or Bounds()
        yield Site(world, authority, certificates)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Run a test with a server of its own, on either event loop."""

    def run(test: Callable[[Site], Awaitable[None]], bounds: Bounds | None = None) -> None:
        async def main() -> None:
            async with guarded(tmp_path, bounds) as site:
                await test(site)

        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run


def test_tls_carries_small_and_large_data(run: Callable[..., None]) -> None:
    async def test(site: Site) -> None:
        client = await site.client(await site.listen())
        assert (await client.connect()).command == "CONNECTED"
        body = bytes(range(1, 256)) * 4000
        await client.send(b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:auto\n\n\0")
        for _ in range(4):
            await client.send(b"SEND\ndestination:/queue/a\ncontent-length:%d\n\n%b\0" % (len(body), body))
        for _ in range(4):
            assert (await client.frame()).body == body
        (peer,) = await site.peers()
        assert (peer.host, peer.tls, peer.certificate) == ("127.0.0.1", True, None)

    run(test)


def test_client_certificate_identifies_the_client_and_unknown_ones_are_refused(
    run: Callable[..., None], tmp_path: Path
) -> None:
    async def test(site: Site) -> None:
        address = await site.listen()
        orders = site.authority.client(site.authority.signed("orders", ORDERS))
        await (await site.client(address, orders)).connect()
        (peer,) = await site.peers()
        assert peer.certificate is not None
        assert peer.certificate.names == ORDERS
        assert peer.certificate.subject == "CN=orders,O=Example"
        stranger = site.authority.client(Authority(tmp_path, "others").signed("stranger", ORDERS))
        with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
            await (await site.client(address, stranger)).connect()
        assert site.acceptor.admission.refused == {"tls": 1}
        assert len(await site.peers()) == 1

    run(test)


def test_certificate_reload_under_load_loses_no_connection(run: Callable[..., None]) -> None:
    async def test(site: Site) -> None:
        address = await site.listen()
        stays = [await site.client(address) for _ in range(4)]
        for client in stays:
            await client.connect()
        seen: set[bytes] = set()
        is_over = False

        async def connect_repeatedly() -> None:
            while not is_over:
                client = await site.client(address)
                seen.add(client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
                await client.connect()
                await client.send(SEND % b"x")
                assert (await client.frame()).command == "RECEIPT"
                await client.close()

        async def stay(client: Client) -> None:
            while not is_over:
                await client.send(SEND % b"y")
                assert (await client.frame()).command == "RECEIPT"

        load_of_clients = asyncio.gather(*(stay(client) for client in stays), *(connect_repeatedly() for _ in range(4)))
        for number in range(5):
            files = CertificateFiles(*site.authority.signed(f"server{number}"))
            site.certificates.take(load(files))
            wanted = number + 1
            await wait_until(lambda: len(seen) >= wanted or load_of_clients.done())  # noqa: B023  # it is awaited here
        is_over = True
        await load_of_clients
        assert site.acceptor.admission.refused == {}

    run(test)


def test_silent_or_non_tls_client_is_disconnected_and_counted_until_then(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "GREETING_S_MAX", 1.0)

    async def test(site: Site) -> None:
        for proxy in (False, True):
            address = await site.listen(proxy=proxy)
            silent = await site.plain(address)
            await wait_until(lambda: len(site.acceptor.admission.slots) == 1)
            assert await silent.read_all() == []
            await silent.close()
            await site.empty()
        wrong = await site.plain(await site.listen())
        await wrong.send(CONNECT)
        await asyncio.wait_for(wrong.reader.read(), 60)  # an alert, which is no frame
        await wrong.close()
        await site.empty()
        assert site.acceptor.admission.refused == {"late": 2, "tls": 1}
        assert not site.world.server.clients

    run(test)


def test_final_message_arrives_although_the_client_keeps_sending(run: Callable[..., None]) -> None:
    """With an unread byte the kernel resets the connection, and takes back what the client has not read."""

    async def test(site: Site) -> None:
        client = await site.client(await site.listen())
        await client.connect()
        client.writer.write(b"NONSENSE\n\n\0" + b"SEND\n" * MIB)
        error = (await client.frame()).headers
        assert error["message"]
        assert await asyncio.wait_for(client.reader.read(), 60) == b""
        await client.close()
        await site.empty()

    run(test)


def test_a_client_that_reads_nothing_is_not_read_and_then_continues(run: Callable[..., None]) -> None:
    async def test(site: Site) -> None:
        address = await site.listen()
        reader = await site.client(address)
        await reader.connect()
        reader.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await reader.send(b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:auto\n\n\0")
        sender = await site.client(address)
        await sender.connect()
        body = b"x" * 900_000
        for _ in range(9):
            await sender.send(SEND % body)
            assert (await sender.frame()).command == "RECEIPT"
        queue = site.world.broker.queues()[0]
        assert queue.counts().rdy + queue.counts().wip > 0
        reader.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(9):
            assert (await reader.frame()).body == body

    run(test)


def test_only_current_tls_versions_and_ciphers_are_accepted(run: Callable[..., None]) -> None:
    async def test(site: Site) -> None:
        address = await site.listen()
        old = site.authority.client()
        old.set_ciphers("AES128-SHA")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, OSError)):
            await site.client(address, old)
        twelve = site.authority.client()
        twelve.maximum_version = ssl.TLSVersion.TLSv1_2
        client = await site.client(address, twelve)
        await client.connect()
        name, version, _ = client.writer.get_extra_info("cipher")
        assert version == "TLSv1.2"
        assert name.startswith("ECDHE-")

    run(test)


V2 = SIGNATURE + bytes.fromhex("2111 0014 c0000207 0a000001 1267 f0ad 20 0005 0100000000")
V1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 61613\r\n"


@pytest.mark.parametrize(("header", "is_tls"), [(V1, False), (V2, True)], ids=["v1", "v2"])
def test_trusted_proxy_names_its_client(run: Callable[..., None], header: bytes, is_tls: bool) -> None:
    async def test(site: Site) -> None:
        address = await site.listen(tls=False, proxy=True)
        client = await site.plain(address)
        data = header + CONNECT
        for at in range(len(data)):
            client.writer.write(data[at : at + 1])
            await asyncio.sleep(0)
        assert (await client.frame()).command == "CONNECTED"
        assert await site.peers() == [Peer("192.0.2.7", 4711, is_tls)]
        await client.close()
        await site.empty()
        orders = site.authority.client(site.authority.signed("orders", ORDERS))
        encrypted = await site.client(await site.listen(proxy=True), orders, header)
        await encrypted.connect()
        (peer,) = await site.peers()
        assert (peer.host, peer.port, peer.tls) == ("192.0.2.7", 4711, True)
        assert peer.certificate is not None

    run(test)


def test_proxy_header_from_others_is_refused(run: Callable[..., None]) -> None:
    async def test(site: Site) -> None:
        plain, proxy = await site.listen(tls=False), await site.listen(tls=False, proxy=True)
        client = await site.plain(plain)
        await client.send(V1 + CONNECT)
        (error,) = await client.read_all()
        assert error.command == "ERROR"
        client = await site.plain(proxy)
        await client.send(CONNECT)
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await client.frame()
        site.acceptor.trusted_proxies = Networks(["10.0.0.0/8"])
        client = await site.plain(proxy)
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await client.send(V1 + CONNECT)
            await client.frame()
        await site.empty()

    run(test)


def test_connection_limits_count_clients_behind_a_proxy(run: Callable[..., None]) -> None:
    async def test(site: Site) -> None:
        address = await site.listen(tls=False, proxy=True)

        async def open_slot(host: bytes) -> str:
            client = await site.plain(address)
            await client.send(b"PROXY TCP4 %b 10.0.0.1 4711 61613\r\n" % host + CONNECT)
            return (await client.reader.readuntil(b"\0")).partition(b"\n")[0].decode()

        assert [await open_slot(b"192.0.2.7") for _ in range(3)] == ["CONNECTED", "CONNECTED", "ERROR"]
        assert await open_slot(b"192.0.2.8") == "CONNECTED"

    run(test, Bounds(address=2))


def test_thousand_concurrent_handshakes_are_taken_one_per_turn(run: Callable[..., None]) -> None:
    """Each costs as much as hundreds of messages: between two of them it is everybody's turn."""

    async def test(site: Site) -> None:
        address = await site.listen()
        taken_in_turn: list[int] = []
        turn = 0
        clients = []
        hello = _client_hello(site.authority.client())
        steps = site.acceptor.handshakes._next

        def step() -> None:
            taken_in_turn.append(turn)
            steps()

        site.acceptor.handshakes._next = step  # type: ignore[method-assign]
        for _ in range(50):
            one = socket.create_connection(address)
            one.setblocking(False)
            one.send(hello)
            clients.append(one)
        while len(taken_in_turn) < 50:
            await asyncio.sleep(0)
            turn += 1
        assert len(set(taken_in_turn)) == 50
        for one in clients:
            one.close()
        await site.empty()

    run(test)


def _client_hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
