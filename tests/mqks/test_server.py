"""The server against clients that are long-winded, mistaken, deaf or gone, and the way it ends."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from curbstone.access.user_authenticator import UserAuthenticator
from curbstone.core.options import QueueOptions
from curbstone.mqks.limits import Limits
from curbstone.mqks.server import MqksServer
from curbstone.mqks.session import HTTP_ANSWER
from tests.kit.engine import WAIT_S, wait_until
from tests.kit.server import ServerProcess
from tests.mqks.world import ERROR_ID, MIB, Peer, World

pytestmark = pytest.mark.anyio

BIG = QueueOptions(cap=64 * MIB)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Everything up to the server's end of the connection."""
    return await asyncio.wait_for(reader.read(), WAIT_S)


async def test_a_tab_ends_the_connection_behind_an_error_line(world: World) -> None:
    peer = await world.peer()
    peer.send("x publish e a\tb", "y ping never")
    request_id, word, error_id = (await read_all(peer.reader)).decode().split()
    assert (request_id, word) == ("x", "error")
    assert ERROR_ID.fullmatch(error_id)
    odd = await world.peer()
    odd.send("\tx ping y")
    assert (await read_all(odd.reader)).startswith(b"None error ")


@pytest.mark.parametrize("limits", [Limits(body_bytes_max=1000)])
async def test_too_much_data_is_an_error_and_the_connection_stays(world: World) -> None:
    peer = await world.peer("c consume --confirm q e")
    assert await peer.error(f"m publish e {'x' * 1001}") == "m"
    assert await peer.error(f"m publish e {'x' * 100_000}") == "m"
    assert await peer.error(f"{'i' * 1001} ping x") == "None"
    assert await peer.request(f"m publish e {'x' * 1000}") == f"c ok m event=e {'x' * 1000}"


@pytest.mark.parametrize("limits", [Limits(body_bytes_max=1000, junk_bytes_max=100_000)])
async def test_endless_line_is_discarded_and_disconnected(world: World) -> None:
    peer = await world.peer()
    peer.writer.write(b"\x00\xff" * 200_000)
    assert (await read_all(peer.reader)).startswith(b"None error ")


@pytest.mark.parametrize("limits", [Limits(line_ms=1000)])
async def test_line_that_trickles_in_times_out_but_silence_between_lines_does_not(world: World) -> None:
    silent = await world.peer("c consume --confirm q e")
    slow = await world.peer()
    slow.send("p ping whole")
    slow.writer.write(b"m publish e cut o")
    assert await slow.line() == "p ok whole"
    world.host.shift_ms += 60_000
    slow.writer.write(b"f")
    assert (await read_all(slow.reader)).startswith(b"None error ")
    assert await silent.request("m publish e whole") == "c ok m event=e whole"


async def test_long_line_received_in_time_does_not_time_out(world: World) -> None:
    keeper = await world.peer("c consume --confirm q e")
    peer = await world.peer()
    peer.writer.write(b"m publish e " + b"x" * 100_000)
    sessions = [client.session for client in world.server.clients]
    await wait_until(lambda: any(session._reader.unfinished_bytes > 100_000 for session in sessions))
    (session,) = [session for session in sessions if session.tick_ms]
    session.tick(world.host.now_ms() + 29_000)
    assert session.tick_ms
    peer.send("")
    assert len(await keeper.line()) > 100_000
    session.tick(world.host.now_ms() + 1_000_000)
    assert await peer.request("p ping between") == "p ok between"
    peer.writer.write(b"m publish e " + b"x" * 100_000)
    await wait_until(lambda: session._reader.unfinished_bytes > 100_000)
    peer.writer.transport.abort()
    await wait_until(lambda: session.lost)
    assert not session._reader.unfinished_bytes


@pytest.mark.parametrize("sent", [b"", b"p pi"])
@pytest.mark.parametrize("limits", [Limits(first_line_ms=1000, line_ms=1200)])
async def test_silent_client_is_disconnected(world: World, sent: bytes) -> None:
    """Two hundred silent connections were there for ever, and took the descriptors of all others."""
    peer = await Peer.open(world.address)
    peer.writer.write(sent)
    await wait_until(lambda: len(world.server.registry.sessions) == 1)
    assert (await read_all(peer.reader)).startswith(b"None error ")
    await peer.close()
    talker = await world.peer("r rebind --confirm q e")
    (session,) = [client.session for client in world.server.clients]
    assert session.tick_ms == 0, "who has spoken may be silent"
    await talker.quiet()


async def test_client_without_login_is_disconnected(world: World, tmp_path: Path) -> None:
    """One line without a login stopped the clock, and a stranger stayed for good."""
    users = tmp_path / "users.toml"
    users.write_text("[users.ann]\ngrants = []\n", encoding="utf-8")
    authenticator = UserAuthenticator(world.broker, world.host, users, tmp_path / "data", world.broker.disk)
    authenticator.open()
    server = MqksServer(authenticator, world.host, limits=Limits(first_line_ms=1000, line_ms=1200))
    peer = await Peer.open(await server.start(("127.0.0.1", 0)))
    peer.send("p ping ?")
    refused, ended = (await read_all(peer.reader)).splitlines()
    assert refused.startswith(b"p error ") and ended.startswith(b"None error ")
    await peer.close()
    await server.stop()


@pytest.mark.parametrize("limits", [Limits(errors_max=5)])
async def test_client_that_only_sends_errors_is_disconnected(world: World) -> None:
    peer = await world.peer()
    peer.writer.write(b"\x01\x02\n" * 4 + b"p ping resets the count\n" + b"\n" * 20)
    lines = (await read_all(peer.reader)).splitlines()
    assert len(lines) == 4 + 1 + 5


