"""Commands to a server behind a certificate of one's own authority, with a certificate as the login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.authority import Authority, Pair
from tests.kit.commands import curbstone
from tests.kit.guarded_server import GuardedServer, guarded_server

USERS = """
[users.ada]
certificate = ["DNS:ada.example"]
grants = ["send,receive,peek,manage default/*"]
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[GuardedServer]:
    pair = authority.signed("server")
    tls = [f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}", f"--tls-client-ca={authority.file}"]
    listeners = ["--http-addr=127.0.0.1:0", "--http-addr=tls://127.0.0.1:0"]
    with guarded_server(tmp_path_factory.mktemp("tls"), USERS, *listeners, *tls) as opened:
        yield opened


@pytest.fixture(scope="module")
def own(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key, in one file."""
    pair: Pair = authority.signed("ada", ["DNS:ada.example"])
    file = tmp_path_factory.mktemp("own") / "ada.pem"
    file.touch(0o600)
    file.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    return file


def run(it: GuardedServer, options: list[str], *words: str) -> tuple[int, str]:
    host, port = it.server.addresses["tls://http"]
    done = curbstone(*options, *words, "--server", f"https://{host}:{port}", cwd=it.server.data_dir.parent)
    return done.code, done.out + done.err


def test_commands_trust_an_authority_and_log_in_by_certificate(
    it: GuardedServer, authority: Authority, own: Path
) -> None:
    both = ["--ca-file", str(authority.file), "--cert-file", str(own)]
    assert it.call("ada", "PUT", "/v2/default/queues/jobs").status_code == 201
    assert run(it, both, "send", "jobs", "hello")[0] == 0
    code, said = run(it, both, "recv", "jobs", "--follow", "--ack", "--count", "1")  # over a WebSocket
    assert code == 0 and "hello" in said, said
    code, said = run(it, both[:2], "queues")
    assert code == 1 and "a login is needed" in said
    code, said = run(it, [], "queues")
    assert code == 3 and "CERTIFICATE_VERIFY_FAILED" in said
    for options in (["--ca-file", "/nowhere"], ["--cert-file", str(authority.file)]):
        code, said = run(it, options, "queues")
        assert code == 2 and f"can't use {options[1]}" in said
