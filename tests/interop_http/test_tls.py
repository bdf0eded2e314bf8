"""Real clients over TLS: openssl, curl, stomp.py, websockets, and a page in Chromium over wss."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import stomp
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.interop import control
from tests.interop.control import Control, chromium
from tests.interop_http.test_browser import PAGE
from tests.kit.authority import Authority, trust_flag
from tests.kit.server import NotReady, ServerProcess
from tests.kit.waiting import wait_until
from tests.stomp.client import Listener

PATH = "/v2/web/queues/tls"


@pytest.fixture(scope="module")
def server(folder: Path, authority: Authority, pages: Control) -> Iterator[ServerProcess]:
    """Each protocol with TLS and without."""
    pair = authority.signed("server")
    both = [f"--{name}-addr={way}127.0.0.1:0" for name in ("stomp", "http", "mqks") for way in ("", "tls://")]
    tls = [f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}", f"--tls-client-ca={authority.file}"]
    with ServerProcess(folder / "data", *both, *tls, f"--cors-origin={pages.origin}") as process:
        yield process


def curl(authority: Authority, *words: str) -> str:
    command = ["curl", "-sS", "--noproxy", "*", "--cacert", str(authority.file), *words]
    return subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout


def https(server: ServerProcess) -> str:
    return "https://localhost:{}".format(server.addresses["tls://http"][1])


def test_each_protocol_listens_with_tls_and_without(server: ServerProcess) -> None:
    ways = ("", "tls://")
    assert set(server.addresses) == {f"{way}{name}" for name in ("stomp", "http", "mqks") for way in ways}
    assert server.ready_line.split()[2].startswith("stomp=127.0.0.1:")
    assert server.ready_line.split()[3].startswith("stomp=tls://127.0.0.1:")


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
@pytest.mark.parametrize(
    ("listener", "said", "answered"),
    [
        ("tls://stomp", "CONNECT\naccept-version:1.2\nhost:x\n\n\0", "CONNECTED\n"),
        ("tls://mqks", "r1 ping there\n", "r1 ok there\n"),
        ("tls://http", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n"),
    ],
)
def test_openssl_connects_to_each_listener(
    server: ServerProcess, authority: Authority, version: str, listener: str, said: str, answered: str
) -> None:
    host, port = server.addresses[listener]
    verify = ["-verify_return_error", "-CAfile", str(authority.file), "-verify_hostname", "localhost"]
    command = ["openssl", "s_client", "-connect", f"{host}:{port}", version, "-quiet", "-no_ign_eof", *verify]
    # Its standard input stays open until the answer is there.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        assert client.stdin and client.stdout
        client.stdin.write(said.encode())
        client.stdin.flush()
        assert os.read(client.stdout.fileno(), 65536).decode().startswith(answered)
        client.kill()


@pytest.mark.parametrize("option", ["-tls1", "-tls1_1"])
def test_openssl_is_refused_with_outdated_tls(server: ServerProcess, option: str) -> None:
    host, port = server.addresses["tls://http"]
    command = ["openssl", "s_client", "-connect", f"{host}:{port}", option, "-cipher", "DEFAULT@SECLEVEL=0"]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert done.returncode != 0
    assert b"alert protocol version" in done.stderr


def test_curl_publishes_and_pops_over_https_with_and_without_a_certificate(
    server: ServerProcess, authority: Authority
) -> None:
    url = https(server) + PATH
    pair = authority.signed("client", ["URI:spiffe://example/client"])
    own = ["--cert", str(pair.certificate), "--key", str(pair.key)]
    curl(authority, "-X", "PUT", url)
    assert "wss://localhost:" in curl(authority, "-i", "-X", "OPTIONS", url)
    curl(authority, *own, "--data", "Hello, world", f"{url}/messages")
    assert curl(authority, "-X", "DELETE", f"{url}/messages") == "Hello, world"


def test_stomp_py_sends_and_receives_over_tls(server: ServerProcess, authority: Authority) -> None:
    at = [server.addresses["tls://stomp"]]
    connection = stomp.Connection12(at)
    connection.set_ssl(for_hosts=at, ca_certs=str(authority.file))
    heard = Listener()
    connection.set_listener("", heard)
    connection.connect(wait=True)
    connection.subscribe("/queue/stomp-py", id="0", ack="client-individual")
    for number in range(20):
        connection.send("/queue/stomp-py", str(number) * 10_000)
    heard.wait_until(lambda: len(heard.messages) == 20)
    assert [frame.body for frame in heard.messages] == [str(number) * 10_000 for number in range(20)]
    connection.disconnect()


def test_websockets_uses_queues_and_stomp_over_wss(server: ServerProcess, authority: Authority) -> None:
    curl(authority, "-X", "PUT", https(server) + PATH)
    asyncio.run(asyncio.wait_for(over_wss(server, authority), 120))


async def over_wss(server: ServerProcess, authority: Authority) -> None:
    """Publish, consume and say CONNECT; in one thread: Python's TLS is not to be read and written by two."""
    url = https(server).replace("https", "wss")
    context = authority.client()
    async with connect(
        f"{url}{PATH}/messages", subprotocols=[Subprotocol("publish")], proxy=None, ssl=context, compression=None
    ) as producer:
        for body in (b"small", b"x" * 900_000):
            await producer.send('{"Content-Type":"application/octet-stream"}')
            await producer.send(body)
            assert await producer.recv() == ""
    async with connect(
        f"{url}{PATH}/messages", subprotocols=[Subprotocol("consume")], proxy=None, ssl=context, max_size=None
    ) as consumer:
        bodies = [await consumer.recv() for _ in range(4)][1::2]
        assert bodies == [b"small", b"x" * 900_000]
    async with connect(f"{url}/stomp", subprotocols=[Subprotocol("v12.stomp")], proxy=None, ssl=context) as socket:
        await socket.send("CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        assert str(await socket.recv()).startswith("CONNECTED\n")


def test_a_page_publishes_and_consumes_over_https_and_wss(
    server: ServerProcess, pages: Control, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(control.FILES, "/http.html", (PAGE, "text/html; charset=utf-8"))
    url = f"{pages.origin}/http.html?url={quote(https(server), safe='')}"
    browser = chromium(url, tmp_path / "profile", trust_flag(folder / "server.pem"))
    facts = pages.result(browser)
    assert [got["body"] for got in facts["overSocket"]] == facts["bodies"]
    assert [got["body"] for got in facts["overEvents"]] == facts["bodies"]


def test_a_new_certificate_is_used_after_a_signal_and_a_bad_one_changes_nothing(
    tmp_path: Path, authority: Authority
) -> None:
    pair = authority.signed("changing")
    options = ["--stomp-addr=", "--mqks-addr=", "--http-addr=tls://127.0.0.1:0"]
    with ServerProcess(
        tmp_path / "data", *options, f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}"
    ) as server:
        at = server.addresses["tls://http"]
        before = ssl.get_server_certificate(at)
        key = pair.key.read_bytes()
        other = authority.signed("other")
        pair.key.write_bytes(other.key.read_bytes())
        server.process.send_signal(signal.SIGHUP)
        _await_log(server, "TLS certificate: not reloaded: the key in")
        assert ssl.get_server_certificate(at) == before
        pair.key.write_bytes(key)
        authority.signed("changing")
        server.process.send_signal(signal.SIGHUP)
        _await_log(server, "TLS certificate: reloaded")
        second = ssl.get_server_certificate(at)
        assert second != before
        authority.signed("changing")
        url = f"https://127.0.0.1:{at[1]}/v2/reload"
        assert httpx.post(url, verify=authority.client(), trust_env=False, timeout=60).status_code == 204
        assert ssl.get_server_certificate(at) != second


def _await_log(server: ServerProcess, text: str) -> None:
    wait_until(lambda: text in server.log, f"the log has no {text!r}")


def test_a_certificate_that_can_not_serve_is_one_line_and_code_1(tmp_path: Path, authority: Authority) -> None:
    one, two = authority.signed("one"), authority.signed("two")
    options = [f"--tls-cert={one.certificate}", f"--tls-key={two.key}", "--http-addr=tls://:0", "--log-level=error"]
    with pytest.raises(NotReady) as caught:
        ServerProcess(tmp_path / "data", *options)
    assert caught.value.code == 1
    assert caught.value.log == (
        f"curbstone: TLS can't be used: the key in {two.key} is not that of the certificate in {one.certificate}\n"
    )


def test_documented_commands_work(tmp_path: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs/tls.md").read_text(encoding="utf-8")
    make, serve, ask = page.partition("```console\n")[2].partition("\n```")[0].split("\n")
    subprocess.run(shlex.split(make), check=True, capture_output=True, timeout=60, cwd=tmp_path)
    options = [re.sub(r":\d+$", ":0", word) for word in shlex.split(serve)[2:]]
    listeners = [f"{option}={value}" for option, value in zip(options[::2], options[1::2], strict=True)]
    with ServerProcess(tmp_path / "data", *listeners) as server:
        assert set(server.addresses) == {"http", "tls://http", "tls://stomp", "mqks"}
        command = ask.replace(":8443", ":{}".format(server.addresses["tls://http"][1]))
        done = subprocess.run([*shlex.split(command), "--noproxy", "*"], capture_output=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
