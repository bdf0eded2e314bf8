"""The server as a process: its ready line, its exit codes, one line for what is wrong, and restarts."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import cast

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from curbstone import __version__
from curbstone.gateway.resources.metrics.figures import BUILD
from curbstone.net.address import Address
from curbstone.serve import WARN_EVERY_MS, Listener, Server, warn_of_open_listeners
from tests.kit.commands import curbstone
from tests.kit.server import STOP_S_MAX, NotReady, ServerProcess, clean_environment
from tests.kit.simulated import SimHost


def refused(*args: str, cwd: Path, **env: str) -> tuple[int, str]:
    """Run a command line that can't work; return its exit code and its one line on stderr."""
    done = curbstone(*args, cwd=cwd, stdin=b"", **env)
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    return done.code, done.err


def can_connect(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def stomp_dialogue(address: tuple[str, int], *frames: bytes) -> bytes:
    """Send CONNECT and the frames, and return all that comes until a RECEIPT, an ERROR or the end."""
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0" + b"".join(frames))
        answer = b""
        while not re.search(rb"(RECEIPT|ERROR)\n[^\0]*\0", answer) and (part := connection.recv(65536)):
            answer += part
        return answer


def test_the_ready_line_names_the_ports_that_were_free(server: ServerProcess) -> None:
    form = r"curbstone ready stomp=127\.0\.0\.1:(\d+) http=127\.0\.0\.1:(\d+) mqks=127\.0\.0\.1:(\d+)"
    match = re.fullmatch(form, server.ready_line)
    assert match
    ports = [address[1] for address in (server.stomp, server.http, server.mqks)]
    assert ports == [int(number) for number in match.groups()]
    assert 0 not in ports
    assert all(can_connect(address) for address in (server.stomp, server.http, server.mqks))


def test_a_client_that_connects_gets_the_version(server: ServerProcess) -> None:
    answer = stomp_dialogue(server.stomp, b"SEND\ndestination:a\nreceipt:r\n\n\0")
    assert f"\nserver:curbstone/{__version__}\n".encode() in answer
    with connect(f"ws://{server.http[0]}:{server.http[1]}/stomp") as websocket:
        websocket.send("CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        assert f"\nserver:curbstone/{__version__}\n" in str(websocket.recv())


@pytest.mark.parametrize("left", ["stomp", "http", "mqks"])
def test_listeners_that_are_off_are_not_in_the_ready_line(tmp_path: Path, left: str) -> None:
    off = [f"--{name}-addr=" for name in ("stomp", "http", "mqks") if name != left]
    with ServerProcess(tmp_path / "data", *off) as server:
        assert re.fullmatch(rf"curbstone ready {left}=127\.0\.0\.1:\d+", server.ready_line)


def test_ipv6_addresses_are_printed_in_brackets(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--stomp-addr=[::1]:0", "--http-addr=", "--mqks-addr=") as server:
        assert re.fullmatch(r"curbstone ready stomp=\[::1\]:\d+", server.ready_line)
        assert can_connect(server.stomp)


def test_nothing_but_the_ready_line_is_on_stdout(server: ServerProcess) -> None:
    assert server.process.stdout is not None
    server.process.send_signal(signal.SIGTERM)
    assert server.process.stdout.read() == ""
    assert server.stop() == 0
    assert "stopped" in server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_code_0_and_clients_still_connected(
    server: ServerProcess, number: signal.Signals
) -> None:
    idle = socket.create_connection(server.stomp, timeout=60)
    subscribed = socket.create_connection(server.stomp, timeout=60)
    http = socket.create_connection(server.http, timeout=60)
    with idle, subscribed, http:
        subscribed.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0SUBSCRIBE\nid:1\ndestination:a\nreceipt:r\n\n\0")
        http.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert http.recv(65536).startswith(b"HTTP/1.1 200")
        while b"RECEIPT" not in (part := subscribed.recv(65536)):
            assert part
        server.process.send_signal(number)
        last = b""
        while part := subscribed.recv(65536):
            last += part
        assert last.lstrip(b"\n").startswith(b"ERROR\n")
    assert server.process.wait(STOP_S_MAX) == 0
    assert "Traceback" not in server.log


RECOVERS_SLOWLY = """
import sys, time
from curbstone.cli.main import main
from curbstone.core.engine.broker import Broker

def recover(self, entry, original=Broker._recover):
    original(self, entry)
    print("recovering", entry, file=sys.stderr, flush=True)
    for _ in range(1000):
        time.sleep(0.1)

Broker._recover = recover
main()
"""


@pytest.mark.source
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_handled_while_queues_are_recovered(server: ServerProcess, number: signal.Signals) -> None:
    for name in ("a", "b"):
        assert httpx.put(f"{server.url}/v2/default/queues/{name}").status_code == 201
        assert httpx.post(f"{server.url}/v2/default/queues/{name}/messages", content=b"kept").status_code == 201
    server.kill()
    command = [sys.executable, "-c", RECOVERS_SLOWLY, *server.command()[3:], "--http-addr=127.0.0.1:0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=server.env, cwd=server.data_dir.parent
    )
    with process:
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:
            if line.startswith("recovering"):
                break
        process.send_signal(number)
        assert process.wait(STOP_S_MAX) == 0
        assert process.stdout.read() == "", "it was never ready"
        assert "Traceback" not in process.stderr.read()
    server.restart()
    for name in ("a", "b"):
        assert httpx.delete(f"{server.url}/v2/default/queues/{name}/messages").content == b"kept"


def test_a_signal_closes_websockets_with_1001(server: ServerProcess) -> None:
    queue = f"{server.url}/v2/default/queues/a"
    assert httpx.put(queue).status_code == 201
    with connect(queue.replace("http", "ws", 1), subprotocols=[Subprotocol("consume")]) as socket:
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=60)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1001
    assert server.process.wait(STOP_S_MAX) == 0


def test_client_that_never_reads_does_not_block_a_stop(server: ServerProcess) -> None:
    """Its socket is full, so the goodbye can't reach it: it is cut off in time."""
    with socket.create_connection(server.stomp, timeout=60) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0SUBSCRIBE\nid:1\ndestination:a\n\n\0")
        send = b"SEND\ndestination:a\n\n" + b"x" * 500_000 + b"\0"
        last = b"SEND\ndestination:a\nreceipt:r\n\nlast\0"
        assert b"receipt-id:r" in stomp_dialogue(server.stomp, *[send] * 8, last)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STOP_S_MAX) == 0


def test_data_directory_is_private(server: ServerProcess) -> None:
    assert server.data_dir.stat().st_mode & 0o777 == 0o700


def test_a_data_directory_that_others_can_write_to_is_reported(tmp_path: Path) -> None:
    """It was accepted in silence."""
    data = tmp_path / "data"
    data.mkdir()
    for mode, is_told in ((0o777, True), (0o770, True), (0o755, False)):
        data.chmod(mode)
        with ServerProcess(data) as server:
            server.stop()
            reported = f"other users can write to the data directory {data} (mode {mode:04o})"
            assert (reported in server.log) == is_told


def test_confirmed_messages_survive_kill_9(server: ServerProcess) -> None:
    send = b"SEND\ndestination:a\nreceipt:r\n\nhello\0"
    assert b"RECEIPT\nreceipt-id:r\n" in stomp_dialogue(server.stomp, send)
    server.kill()
    assert server.process.returncode == -signal.SIGKILL
    server.restart()
    with socket.create_connection(server.stomp, timeout=60) as connection:
        connection.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0SUBSCRIBE\nid:1\ndestination:a\n\n\0")
        answer = b""
        while b"hello\0" not in answer:
            part = connection.recv(65536)
            assert part, answer
            answer += part
    assert b"MESSAGE\n" in answer


def test_restart_on_the_same_ports(server: ServerProcess) -> None:
    ports = server.stomp, server.http, server.mqks
    server.restart(same_ports=True)
    assert (server.stomp, server.http, server.mqks) == ports


def test_a_second_process_on_the_same_data_is_refused(server: ServerProcess) -> None:
    code, line = refused(
        "serve", "--data", str(server.data_dir), "--stomp-addr=:0", "--http-addr=:0", "--mqks-addr=:0",
        "--log-level=warning", cwd=server.data_dir.parent,
    )  # fmt: skip
    assert code == 1
    assert re.search(rf"data directory .* in use by process {server.process.pid}\b", line)
    assert can_connect(server.stomp)


@pytest.mark.parametrize("kind", ["stomp", "http", "mqks"])
def test_a_port_in_use_is_one_line_and_code_1(server: ServerProcess, tmp_path: Path, kind: str) -> None:
    port = getattr(server, kind)[1]
    with pytest.raises(NotReady) as caught:
        ServerProcess(tmp_path / "other", f"--{kind}-addr=127.0.0.1:{port}", "--log-level=warning")
    assert caught.value.code == 1
    assert caught.value.log == f"curbstone: can't listen for {kind} on 127.0.0.1:{port}: Address already in use\n"


def test_foreign_host_address_is_one_line_and_code_1(tmp_path: Path) -> None:
    with pytest.raises(NotReady) as caught:
        ServerProcess(tmp_path / "data", "--stomp-addr=192.0.2.1:0", "--insecure", "--log-level=error")
    assert caught.value.code == 1
    assert caught.value.log == ("curbstone: can't listen for stomp on 192.0.2.1:0: Cannot assign requested address\n")


def test_listeners_that_others_can_reach_are_reported_at_the_start_and_each_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was said once, and scrolled away."""
    host = SimHost(Random(1), 0)
    server = cast(Server, None)
    listeners = [
        Listener("stomp", [Address("127.0.0.1", 1)], server),
        Listener("http", [Address("127.0.0.1", 1), Address("0.0.0.0", 2, tls=True)], server),
    ]
    warn_of_open_listeners(host, listeners)
    for minute in range(1, 4):
        assert [record.getMessage() for record in caplog.records] == [
            "http: other machines can reach tls://0.0.0.0:2 without a login"
        ] * minute
        host.pass_time(WARN_EVERY_MS)


def test_unusable_data_directory_is_one_line_and_code_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, line = refused("serve", "--data", str(tmp_path / "file"), "--log-level=error", cwd=tmp_path)
    assert code == 1
    assert "data directory" in line


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["serve", "--no-such-option"], "No such option: --no-such-option"),
        (["serve", "-cap", "much"], "--cap: bad size 'much'"),
        (["serve", "-addr=nowhere"], "--stomp-addr: bad address 'nowhere'"),
        (["serve", "--cap"], "'--cap' requires an argument"),
        (["serve", "more"], "unexpected extra argument"),
        (["serve", "--http-addr", "0.0.0.0:8080"], "without a login; add --users FILE"),
        (["serve", "--config", "missing.toml"], "can't read the config file missing.toml"),
        (["sevre"], "No such command 'sevre'"),
        (["--bad"], "No such option: --bad"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(tmp_path: Path, args: list[str], said: str) -> None:
    code, line = refused(*args, cwd=tmp_path)
    assert code == 2
    assert said in line
    assert os.listdir(tmp_path) == []


def test_a_wrong_environment_is_one_line_and_code_2(tmp_path: Path) -> None:
    code, line = refused("serve", cwd=tmp_path, CURBSTONE_SYNC="sometimes")
    assert code == 2
    assert line.startswith("curbstone: CURBSTONE_SYNC: bad sync mode 'sometimes'")


def test_the_spellings_of_curb_are_accepted(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "-cap", "1MiB", "-addr", ":0") as server:
        assert can_connect(server.stomp)


def test_help_and_version_need_no_server(tmp_path: Path) -> None:
    def output(*args: str) -> str:
        done = curbstone(*args, cwd=tmp_path)
        assert done.code == 0
        return done.out

    assert output("--version") == f"curbstone {__version__} ({BUILD})\n"
    assert "serve" in output()
    text = " ".join(output("serve", "--help").split())
    assert "-cap, --cap SIZE" in text
    assert "--users FILE" in text


RARE = {
    *("argon2", "cryptography", "curbstone_client", "deltalake", "duckdb", "httpx", "jwt", "opentelemetry", "pika"),
    *("prometheus_client", "pyarrow", "pyspark", "rich", "sqlite3", "unittest", "xml", "yaml"),
    *(
        "curbstone.access.user_authenticator",
        "curbstone.backup.restore",
        "curbstone.rabbit.engine",
        "curbstone.tracing",
    ),
}


def test_default_start_imports_no_optional_modules(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", env=clean_environment(PYTHONPROFILEIMPORTTIME="1")) as server:
        imported = {line.rpartition("|")[2].strip() for line in server.log.splitlines() if "import time:" in line}
    assert "curbstone.gateway.app" in imported, "else nothing was looked at"
    assert not {name for name in imported for rare in RARE if name == rare or name.startswith(f"{rare}.")}
