"""A server with logins and TLS, whose authority only the options name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from curbstone.spark.client import Client
from curbstone.spark.failure import PipelineError, Refused, Unreachable, last_line
from curbstone.spark.options import address_of
from tests.kit.authority import Authority
from tests.kit.guarded_server import GuardedServer, guarded_server
from tests.spark.kit import numbered

USERS = """
[users.ops]
home = "shop"
grants = ["admin server"]
[users.pipeline]
home = "shop"
grants = ["peek shop/*", "receive shop/*", "manage shop/*", "send shop/out"]
[users.reader]
home = "shop"
grants = ["peek shop/in"]
"""


class Secure:
    """The server, and options that reach it."""

    def __init__(self, it: GuardedServer, folder: Path, authority: Authority) -> None:
        host, port = it.server.addresses["tls://http"]
        self.url = f"https://{host}:{port}"
        self.authority = str(authority.file)
        self._it = it
        self._folder = folder

    def call(self, method: str, path: str, **options: object) -> Any:
        reply = self._it.call("ops", method, f"/v2/shop/{path}", **options)
        assert reply.status_code < 300, reply.text
        return reply.json() if reply.content else None

    def token_file(self, user: str) -> str:
        file = self._folder / f"{user}.token"
        file.write_text(self._it.secrets[user] + "\n", encoding="ascii")
        return str(file)

    def options(self, user: str = "pipeline") -> dict[str, str]:
        return {"url": self.url, "tokenFile": self.token_file(user), "caFile": self.authority, "retryTimeout": "5"}

    def publish(self, queue: str, bodies: Sequence[str]) -> None:
        self.call("POST", f"queues/{queue}/messages/batch", json=[{"message": body} for body in bodies])


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("secure")
    authority = Authority(folder)
    pair = authority.signed("server")
    tls = (f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}")
    with guarded_server(folder, USERS, "--http-addr=127.0.0.1:0", "--http-addr=tls://127.0.0.1:0", *tls) as it:
        made = Secure(it, folder, authority)
        for queue in ("in", "out"):
            made.call("PUT", f"queues/{queue}")
        made.publish("in", numbered(100))
        yield made


def test_a_stream_reads_and_writes_with_a_token_over_tls(secure: Secure, spark: Any, tmp_path: Path) -> None:
    stream = spark.readStream.format("curbstone").options(queue="shop/in", groupId="copy", **secure.options()).load()
    writer = stream.select("body").writeStream.format("curbstone").options(**secure.options())
    query = writer.options(queue="shop/out", checkpointLocation=str(tmp_path / "check")).trigger(availableNow=True)
    assert query.start().awaitTermination(300)
    assert secure.call("GET", "queues/out")["rdy"] == 100
    assert secure.call("GET", "queues/in/groups/copy")["position"] == 101


def test_missing_right_is_reported_in_one_line(secure: Secure, spark: Any) -> None:
    plain = spark.read.format("curbstone")
    assert plain.options(queue="shop/in", **secure.options("reader")).load().count() == 100
    with pytest.raises(Exception) as caught:
        plain.options(queue="shop/out", **secure.options("reader")).load().count()
    assert last_line(caught.value) == "no right to peek on queue shop/out"


def test_unknown_ca_or_invalid_token_is_reported_immediately(secure: Secure, tmp_path: Path) -> None:
    """It was tried again for a minute, as if the server were away."""
    stranger = Client(address_of(secure.url, secure.token_file("reader")))
    with pytest.raises(Unreachable, match="its certificate is not trusted: .*caFile"):
        stranger.json("GET", "/v2/shop/queues")
    bad = tmp_path / "token"
    bad.write_text("not-a-token")
    with closing(Client(address_of(secure.url, str(bad), secure.authority))) as server:
        with pytest.raises(Refused) as caught:
            server.json("GET", "/v2/shop/queues")
        assert caught.value.status == 401
    with pytest.raises(PipelineError, match="caFile"):
        address_of("http://127.0.0.1:1", "", secure.authority)
