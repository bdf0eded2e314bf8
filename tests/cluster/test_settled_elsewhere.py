"""What one protocol delivered another settles, on a real RabbitMQ node as on the local engine; and what of it other
gateways know.
"""

from __future__ import annotations

import httpx
import pytest

from tests.cluster.gateway import GatewayProcess
from tests.cross_protocol.test_settled_elsewhere import (
    GONE,
    INDIVIDUAL,
    Place,
    heard,
    place,
    reported,
    said,
    test_a_holder_that_dies_takes_its_ids_along,
    test_a_lease_is_settled_in_stomp,
    test_a_socket_for_several_queues_settles_what_others_hold_and_they_what_it_holds,
    test_a_stream_continues_when_stomp_settles_what_it_sent,
    test_a_websocket_settles_leases_and_what_stomp_and_other_sockets_hold,
    test_of_two_that_settle_the_same_delivery_one_wins,
    test_what_a_websocket_holds_is_settled_over_http_and_stomp,
    test_what_stomp_delivered_is_delivered_again_after_a_nack_over_http,
    test_what_stomp_delivered_is_settled_over_http_and_makes_room_in_its_window,
)
from tests.kit.engine import WAIT_S

__all__ = [
    "place",
    "test_a_holder_that_dies_takes_its_ids_along",
    "test_a_lease_is_settled_in_stomp",
    "test_a_socket_for_several_queues_settles_what_others_hold_and_they_what_it_holds",
    "test_a_stream_continues_when_stomp_settles_what_it_sent",
    "test_a_websocket_settles_leases_and_what_stomp_and_other_sockets_hold",
    "test_of_two_that_settle_the_same_delivery_one_wins",
    "test_what_a_websocket_holds_is_settled_over_http_and_stomp",
    "test_what_stomp_delivered_is_delivered_again_after_a_nack_over_http",
    "test_what_stomp_delivered_is_settled_over_http_and_makes_room_in_its_window",
]

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shared(gateway: GatewayProcess) -> GatewayProcess:
    """What the tests that are told of above run on."""
    return gateway


async def test_another_gateway_knows_of_leases_over_http_and_of_nothing_that_connections_hold(
    place: Place, two_gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    await place.publish("a", "b", "c")
    lease = (await place.lease())[0]["ackId"]
    async with httpx.AsyncClient(base_url=two_gateways[1].url, trust_env=False, timeout=WAIT_S) as http:
        other = Place(two_gateways[1], http, place.name)
        async with place.stomp(INDIVIDUAL) as peer, place.socket("ack&encoding=utf8&limit=1") as socket:
            of_stomp, of_socket = (await peer.frame()).headers["ack"], (await heard(socket))["ackId"]
            held = [of_stomp, of_socket]
            assert await other.settle("ack", ackIds=held) == (0, held)
            async with other.socket("ack&encoding=utf8&limit=1&confirm=json") as elsewhere:
                assert await said(elsewhere, ackId=lease) == {"stale": [lease]}
                assert await said(elsewhere, ackId=of_stomp) == {"stale": [of_stomp]}
            async with other.stomp() as stranger:
                assert (await reported(stranger, f"ACK\nid:{lease}")).headers["message"] == GONE
            assert await other.settle("ack", ackIds=[lease]) == (1, [])
            assert await place.settle("ack", ackIds=[*held, lease]) == (2, [lease])
            assert await place.left() == (0, 0)