@pytest.mark.parametrize(
    ("greeting", "answer"),
    [
        (b"POST / HTTP/1.1\r\nhost: x\r\n\r\nx delete_queue q\n", HTTP_ANSWER),
        (b"\x16\x03\x01\x02\x00\x01\x00", b""),
    ],
)
async def test_other_protocols_are_distinguished(world: World, greeting: bytes, answer: bytes) -> None:
    """A page in a browser could otherwise post requests to this port."""
    keeper = await world.peer("c consume --confirm q e")
    peer = await world.peer()
    peer.writer.write(greeting)
    assert await read_all(peer.reader) == answer
    await keeper.quiet()
    assert world.has("q")


async def test_a_client_that_closes_its_half_still_gets_its_confirms(world: World) -> None:
    keeper = await world.peer("r rebind --confirm q e")
    peer = await world.peer()
    peer.writer.write(b"m publish --confirm e d\nm2 publish e whole\nm3 publish e cut o")
    peer.writer.write_eof()
    assert await read_all(peer.reader) == b"m ok \n"
    keeper.send("c consume q")
    assert await keeper.lines(2) == ["c ok m event=e d", "c ok m2 event=e whole"]
    await keeper.quiet()


@pytest.mark.parametrize("options", [QueueOptions(cap=64 * 1024)])
async def test_publishes_that_a_full_queue_refuses_are_one_line_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    peer = await world.peer("r rebind --confirm q e")
    peer.send(*[f"m{n} publish e {'x' * 10_000}" for n in range(200)])
    answers = [answer.split(" ") for answer in (await peer.request("p ping x"), *await peer.lines(100))]
    ids = {words[2] for words in answers if words[1] == "error"}
    (line,) = [record.getMessage() for record in caplog.records]
    assert [line.split(" ")[1].rstrip(":")] == list(ids)
    assert "has too little room left under its cap of 65536 bytes" in line


@pytest.mark.parametrize("options", [BIG])
async def test_consumer_that_does_not_read_blocks_no_one_and_keeps_messages_on_disk(world: World) -> None:
    deaf = await world.peer("c consume --confirm q e --manual-ack")
    raw = deaf.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer = await world.peer()
    for n in range(40):
        await writer.confirm(f"m{n} publish --confirm e {'x' * 500_000}")
    (queue,) = world.broker.queues()
    await wait_until(lambda: any(client.is_full for client in world.server.clients))
    counts = queue.counts()
    assert counts.rdy > 0, "not all of it lies in the server's memory"
    await world.leave(deaf)
    assert queue.counts().rdy == 40


@pytest.mark.parametrize("limits", [Limits(output_bytes_max=MIB)])
async def test_a_client_that_never_reads_its_answers_is_not_read(world: World) -> None:
    peer = await world.peer()
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    (client,) = world.server.clients
    line = b"p ping " + b"x" * 100_000 + b"\n"
    async with asyncio.timeout(WAIT_S):
        while client.is_reading:
            peer.writer.write(line)
            await asyncio.sleep(0)
    assert client._transport.get_write_buffer_size() < 3 * MIB


@pytest.mark.parametrize("limits", [Limits(unconfirmed_max=10)])
async def test_reading_stops_while_too_much_is_unconfirmed(world: World) -> None:
    peer = await world.peer("c consume --confirm q e")
    peer.send(*[f"m{n} publish e {n}" for n in range(2000)])
    assert await peer.lines(2000) == [f"c ok m{n} event=e {n}" for n in range(2000)]


@pytest.mark.parametrize("limits", [Limits(consumers_max=2)])
async def test_consumers_of_a_connection_are_limited(world: World) -> None:
    peer = await world.peer("c1 consume --confirm q e", "c2 consume --confirm q e")
    assert await peer.error("c3 consume q e") == "c3"
    await peer.confirm("c2 consume --confirm q e", "x delete_consumer --confirm c1", "c3 consume --confirm q e")


async def test_stop_sends_confirms_and_closes_connections(world: World) -> None:
    peer = await world.peer("c consume --confirm q e --delete-queue-when-unused --manual-ack")
    peer.send("m publish --confirm zz d")
    assert await peer.line() == "m ok "
    stopping = asyncio.ensure_future(world.server.stop())
    assert await read_all(peer.reader) == b""
    await peer.close()
    await stopping
    assert world.has("q"), "its consumers return when the server does"


async def test_keepalive_finds_peers_that_vanished(world: World) -> None:
    await world.peer()
    (client,) = world.server.clients
    raw = client._transport.get_extra_info("socket")
    assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_hello_world_with_nc(server: ServerProcess) -> None:
    assert shutil.which("nc"), "there is no nc; run `make interop-deps`, and see what it says if this stays"
    command = ["nc", server.mqks[0], str(server.mqks[1])]
    consumers = {}
    for name, queue, events in (
        ("Alice", "greetings", "hi hello"),
        ("Bob", "greetings", "hi hello"),
        ("Charlie", "greetings-and-byes", "hi hello bye good-bye"),
    ):
        nc = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert nc.stdin
        assert nc.stdout
        nc.stdin.write(f"{name} consume --confirm {queue} {events}\n")
        assert nc.stdout.readline() == f"{name} ok \n"
        consumers[name] = nc
    dave = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert dave.stdin
    dave.stdin.write("Dave publish hello one\nDave publish hello two\n")
    got = {}
    for name, nc in consumers.items():
        assert nc.stdout
        got[name] = nc.stdout.readline()
    assert got["Charlie"] == "Charlie ok Dave event=hello one\n"
    assert {got["Alice"].split()[-1], got["Bob"].split()[-1]} == {"one", "two"}
    for nc in (*consumers.values(), dave):
        nc.kill()
        nc.communicate()
