"""The clients over TLS, with a certificate that an authority of one's own has signed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from curbstone_client import sync
from curbstone_client.dramatiq import CurbstoneBroker
from curbstone_client.errors import CantConnect
from tests.client.shells import SHELLS
from tests.kit.authority import Authority
from tests.kit.server import ServerProcess


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def urls(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Where the server is over WebSockets, and where it is over TCP."""
    pair = authority.signed("server")
    files = [f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}", "--mqks-addr="]
    listeners = [f"--{name}-addr=tls://127.0.0.1:0" for name in ("http", "stomp")]
    with ServerProcess(tmp_path_factory.mktemp("server") / "data", *files, *listeners) as server:
        at = server.addresses
        yield [f"https://localhost:{at['tls://http'][1]}", f"stomps://localhost:{at['tls://stomp'][1]}"]


@pytest.mark.parametrize("name", SHELLS)
def test_ca_file_verifies_the_server_certificate(authority: Authority, urls: list[str], name: str) -> None:
    for number, url in enumerate(urls):
        queue = f"{name}-{number}"  # what the first leaves unsettled would come again
        with SHELLS[name]([url, urls[0]], ca_file=authority.file) as shell:
            shell.publish(queue, "m")
            assert shell.take(shell.consume(queue)).text == "m"
            assert shell.on_queue(queue, "info")["wip"] == 1  # by a call of HTTP


def test_environment_ca_file_verifies_the_server_certificate(
    authority: Authority, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURBSTONE_CA_FILE", str(authority.file))
    broker = CurbstoneBroker(urls[0])
    assert broker.client.declare("framework").info()["wip"] == 0
    broker.close()


def test_untrusted_server_is_refused_and_an_invalid_ca_file_named(urls: list[str], tmp_path: Path) -> None:
    for url in urls:
        for patience_s in (1, 10, 60):  # until one attempt has come to its end
            with pytest.raises(CantConnect) as refused, sync.Client(url, connect_timeout=patience_s):
                pass
            if "CERTIFICATE_VERIFY_FAILED" in str(refused.value):
                break
        else:
            raise refused.value
    bad = tmp_path / "bad.pem"
    for kind in ("missing", "empty"):
        with pytest.raises(CantConnect, match=str(bad)):
            sync.Client(urls[0], ca_file=bad).declare("q")
        if kind == "missing":
            bad.write_text("")
    context = Authority(tmp_path).client()
    with pytest.raises(ValueError, match="give either tls or ca_file"):
        sync.Client(urls[0], tls=context, ca_file=bad)
