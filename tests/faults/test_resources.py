"""What runs out: disk, file descriptors, memory, connections. What was confirmed stays, and it recovers by itself."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.crash.killable import HANG_S
from tests.crash.stomp_peer import StompPeer, encode
from tests.faults.witness import Witness, call, cpu_s, memory_bytes
from tests.kit.server import NotReady, ServerProcess
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="figures are read from /proc")

DISK_BYTES = 2 * 1024 * 1024
NOFILE = 100
CONNECTIONS = 5000
IDLE_CONNECTION_BYTES_MAX = 64 * 1024


def wait_until_accepted(witness: Witness) -> bool:
    """Return whether publishes are taken, as a client sees it that tries again and again."""
    with witness.connect() as peer:
        return witness.publish(peer, 1, 1000) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, where the tests may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(directory: Path) -> Path:
    """Take what a disk has left, to the last page; return the file that has it."""
    filler = directory / "filler"
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def post(server: ServerProcess, body: bytes) -> int:
    """Publish over HTTP; return the status."""
    return call(server, "/v2/default/queues/q/messages", "POST", body)[0]


def test_a_full_disk_refuses_publishes_and_settling_continues(small_disk: Path) -> None:
    """To the end of the backlog, while producers try again; what was refused is not there after a kill."""
    sent = [b"%d" % number for number in range(200)]
    with ServerProcess(small_disk, "--log-level=error") as server:
        assert call(server, "/v2/default/queues/q", "PUT")[0] == 201
        assert [post(server, body.ljust(1000)) for body in sent] == [201] * len(sent)
        filler = fill(small_disk)
        while post(server, b"more" * 250) == 201:
            sent.append(b"more" * 250)
        refused = b"refused".ljust(100_000)
        for _ in range(5):
            assert post(server, refused) == 507
        assert call(server, "/healthz")[0] == 200
        status, said = call(server, "/readyz")
        assert status == 503 and "no space left on the disk" in said["reasons"][0]
        assert call(server, "/readyz?for=consume") == (200, {**said, "status": "ready"})
        server.kill()
        server.restart()
        assert post(server, refused) == 507
        found: list[bytes] = []
        with StompPeer(server.stomp, HANG_S) as peer:
            peer.send(encode("SUBSCRIBE", {"id": "1", "destination": "/queue/q", "ack": "client-individual"}))
            acked = 0
            while acked < len(sent):
                for frame in peer.read():
                    if frame.command == "MESSAGE":
                        found.append(frame.body)
                        peer.send(encode("ACK", {"id": frame.headers["ack"], "receipt": "r"}))
                        continue
                    assert frame.command == "RECEIPT", frame
                    acked += 1
                    if acked % 20 == 0:
                        assert post(server, refused) == 507
        assert [body.strip() for body in found] == sent
        filler.unlink()
        wait_until(lambda: post(server, refused) == 201, "it does not recover")
        wait_until(lambda: call(server, "/readyz")[0] == 200, "it does not say so")
        server.kill()
        server.restart()
        assert call(server, "/healthz")[1]["reasons"] == []
        assert call(server, "/v2/default/queues/q")[1]["rdy"] == 1
        assert "Traceback" not in server.log


def test_directory_in_memory_causes_a_warning(small_disk: Path) -> None:
    with ServerProcess(small_disk / "data") as server:
        assert "confirmed messages may be lost: tmpfs is in memory" in server.log


def test_a_file_size_limit_is_a_full_disk_too(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: a write past it fails with EFBIG, or writes less than asked."""
    with ServerProcess(tmp_path / "data", "--cap=64MiB", "--log-level=error") as server:
        witness = Witness(server)
        with witness.connect() as peer:
            assert witness.publish(peer, 20, 1000) == 20
            (size,) = [path.stat().st_size for path in server.data_dir.glob("queues/*/*.seg")]
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 1000, resource.RLIM_INFINITY))
            assert witness.publish(peer, 500, 1000) < 500
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
        wait_until(lambda: wait_until_accepted(witness), "it does not recover")
        server.kill()
        server.restart()
        witness.drain(2)
        assert "Traceback" not in server.log


class Limited(ServerProcess):
    """A server that may have so many file descriptors, and no more."""

    nofile = NOFILE

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {self.nofile} && exec "$@"', "sh", *super().command()]


def storm(server: ServerProcess, stack: ExitStack, each: int) -> None:
    """Connect to all listeners and stay."""
    for address in (server.stomp, server.http, server.mqks):
        for _ in range(each):
            with suppress(OSError):
                stack.enter_context(socket.create_connection(address, HANG_S))


def segments(server: ServerProcess) -> set[str]:
    """Return the names of all segments."""
    return {path.name for path in server.data_dir.glob("queues/*/*.seg")}


