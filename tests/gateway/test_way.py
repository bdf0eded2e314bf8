"""How long the way of a message through the gateway is: calls for an HTTP publish, for a delivery and for its ack.

Only calls outside the engine count; tests/stomp/test_way.py counts those inside. The bounds may only fall.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from curbstone.core.message import Message
from tests.kit.gateway import MESSAGES, Running
from tests.stomp.test_way import Trace

pytestmark = [pytest.mark.anyio, pytest.mark.source]

PUBLISH_CALLS_MAX = 68
DELIVERY_CALLS_MAX = 10
ACK_CALLS_MAX = 18

PUBLISH = (
    f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\nAccept: */*\r\n"
    "Content-Type: text/plain\r\nx-msg-x-a: 1\r\nContent-Length: 4\r\n\r\nbody"
).encode()


def outside_core(trace: Trace) -> int:
    return trace.total - trace.core_total


async def traced(steps: dict[str, Callable[[], Awaitable[object]]]) -> dict[str, int]:
    """Repeat the steps, and return the calls outside core of each one's least disturbed repetition."""
    found: dict[str, list[Trace]] = {name: [] for name in steps}
    for _ in range(20):
        for name, step in steps.items():
            with Trace() as trace:
                await step()
                await asyncio.sleep(0.02)  # what follows the commit belongs to the way
            found[name].append(trace)
    counts = {}
    for name, traces in found.items():
        best = min(traces[5:], key=outside_core)  # the first ones fill caches
        counts[name] = outside_core(best)
        print(name, counts[name], [call for call in best.calls.most_common() if not call[0][0].startswith("core/")])
        assert best.core_total > 10, "nothing was traced"
    return counts


async def test_calls_of_a_publish_stay_within_budget(gateway: Running) -> None:
    reader, writer = await asyncio.open_connection(*gateway.address)

    async def publish() -> None:
        writer.write(PUBLISH)
        assert b" 201 " in await reader.readuntil(b"\r\n\r\n")

    counts = await traced({"publish": publish})
    writer.close()
    assert counts["publish"] <= PUBLISH_CALLS_MAX


async def test_calls_of_a_delivery_and_ack_stay_within_budget(gateway: Running) -> None:
    (queue,) = gateway.broker.queues()
    reader, writer = await gateway.raw_socket("?ack&limit=1")
    ack_ids: list[bytes] = []

    async def deliver() -> None:
        queue.publish([Message(b"body")], lambda _error, _first, _count: None)
        frames = await reader.readuntil(b"\x82\x04body")
        ack_ids.append(frames.partition(b'"ackId":"')[2].partition(b'"')[0])

    async def ack() -> None:
        command = b'{"ackId":"%b"}' % ack_ids.pop()
        writer.write(bytes([0x81, 0x80 | len(command), 0, 0, 0, 0]) + command)  # the mask is 0
        await writer.drain()

    counts = await traced({"delivery": deliver, "ack": ack})
    assert await gateway.counts() == (0, 0, 0)
    writer.close()
    assert counts["delivery"] <= DELIVERY_CALLS_MAX
    assert counts["ack"] <= ACK_CALLS_MAX
