"""A real server with users, and a client of each protocol that returns the answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from curbstone.access import tokens
from curbstone.core.disk import OsDisk
from tests.kit.server import ServerProcess

RIGHTS = ("send", "receive", "peek", "manage")


class GuardedServer:
    """The server, and a token for each user."""

    def __init__(self, server: ServerProcess, users_file: Path, secrets: dict[str, str]) -> None:
        self.server = server
        self.users_file = users_file
        self.secrets = secrets
        self.http = httpx.Client(base_url=server.url, trust_env=False, timeout=60)

    def call(self, user: str, method: str, path: str, **options: object) -> httpx.Response:
        """Call over HTTP; the user "" sends no login."""
        headers = dict(options.pop("headers", None) or {})  # type: ignore[call-overload]
        if user:
            headers["authorization"] = f"Bearer {self.secrets[user]}"
        return self.http.request(method, path, headers=headers, **options)  # type: ignore[arg-type]

    def stomp(self, user: str, *frames: str) -> list[str]:
        """Send frames after a login; return the commands of the answers, with the text of an ERROR."""
        login = f"login:{user}\npasscode:{self.secrets[user]}\n" if user else ""
        with RawConnection(self.server.stomp) as line:
            line.send(f"CONNECT\naccept-version:1.2\nhost:x\n{login}\n\0")
            for frame in frames:
                line.send(f"{frame}\0")
            line.send("DISCONNECT\nreceipt:end\n\n\0")
            text = line.read_all().decode()
        found = [frame.lstrip("\n").partition("\n") for frame in text.split("\0") if frame.strip()]
        return [f"ERROR {rest.partition('message:')[2].partition(chr(10))[0]}" if command == "ERROR" else command
                for command, _, rest in found]  # fmt: skip

    def mqks(self, user: str, *lines: str) -> list[str]:
        """Send lines after a login; return the answers."""
        with RawConnection(self.server.mqks) as line:
            if user:
                line.send(f"login auth {self.secrets[user]}\n")
            for text in lines:
                line.send(f"{text}\n")
            line.socket.shutdown(socket.SHUT_WR)
            return line.read_all().decode().splitlines()

    def websocket(self, user: str, protocol: str, path: str, query: str = "") -> int:
        """Open a WebSocket; return 101, or the status it was refused with."""
        host, port = self.server.http
        headers = {"authorization": f"Bearer {self.secrets[user]}"} if user else {}
        try:
            with connect(
                f"ws://{host}:{port}{path}{query}", subprotocols=[Subprotocol(protocol)], additional_headers=headers,
                proxy=None, compression=None,
            ):  # fmt: skip
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code
        except ConnectionClosed:
            return 101


class RawConnection:
    """A TCP connection without a protocol."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=60)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, text: str) -> None:
        try:
            self.socket.sendall(text.encode())
        except OSError:
            return  # it was closed; its last output can still be read

    def read_all(self) -> bytes:
        """Return the bytes up to the close by the server."""
        data = b""
        while True:
            try:
                piece = self.socket.recv(65536)
            except ConnectionResetError:
                return data
            if not piece:
                return data
            data += piece

    def read_until(self, mark: bytes) -> bytes:
        """Return the bytes up to a mark."""
        data = b""
        while mark not in data:
            piece = self.socket.recv(65536)
            assert piece, data
            data += piece
        return data


@contextmanager
def guarded_server(
    path: Path,
    users: str,
    *args: str,
    env: dict[str, str] | None = None,
    process: type[ServerProcess] = ServerProcess,
) -> Iterator[GuardedServer]:
    """Run a server whose users each have a token."""
    users_file = path / "users.toml"
    users_file.write_text(users, encoding="utf-8")
    names = [line[len("[users.") : -1].strip('"') for line in users.splitlines() if line.startswith("[users.")]
    made = {
        name: tokens.new_token(name, int(time.time() * 1000), grants=None, expires_ms=0, label="")
        for name in names
        if name != "anonymous"
    }
    data = path / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    disk = OsDisk(data)
    tokens.write(disk, [token for _, token in made.values()])
    disk.close()
    with process(data, f"--users={users_file}", *args, env=env) as server:
        it = GuardedServer(server, users_file, {name: str(secret) for name, (secret, _) in made.items()})
        yield it
        it.http.close()