def test_connection_storm_does_not_affect_connected_clients(tmp_path: Path) -> None:
    with Limited(tmp_path / "data", "--cap=256KiB", "--log-level=error") as server:
        witness = Witness(server)
        with witness.connect() as peer:
            assert witness.publish(peer) == 10
            for _ in range(3):
                with ExitStack() as stack:
                    before, spent = segments(server), cpu_s(server)
                    storm(server, stack, NOFILE)
                    assert witness.publish(peer, 50, 1000) == 50
                    assert segments(server) - before, "it does not turn to a new segment"
                    assert cpu_s(server) - spent < 10, "it spins"
        wait_until(lambda: accepts_new_clients(server), "no new connections")
        assert "connections: " in server.log and "Errno 24" not in server.log
        assert call(server, "/readyz")[0] == 200
        server.kill()
        server.restart()
        witness.drain(2)


def accepts_new_clients(server: ServerProcess) -> bool:
    """Return whether a new client is served."""
    with suppress(OSError):
        return call(server, "/healthz")[0] == 200
    return False


def test_a_client_beyond_the_limit_is_notified(tmp_path: Path) -> None:
    with Limited(tmp_path / "data", "--log-level=error") as server, ExitStack() as stack:
        reported = b""
        while not reported:
            client = stack.enter_context(socket.create_connection(server.http, HANG_S))
            client.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")  # health is told on spare connections
            answer = client.recv(65536)
            reported = answer if not answer.startswith(b"HTTP/1.1 200") else b""
        assert reported.startswith(b"HTTP/1.1 503 ") and b"reached its limit of connections" in reported
        with socket.create_connection(server.stomp, HANG_S) as client:
            assert client.recv(65536).startswith(b"ERROR\nmessage:the server has reached its limit of connections")


def test_lowered_limit_does_not_affect_connected_clients(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--cap=256KiB", "--log-level=error") as server:
        witness = Witness(server)
        with witness.connect() as peer, ExitStack() as stack:
            assert witness.publish(peer) == 10
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (NOFILE, NOFILE))
            before = segments(server)
            storm(server, stack, NOFILE)
            assert witness.publish(peer, 50, 1000) == 50
            assert segments(server) - before
        wait_until(lambda: accepts_new_clients(server), "no new connections")
        server.kill()
        server.restart()
        witness.drain(2)


def test_more_queues_than_descriptors_are_supported(tmp_path: Path) -> None:
    with Limited(tmp_path / "data", "--cap=64KiB", "--log-level=error") as server:
        names = [f"q{number}" for number in range(NOFILE + 30)]
        for _ in range(2):
            for name in names:
                assert call(server, f"/v2/default/queues/{name}", "PUT")[0] in (200, 201)
                assert call(server, f"/v2/default/queues/{name}/messages", "POST", bytes(3000))[0] == 201
            server.kill()
            server.restart()
        for name in names:
            assert call(server, f"/v2/default/queues/{name}")[1]["rdy"] == 2


def test_a_limit_that_is_too_low_is_reported_in_one_line(tmp_path: Path) -> None:
    class Strangled(Limited):
        nofile = 70

    with pytest.raises(NotReady) as raised:
        Strangled(tmp_path / "data")
    assert "the limit of open files is 70; raise it to at least 80 (ulimit -n)" in raised.value.log
    assert "Traceback" not in raised.value.log


def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    class Soft(Limited):
        def command(self) -> list[str]:
            return ["sh", "-c", 'ulimit -Sn 90 && exec "$@"', "sh", *ServerProcess.command(self)]

    with Soft(tmp_path / "data") as server:
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard > 90


def test_request_beyond_memory_fails_alone(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--cap=256MiB", "--max-message-size=64MiB", "--log-level=error") as server:
        witness = Witness(server)
        call(server, "/v2/default/queues/large", "PUT")
        with witness.connect() as peer:
            assert witness.publish(peer) == 10
            used = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0]) * 4096
            resource.prlimit(server.process.pid, resource.RLIMIT_AS, (used + (48 << 20), resource.RLIM_INFINITY))
            for _ in range(3):
                with suppress(OSError):  # it may end the connection
                    status, _said = call(server, "/v2/default/queues/large/messages", "POST", bytes(60 << 20))
                    assert status in (201, 500, 503, 507), _said
            resource.prlimit(server.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert witness.publish(peer) == 10
        server.kill()
        server.restart()
        witness.drain(2)


@pytest.mark.soak
def test_thousands_of_connections_cost_little_and_are_released(tmp_path: Path) -> None:
    limit = 2 * CONNECTIONS + 500
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < limit:
        pytest.skip(f"the hard limit of open files is {hard}, {limit} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    with ServerProcess(tmp_path / "data", "--log-level=error") as server:
        witness = Witness(server)
        with witness.connect() as peer:
            assert witness.publish(peer) == 10
            before = memory_bytes(server)
            for round_number in range(3):
                with ExitStack() as stack:
                    for number in range(CONNECTIONS):
                        address = (server.stomp, server.http, server.mqks)[number % 3]
                        stack.enter_context(socket.create_connection(address))
                    assert witness.publish(peer, 50) == 50
                    grown = memory_bytes(server) - before
                    print(f"round {round_number}: {CONNECTIONS} connections, {grown // CONNECTIONS} bytes each")
                    assert grown < CONNECTIONS * IDLE_CONNECTION_BYTES_MAX
            wait_until(lambda: len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) < 60, "connections stay")
        witness.drain()
