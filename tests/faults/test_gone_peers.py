"""Consumers that are there no more and have not said so: stopped, or cut off without a word (R28)."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from curbstone.core.options import QueueOptions
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket import protocol
from tests.faults.witness import call
from tests.kit.gateway import QUEUE, Running, running
from tests.kit.server import ServerProcess
from tests.kit.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FREED_S_MAX = 60

STOMP = """
import socket, sys, threading
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
peer.sendall(b"CONNECT\\naccept-version:1.2\\nheart-beat:4500,0\\n\\n\\0")
peer.sendall(b"SUBSCRIBE\\nid:1\\ndestination:/queue/q\\nack:client-individual\\n\\n\\0")
got = b""
while b"the body" not in got:
    got += peer.recv(4096)
    peer.sendall(b"\\n")
print("holds it", flush=True)
while not threading.Event().wait(0.1):
    peer.sendall(b"\\n")
"""

SOCKET = """
import sys
from websockets.sync.client import connect
with connect(sys.argv[1], subprotocols=["consume"], proxy=None) as peer:
    while True:
        if peer.recv() == b"the body":
            print("holds it", flush=True)
"""


def test_heart_beats_detect_a_stopped_stomp_consumer(server: ServerProcess) -> None:
    call(server, "/v2/default/queues/q", "PUT")
    call(server, "/v2/default/queues/q/messages", "POST", b"the body")
    arguments = [sys.executable, "-c", STOMP, *map(str, server.stomp)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as peer:
        try:
            assert peer.stdout
            assert peer.stdout.readline() == b"holds it\n"
            assert call(server, "/v2/default/queues/q")[1]["wip"] == 1
            peer.send_signal(signal.SIGSTOP)
            wait_until(lambda: call(server, "/v2/default/queues/q")[1]["rdy"] == 1, "it is still held", FREED_S_MAX)
            assert call(server, "/v2/default/queues/q")[1]["consumers"] == 0
        finally:
            peer.kill()


@asynccontextmanager
async def consuming(gateway: Running) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that consumes over a WebSocket and has the message in hand."""
    url = f"ws://{gateway.address[0]}:{gateway.address[1]}{QUEUE}/messages?ack"
    peer = await asyncio.create_subprocess_exec(sys.executable, "-c", SOCKET, url, stdout=asyncio.subprocess.PIPE)
    try:
        assert peer.stdout
        assert await peer.stdout.readline() == b"holds it\n"
        yield peer
    finally:
        peer.kill()
        await peer.wait()


@pytest.mark.anyio
async def test_pings_detect_a_stopped_websocket_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PING_AFTER_S", 1)
    monkeypatch.setattr(protocol, "DEAD_AFTER_S", 10)
    async with running(tmp_path / "data", GatewaySettings(), QueueOptions()) as gateway:
        await gateway.publish(b"the body")
        async with consuming(gateway) as peer:
            [wire] = [each for each in gateway.server.clients if isinstance(each, protocol.WebSocketProtocol)]
            async with asyncio.timeout(FREED_S_MAX):
                while not wire._pinged:  # it is alive, and silent
                    await asyncio.sleep(0.01)
                while wire._pinged:  # and answers
                    await asyncio.sleep(0.01)
                assert await gateway.counts() == (0, 1, 0)
                peer.send_signal(signal.SIGSTOP)
                while await gateway.counts() != (1, 0, 0):
                    await asyncio.sleep(0.05)
        assert (await gateway.http.get(QUEUE)).json()["consumers"] == 0


def test_consumers_with_dropped_packets_are_detected(tmp_path: Path) -> None:
    """By heart-beats, by keepalive of TCP, and by pings; in a network that can be switched off."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-n", "ip", "link"], capture_output=True, check=False).returncode:
        pytest.skip("a network namespace of its own needs root, unshare and ip")
    done = subprocess.run(
        [unshare, "-n", sys.executable, "-m", "tests.faults.vanished", str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * FREED_S_MAX,
        check=False,
    )
    assert done.stdout.endswith("all free\n"), done.stdout[-500:] + done.stderr
