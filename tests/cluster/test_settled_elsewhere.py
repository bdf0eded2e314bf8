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
    SharedQueue,
    receive,
    send_command,
    send_with_receipt,
    shared_queue,
    test_event_stream_continues_when_stomp_settles_its_messages,
    test_http_and_stomp_settle_websocket_deliveries,
    test_http_nack_redelivers_a_stomp_delivery,
    test_http_settles_a_stomp_delivery_and_frees_its_window,
    test_ids_of_a_dead_holder_are_stale,
    test_multi_queue_socket_and_others_settle_each_others_deliveries,
    test_one_of_two_concurrent_settles_wins,
    test_stomp_settles_a_lease,
    test_websocket_settles_leases_and_deliveries_of_others,
)
from tests.kit.engine import WAIT_S

__all__ = [
    "shared_queue",
    "test_ids_of_a_dead_holder_are_stale",
    "test_stomp_settles_a_lease",
    "test_multi_queue_socket_and_others_settle_each_others_deliveries",
    "test_event_stream_continues_when_stomp_settles_its_messages",
    "test_websocket_settles_leases_and_deliveries_of_others",
    "test_one_of_two_concurrent_settles_wins",
    "test_http_and_stomp_settle_websocket_deliveries",
    "test_http_nack_redelivers_a_stomp_delivery",
    "test_http_settles_a_stomp_delivery_and_frees_its_window",
]

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shared(gateway: GatewayProcess) -> GatewayProcess:
    """What the tests that are told of above run on."""
    return gateway


async def test_http_leases_are_shared_between_gateways_unlike_deliveries(
    shared_queue: SharedQueue, two_gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    await shared_queue.publish("a", "b", "c")
    lease = (await shared_queue.lease())[0]["ackId"]
    async with httpx.AsyncClient(base_url=two_gateways[1].url, trust_env=False, timeout=WAIT_S) as http:
        other = SharedQueue(two_gateways[1], http, shared_queue.name)
        async with shared_queue.stomp(INDIVIDUAL) as peer, shared_queue.socket("ack&encoding=utf8&limit=1") as socket:
            of_stomp, of_socket = (await peer.frame()).headers["ack"], (await receive(socket))["ackId"]
            held = [of_stomp, of_socket]
            assert await other.settle("ack", ackIds=held) == (0, held)
            async with other.socket("ack&encoding=utf8&limit=1&confirm=json") as elsewhere:
                assert await send_command(elsewhere, ackId=lease) == {"stale": [lease]}
                assert await send_command(elsewhere, ackId=of_stomp) == {"stale": [of_stomp]}
            async with other.stomp() as stranger:
                assert (await send_with_receipt(stranger, f"ACK\nid:{lease}")).headers["message"] == GONE
            assert await other.settle("ack", ackIds=[lease]) == (1, [])
            assert await shared_queue.settle("ack", ackIds=[*held, lease]) == (2, [lease])
            assert await shared_queue.counts() == (0, 0)
