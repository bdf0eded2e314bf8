"""WebSockets of one gateway find the queues that another has made a moment ago, and no other queues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller
from curbstone.core.errors import CurbstoneError, NoSuchQueue, Unavailable
from curbstone.core.names import QueueName
from curbstone.core.port import Broker
from curbstone.core.traffic import Traffic
from curbstone.gateway.http.fields import Fields
from curbstone.gateway.http.login import Logins
from curbstone.gateway.http.origin_policy import OriginPolicy
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.queues_session import QueuesSession
from curbstone.gateway.websocket.routes import WebSocketRoutes
from curbstone.gateway.websocket.session import Session, SocketRequest
from tests.engines.worlds import ModelWorld, NodeWorld
from tests.gateway.fakes import FakeWire, text

SETTINGS = GatewaySettings(max_message_size=1000)
CALLER = Caller("127.0.0.1", 1, "websocket")


class Socket:
    """A WebSocket for several queues of one gateway."""

    def __init__(self, cluster: ModelWorld | NodeWorld, broker: Broker) -> None:
        authenticator = OpenAuthenticator(broker, cluster.host)
        self._cluster = cluster
        self._session = QueuesSession(
            "default", authenticator.connections, authenticator.everyone, CALLER, SETTINGS, Traffic()
        )
        self._wire = FakeWire(self._session)
        self._received: list[Any] = []

    def send(self, *commands: dict[str, Any]) -> None:
        self._session.receive([text(json.dumps(each)) for each in commands])

    def receive(self, count: int) -> list[Any]:
        def arrived() -> bool:
            self._received += self._wire.take_json()
            return len(self._received) >= count

        self._cluster.wait_until(arrived)
        found, self._received = self._received[:count], self._received[count:]
        return found

    def close(self) -> None:
        self._wire.close(1000)


def when_made(cluster: ModelWorld | NodeWorld, maker: Broker, name: QueueName, call: Any) -> None:
    """Have a queue made, and call when the other gateways have not heard of it."""
    reported: list[CurbstoneError | None] = []

    def done(error: CurbstoneError | None) -> None:
        reported.append(error)
        if isinstance(cluster, NodeWorld):  # there the words of two gateways come in any order until one is answered
            call()

    maker.declare(name, {}, done)
    if isinstance(cluster, ModelWorld):
        call()
    cluster.wait_until(lambda: reported)
    assert reported == [None]


def test_socket_finds_queues_just_created_at_another_gateway(cluster: ModelWorld | NodeWorld) -> None:
    socket, name = Socket(cluster, cluster.gateway()), cluster.fresh()
    missing, key = cluster.fresh().queue, name.queue
    when_made(
        cluster,
        cluster.broker,
        name,
        lambda: socket.send(
            {"publish": missing, "message": "nowhere"},
            {"publish": key, "message": "first"},
            {"subscribe": key, "ack": True, "encoding": "utf8"},
        ),
    )
    socket.send({"publish": key, "message": "second"}, {"subscribe": missing})
    found = socket.receive(7)
    answers = [each for each in found if "publish" in each or "published" in each]
    assert [(each.get("code"), each.get("published")) for each in answers] == [(404, None), (None, key), (None, key)]
    assert [each["message"] for each in found if "message" in each] == ["first", "second"]
    assert {"subscribed": key} in found
    assert [each["code"] for each in found if "subscribe" in each] == [404]
    socket.close()


def test_closing_a_socket_cancels_its_queue_lookups(cluster: ModelWorld | NodeWorld) -> None:
    other, name = cluster.gateway(), cluster.fresh()
    socket = Socket(cluster, other)
    socket.send({"subscribe": name.queue})
    socket.close()
    assert cluster.answer(other.catch_up) == (None,)
    assert not other.ensure(name).holders()


def test_failed_queue_lookup_is_not_reported_as_missing(
    cluster: ModelWorld | NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, name = cluster.gateway(), cluster.fresh().queue
    socket = Socket(cluster, other)
    with monkeypatch.context() as patch:
        patch.setattr(other, "catch_up", lambda on_done: on_done(Unavailable("the cluster does not answer")))
        socket.send({"publish": name, "message": "x"}, {"subscribe": name})
        assert [each["code"] for each in socket.receive(2)] == [503, 503]
    socket.send({"publish": name, "message": "x"})
    assert [each["code"] for each in socket.receive(1)] == [404]
    socket.close()


def test_socket_reports_a_failed_queue_lookup(cluster: ModelWorld | NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    other = cluster.gateway()
    monkeypatch.setattr(other, "catch_up", lambda on_done: on_done(Unavailable("the cluster does not answer")))
    authenticator = OpenAuthenticator(other, cluster.host)
    logins = Logins(authenticator, documents_are_open=True)
    routes = WebSocketRoutes(authenticator, SETTINGS, OriginPolicy(SETTINGS), logins, Traffic())
    path = f"/v2/default/queues/{cluster.fresh().queue}/messages"
    headers = [(b"sec-websocket-protocol", b"publish"), (b"host", b"localhost")]
    request = SocketRequest(path, b"", Fields(headers), None, CALLER, authenticator.anonymous)
    outcomes: list[AuthorizedBroker | Problem | CurbstoneError] = []
    routes.admit(request, outcomes.append)
    cluster.wait_until(lambda: outcomes)
    assert isinstance(outcomes[0], Unavailable)


@pytest.mark.parametrize("protocol", ["publish", "consume"])
def test_socket_opens_a_queue_just_created_at_another_gateway(cluster: ModelWorld | NodeWorld, protocol: str) -> None:
    authenticator = OpenAuthenticator(cluster.gateway(), cluster.host)
    logins = Logins(authenticator, documents_are_open=True)
    routes = WebSocketRoutes(authenticator, SETTINGS, OriginPolicy(SETTINGS), logins, Traffic())
    name = cluster.fresh()
    outcomes: list[Session | CurbstoneError] = []

    def ask(queue: str) -> None:
        path, headers = f"/v2/default/queues/{queue}/messages", [(b"sec-websocket-protocol", protocol.encode())]
        request = SocketRequest(
            path, b"", Fields([*headers, (b"host", b"localhost")]), None, CALLER, authenticator.anonymous
        )

        def admitted(access: AuthorizedBroker | Problem | CurbstoneError) -> None:
            assert isinstance(access, AuthorizedBroker)
            try:
                outcomes.append(routes.open(request._replace(access=access)))
            except CurbstoneError as error:
                outcomes.append(error)

        routes.admit(request, admitted)

    when_made(cluster, cluster.broker, name, lambda: ask(name.queue))
    cluster.wait_until(lambda: outcomes)
    ask(cluster.fresh().queue)
    cluster.wait_until(lambda: len(outcomes) == 2)
    session, refusal = outcomes
    assert not isinstance(session, CurbstoneError) and session.subprotocol == protocol
    assert isinstance(refusal, NoSuchQueue)
