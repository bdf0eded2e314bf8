"""A process that is stopped for a while, and clocks that jump."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.stomp_peer import encode
from tests.faults.witness import Witness, call
from tests.kit.clock import Clock
from tests.kit.server import ServerProcess
from tests.kit.waiting import wait_until

BEAT_MS = 4500
"""Who is silent for 10 s is taken for dead: the test may stand still for so long before the stop and behind it."""
STOPPED_S = 12


def test_process_stopped_and_continued_loses_nothing(tmp_path: Path) -> None:
    """What the clients sent meanwhile, heart-beats too, is read before anyone is found silent."""
    with ServerProcess(tmp_path / "data", "--log-level=warning") as server:
        witness = Witness(server)
        with ExitStack() as stack:
            peers = [stack.enter_context(socket.create_connection(server.stomp)) for _ in range(20)]
            for peer in peers:
                hello = {"accept-version": "1.2", "host": "x", "heart-beat": f"{BEAT_MS},{BEAT_MS}"}
                peer.sendall(encode("CONNECT", hello))
                assert peer.recv(4096).startswith(b"CONNECTED")
            confirmed = stack.enter_context(witness.connect())
            assert witness.publish(confirmed) == 10
            os.kill(server.process.pid, signal.SIGSTOP)
            end_s = time.monotonic() + STOPPED_S

            def beat_for_a_while() -> bool:
                for peer in peers:
                    peer.sendall(b"\n")
                return time.monotonic() > end_s

            wait_until(beat_for_a_while, "never")
            os.kill(server.process.pid, signal.SIGCONT)
            for number, peer in enumerate(peers):  # at once: nobody beats while the answers are waited for
                peer.sendall(encode("SEND", {"destination": "/queue/a", "receipt": str(number)}, b"x"))
            for peer in peers:
                peer.settimeout(60)
                said = b""
                while b"RECEIPT" not in said:
                    part = peer.recv(4096)
                    assert part, said
                    said += part
                assert b"ERROR" not in said
            assert witness.publish(confirmed) == 10
        witness.drain()


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.mark.parametrize("jump", ["-3600", "+315360000"], ids=["an hour back", "ten years on"])
def test_clock_jump_loses_nothing_and_expires_nothing_early(tmp_path: Path, clock: Clock, jump: str) -> None:
    with ServerProcess(tmp_path / "data", "--log-level=warning", env=clock.env) as server:
        witness = Witness(server)
        call(server, "/v2/default/queues/timed", "PUT")
        lasting = "/v2/default/queues/timed/messages"
        with witness.connect() as peer:
            assert witness.publish(peer) == 10
            assert call(server, f"{lasting}?ttl=3000", "POST", b"lasting")[0] == 201
            assert call(server, f"{lasting}?delay=1", "POST", b"delayed")[0] == 201
            leased = call(server, f"{lasting}/lease", "POST", b'{"count":1,"seconds":2}')[1]["messages"]
            assert len(leased) == 1
            clock.set(jump)
            assert witness.publish(peer) == 10
            # By the monotonic clock: the delayed one becomes ready and the lease ends in time, the ttl has not run out.
            wait_until(lambda: call(server, "/v2/default/queues/timed")[1]["rdy"] == 2, "times went wrong")
        server.kill()
        server.restart()
        with witness.connect() as peer:
            assert witness.publish(peer) == 10
        clock.set("+0")
        witness.drain(2)
        server.kill()
        server.restart()
        found = call(server, f"{lasting}/lease", "POST", b'{"count":9,"seconds":60}')[1]["messages"]
        assert "delayed" in [message["message"] for message in found]
        if jump.startswith("-"):  # ten years later it had expired
            assert [message["message"] for message in found] == ["lasting", "delayed"]


def test_messages_due_while_the_server_was_down_are_delivered_after_the_start(tmp_path: Path, clock: Clock) -> None:
    with ServerProcess(tmp_path / "data", env=clock.env) as server:
        call(server, "/v2/default/queues/timed", "PUT")
        for number in range(5):
            assert call(server, "/v2/default/queues/timed/messages?delay=3000", "POST", b"%d" % number)[0] == 201
        assert call(server, "/v2/default/queues/timed")[1]["delayed"] == 5
        server.kill()
        clock.set("+3600")
        server.restart()
        wait_until(lambda: call(server, "/v2/default/queues/timed")[1]["rdy"] == 5, "they stay delayed")
