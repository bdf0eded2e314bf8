"""For whom a proxy asks: what counts of what it says, and who may say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from curbstone.core.options import QueueOptions
from curbstone.gateway import connection
from curbstone.gateway.http.forwarded import client_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.settings import GatewaySettings
from curbstone.net.address import Address
from curbstone.net.certificates import CertificateFiles, Certificates
from curbstone.net.peer import Certificate, Networks, Peer
from tests.kit.authority import Authority
from tests.kit.gateway import QUEUE, running

PROXIES = Networks(["10.0.0.0/8", "2001:db8::/32"])
PROXY = Peer("10.0.0.1", 4711, False, Certificate(("DNS:proxy",), "CN=proxy"))


def forwarded_client(**fields: str | list[str]) -> Peer:
    """Return who asks, by the fields with these names; a list is the same field several times."""
    found = []
    for name, values in fields.items():
        for value in [values] if isinstance(values, str) else values:
            found.append((name.replace("_", "-").encode(), value.encode()))
    return client_of(found, PROXY, PROXIES)


@pytest.mark.parametrize(
    ("chain", "host", "port"),
    [
        ("192.0.2.7", "192.0.2.7", 0),
        ("192.0.2.7:4711", "192.0.2.7", 4711),
        ("6.6.6.6, 192.0.2.7", "192.0.2.7", 0),
        ("6.6.6.6, 192.0.2.7, 10.1.1.1,10.2.2.2", "192.0.2.7", 0),
        ("nonsense, 192.0.2.7", "192.0.2.7", 0),
        ("::1", "::1", 0),
        ("[2001:db9::7]:47", "2001:db9::7", 47),
        ("::ffff:192.0.2.7", "192.0.2.7", 0),
        ("10.1.1.1, 10.2.2.2", "10.1.1.1", 0),
        ("192.0.2.7, unknown", "10.0.0.1", 4711),
        ("192.0.2.7, unknown, 10.2.2.2", "10.2.2.2", 0),
        ("", "10.0.0.1", 4711),
        ("192.0.2.7:99999999", "192.0.2.7", 0),
    ],
)
def test_client_is_the_last_address_that_is_no_proxy(chain: str, host: str, port: int) -> None:
    peer = forwarded_client(x_forwarded_for=chain)
    assert (peer.host, peer.port) == (host, port)
    assert (peer.certificate is None) is (host != PROXY.host), "a proxy's certificate is not its client's"
    fields = [f'for="{text.strip()}"' for text in chain.split(",")]
    assert forwarded_client(forwarded=fields).host == host


@pytest.mark.parametrize(
    "value",
    ["for=" + " " * 1900 + "x", "a" * 2000, '\\"' * 1000, '"' * 1999, "for=1;" * 300 + "=", 'for="1', "for=1 2"],
)
def test_malformed_forwarded_header_is_refused(value: str) -> None:
    """Each was read in quadratic time: one head of 16 kB stopped the server for seven seconds."""
    with pytest.raises(Problem, match="must be a list of name=value"):
        forwarded_client(forwarded=value)


def test_overlong_forwarded_header_is_not_parsed() -> None:
    for field in ("forwarded", "x_forwarded_for"):
        with pytest.raises(Problem, match="at most 2048 bytes"):
            forwarded_client(**{field: ["for=192.0.2.7"] * 200})


def test_empty_forwarded_elements_are_ignored() -> None:
    assert forwarded_client(forwarded="for=192.0.2.7;;proto=https;").tls
    assert forwarded_client(forwarded="for=192.0.2.7, ").host == "10.0.0.1", (
        "the last proxy does not say whom it asks for"
    )
    client = forwarded_client(forwarded=',for=192.0.2.7 ; proto="https"')
    assert client.host == "192.0.2.7" and client.tls


def test_scheme_is_taken_from_the_proxy() -> None:
    assert forwarded_client(x_forwarded_for="192.0.2.7", x_forwarded_proto="https").tls
    assert forwarded_client(x_forwarded_proto="HTTPS").tls
    assert not forwarded_client(x_forwarded_for="192.0.2.7", x_forwarded_proto="http").tls
    assert not forwarded_client(x_forwarded_for="192.0.2.7", x_forwarded_proto=["https", "http"]).tls
    assert not forwarded_client(x_forwarded_for="192.0.2.7").tls
    assert forwarded_client(forwarded="for=192.0.2.7;proto=https;host=q.example, for=10.2.2.2;proto=http").tls
    assert not forwarded_client(forwarded="for=192.0.2.7 ; proto=http, for=10.2.2.2;proto=https").tls
    assert forwarded_client(forwarded=r'By=x;FOR="192.0.2.\7";Proto="https"') == Peer("192.0.2.7", 0, True)


def test_contradicting_forwarding_headers_are_refused() -> None:
    """A proxy writes one of them, and the other is as the client sent it."""
    with pytest.raises(Problem, match="name different clients"):
        forwarded_client(x_forwarded_for="192.0.2.7", forwarded="for=6.6.6.6")
    assert forwarded_client(x_forwarded_for="192.0.2.7", forwarded="for=192.0.2.7;proto=https") == Peer(
        "192.0.2.7", 0, True
    )


def test_request_without_forwarding_headers_is_from_its_peer() -> None:
    assert forwarded_client(via="1.1 x") is PROXY


@pytest.mark.anyio
async def test_links_use_forwarding_headers_of_trusted_proxies_only(tmp_path: Path) -> None:
    async with running(tmp_path / "data", GatewaySettings(), QueueOptions()) as gateway:
        said = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https", "Host": "localhost"}
        await gateway.http.aclose()
        request = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        options = f"OPTIONS {QUEUE} HTTP/1.1\r\n{request}Connection: close\r\n\r\n".encode()
        assert b"location: ws://localhost/" in await gateway.raw(options)
        gateway.server.acceptor.trusted_proxies = Networks(["127.0.0.1"])
        assert b"location: wss://localhost/" in await gateway.raw(options)
        two = options.replace(b"Host:", b"Forwarded: for=6.6.6.6\r\nHost:")
        assert (await gateway.raw(two)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.anyio
async def test_hsts_is_sent_except_for_local_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    authority = Authority(tmp_path)
    async with running(tmp_path / "data", GatewaySettings(), QueueOptions()) as gateway:
        gateway.server.acceptor.certificates = Certificates(CertificateFiles(*authority.signed("server")))
        _, port = await gateway.server.start(Address("127.0.0.1", 0, tls=True))
        async with httpx.AsyncClient(verify=authority.client(), trust_env=False) as client:
            url = f"https://localhost:{port}{QUEUE}"
            assert "strict-transport-security" not in (await client.get(url)).headers
        monkeypatch.setattr(connection, "is_of_this_machine", lambda _address: False)
        async with httpx.AsyncClient(verify=authority.client(), trust_env=False) as client:
            assert (await client.get(url)).headers["strict-transport-security"] == "max-age=31536000"
            assert (await client.options(url)).headers["location"].startswith("wss://")
        assert "strict-transport-security" not in (await gateway.http.get(QUEUE)).headers
