"""`curbstone push`: what reaches the receiver, what its answers lead to, and that it is signed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest

from curbstone.cli.webhook import Failed, Sender, Target, _is_public, secret_of, signature
from curbstone.exit_codes import FAILED, NO_QUEUE, WRONG, CommandFailed
from curbstone_client.sync import Client, Message
from tests.kit.commands import curbstone, running
from tests.kit.guarded_server import guarded_server
from tests.kit.server import ServerProcess

WAIT_S_MAX = 120
ENDLESS_BYTES = 256 * 1024 * 1024
"""More than the sockets of both sides keep."""


class Receiver(ThreadingHTTPServer):
    """Somebody's server: keeps what comes, and answers with the status that the path or the body names."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.came: list[tuple[dict[str, str], bytes]] = []
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?a=1"

    def wait_for(self, count: int) -> list[tuple[dict[str, str], bytes]]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.came) >= count, WAIT_S_MAX), self.came
            return self.came[:count]


class Handler(BaseHTTPRequestHandler):
    """Answers once with the status in the body, then with 204."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Receiver)
        assert self.path == "/hook?a=1"
        body = self.rfile.read(int(self.headers["content-length"]))
        with server.changed:
            before = sum(1 for _, seen in server.came if seen == body)
            server.came.append(({name.lower(): value for name, value in self.headers.items()}, body))
            server.changed.notify_all()
        self.send_response(204 if before or not body.isdigit() else int(body))
        if body == b"503":
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_messages_are_posted_signed_and_settled_by_the_answer(
    server: ServerProcess, receiver: Receiver, tmp_path: Path
) -> None:
    secret = base64.b64encode(b"k" * 24).decode()
    (tmp_path / "secret").write_text(f"whsec_{secret}\n")
    command = ["push", "shop/orders", f"--url={receiver.url}", "--allow-private", f"--server={server.url}"]
    with Client(server.url, project="shop") as client:
        orders = client.declare("orders", dead_letter="dead")
        first = orders.publish({"n": 1}, headers={"customer": "7"})
        for status in ("404", "503", "500"):
            orders.publish(status)
        with running(*command, f"--secret-file={tmp_path / 'secret'}", "--parallel=1", cwd=tmp_path) as pushing:
            came = receiver.wait_for(6)
            client.settled("orders")
            pushing.send_signal(signal.SIGTERM)
            assert pushing.wait(WAIT_S_MAX) == 0
        assert client.queue("dead").info()["rdy"] == 1
        dead = next(client.queue("dead").consume())
        assert (dead.text, dead.headers["x-dead-error"]) == ("404", "the receiver answered 404")
    headers, body = came[0]
    assert body == b'{"n":1}'
    assert headers["content-type"] == "application/json"
    assert headers["x-msg-x-customer"] == "7"
    assert headers["webhook-id"] == first.id
    signed = f"{first.id}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(b"k" * 24, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert sorted(body for _, body in came[1:]) == [b"404", b"500", b"500", b"503", b"503"]


def test_push_logs_in_with_a_token(receiver: Receiver, tmp_path: Path) -> None:
    users = '[users.ada]\nhome = "shop"\ngrants = ["send shop/*", "receive shop/*", "peek shop/*", "manage shop/*"]\n'
    with guarded_server(tmp_path, users) as guarded:
        server = guarded.server
        (tmp_path / "token").write_text(guarded.secrets["ada"])
        with Client(server.url, project="shop", token=guarded.secrets["ada"]) as client:
            client.queue("orders").publish("x")
        command = ["push", "shop/orders", f"--url={receiver.url}", "--allow-private", f"--server={server.url}"]
        refused = curbstone(*command, cwd=tmp_path)
        assert (refused.code, refused.err.count("\n")) == (FAILED, 1)
        with running(*command, f"--token-file={tmp_path / 'token'}", cwd=tmp_path) as pushing:
            assert receiver.wait_for(1)[0][1] == b"x"
            pushing.send_signal(signal.SIGTERM)
            assert pushing.wait(WAIT_S_MAX) == 0


def test_signature_follows_standard_webhooks() -> None:
    """The example of its specification's libraries."""
    secret = secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_private_addresses_are_refused(receiver: Receiver) -> None:
    for url in (receiver.url, receiver.url.replace("127.0.0.1", "localhost"), "http://[::ffff:127.0.0.1]:9/"):
        with pytest.raises(Failed, match="not a public address"):
            Sender(Target(url, None, 1, False))._connect()
    assert not receiver.came


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("127.0.0.1", False),
        ("100.64.0.1", False),
        ("::1", False),
        ("::7f00:1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::808:808", False),
        ("2002:7f00:1::", False),
        ("2001:0:1::1", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("ff0e::1", False),
        ("8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("2002:808:808::1", True),
        ("2606:4700::1111", True),
    ],
)
def test_address_mapped_to_a_private_one_is_private(address: str, is_public: bool) -> None:
    """NAT64, 6to4 and IPv4-compatible addresses of this machine were taken for public ones."""
    assert _is_public(address) is is_public


@pytest.mark.parametrize("kind", ["text/plain\r\nX-Evil: 1", "a\n", "text/\u20ac", "text/\xe9", "a\0b", "a\x85b"])
def test_message_with_an_unusable_content_type_is_sent_without_it(receiver: Receiver, kind: str) -> None:
    """Such a message never left, and was tried again for ever."""
    headers = {"x-msg-x-good": "1", "x-msg-x-bad": kind, "x-msg-x-\xe9": "1", "x-msg-a b": "1", "x-msg-a:b": "1"}
    sender = Sender(Target(receiver.url, None, WAIT_S_MAX, True))
    sender.send(a_message(kind, headers))
    sender.close()
    [(came, body)] = receiver.wait_for(1)
    assert body == b"x" and came["content-type"] == "application/octet-stream"
    assert {name: value for name, value in came.items() if name.startswith("x-")} == {"x-msg-x-good": "1"}


def a_message(kind: str = "text/plain", headers: Mapping[str, str] = MappingProxyType({})) -> Message:
    return cast(Message, SimpleNamespace(id="1-1", type=kind, body=b"x", raw_headers=headers))


def test_endless_response_is_cut_off() -> None:
    """All of it was read into memory: the receiver is somebody else, and decided how much that is."""
    reported = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
    sent = 0

    def answer(listener: socket.socket) -> None:
        nonlocal sent
        connected, _ = listener.accept()
        with connected, suppress(OSError):
            connected.sendall(reported)
            while sent < ENDLESS_BYTES:
                connected.sendall(bytes(64 * 1024))
                sent += 64 * 1024

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        Sender(Target(url, None, WAIT_S_MAX, True)).send(a_message())
        thread.join(WAIT_S_MAX)
    assert not thread.is_alive() and sent < ENDLESS_BYTES


def test_trickling_response_times_out() -> None:
    """A limit of each read alone would never end it."""
    is_done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connected, _ = listener.accept()
            with connected, suppress(OSError):
                connected.recv(65536)
                connected.sendall(b"HTTP/1.1 204 No Content\r\nx-slow: ")
                while not is_done.wait(0.02):
                    connected.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        ended = threading.Timer(WAIT_S_MAX, is_done.set)
        ended.start()
        target = Target(f"http://127.0.0.1:{listener.getsockname()[1]}", None, 0.3, True)
        with pytest.raises(Failed, match=r"TimeoutError: (it took more than 0\.3 s|timed out)"):
            Sender(target).send(a_message())
        is_done.set()
        ended.cancel()
        thread.join()


def test_missing_queue_is_reported_and_not_created(server: ServerProcess, tmp_path: Path) -> None:
    done = curbstone("push", "shop/nosuch", "--url=http://127.0.0.1:1", f"--server={server.url}", cwd=tmp_path)
    assert (done.code, done.err) == (NO_QUEUE, "curbstone: no such queue: shop/nosuch\n")


@pytest.mark.parametrize("url", ["ftp://x/", "http://u:p@x/", "nonsense"])
def test_invalid_push_url_is_reported(tmp_path: Path, url: str) -> None:
    done = curbstone("push", "orders", f"--url={url}", cwd=tmp_path)
    assert done.code == WRONG
    assert "--url must be" in done.err


@pytest.mark.parametrize("text", ["", "whsec_not base64"])
def test_invalid_secret_is_reported(text: str) -> None:
    with pytest.raises(CommandFailed):
        secret_of(text)
