"""A consuming WebSocket with `?lease=`: deliveries end in their time, whatever the connection does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from curbstone.core.host import AsyncioHost, Timer
from curbstone.gateway.websocket.socket_leases import SocketLeases
from tests.kit.gateway import Running, json_from

LEASED = "?ack&confirm=json&encoding=utf8&lease="


@pytest.mark.anyio
async def test_unsettled_delivery_expires_and_is_redelivered(gateway: Running) -> None:
    await gateway.publish("a")
    async with gateway.socket("consume", LEASED + "0.05") as socket:
        first = await json_from(socket)
        assert await json_from(socket) == {"stale": [first["ackId"]]}
        second = await json_from(socket)
        assert (second["message"], second["tries"]) == ("a", 1)


@pytest.mark.anyio
async def test_extended_delivery_lasts_and_stale_ids_are_reported(gateway: Running) -> None:
    await gateway.publish("a", "b")
    async with gateway.socket("consume", LEASED + "30&limit=2") as socket:
        first, second = await json_from(socket), await json_from(socket)
        await socket.send(f'{{"extendId":"{first["ackId"]}","seconds":60}}')
        assert await json_from(socket) == {"extended": [first["ackId"]]}
        await socket.send(f'{{"extendId":"{second["ackId"]}","seconds":0.001}}')
        assert await json_from(socket) == {"extended": [second["ackId"]]}
        assert await json_from(socket) == {"stale": [second["ackId"]]}
        assert (await json_from(socket))["message"] == "b"
        await socket.send(f'{{"extendId":"{second["ackId"]}","seconds":5}}')
        assert await json_from(socket) == {"stale": [second["ackId"]]}
        await socket.send(f'{{"ackId":"{first["ackId"]}"}}')
        assert await json_from(socket) == {"settled": [first["ackId"]]}
    assert await gateway.pop_all() == [b"b"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "command",
    ['{"extendId":"%s"}', '{"extendId":"%s","seconds":0}', '{"extendId":"%s","more":1}', '{"extendId":1,"seconds":1}'],
)
async def test_a_bad_extension_ends_the_connection(gateway: Running, command: str) -> None:
    await gateway.publish("a")
    async with gateway.socket("consume", LEASED + "30") as socket:
        ack_id = (await json_from(socket))["ackId"]
        await socket.send(command.replace("%s", ack_id))
        assert (await json_from(socket))["code"] == 400
        with pytest.raises(ConnectionClosed):
            await socket.recv()


@pytest.mark.anyio
@pytest.mark.parametrize("query", ["?ack&lease=5", "?lease=5", LEASED + "0", LEASED + "x"])
async def test_lease_requires_expiry_notifications(gateway: Running, query: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await gateway.socket("consume", query)
    assert refused.value.response.status_code == 400


class Clock(AsyncioHost):
    """A host whose time is the test's."""

    def __init__(self) -> None:
        self.time_ms = 0
        self.timers: list[Alarm] = []

    def now_ms(self) -> int:
        return self.time_ms

    def call_later(self, delay_ms: int, fn: Callable[[], object]) -> Timer:
        self.timers.append(Alarm(self.time_ms + delay_ms, fn))
        return self.timers[-1]

    def advance(self, ms: int) -> None:
        self.time_ms += ms
        for alarm in self.timers:
            if alarm.is_set and alarm.at_ms <= self.time_ms:
                alarm.is_set = False
                alarm.fn()


class Alarm:
    def __init__(self, at_ms: int, fn: Callable[[], object]) -> None:
        self.at_ms = at_ms
        self.fn = fn
        self.is_set = True

    def cancel(self) -> None:
        self.is_set = False


def test_each_delivery_expires_separately_with_one_timer() -> None:
    clock = Clock()
    leases = SocketLeases(clock, 1_000)
    ended: list[int] = []
    leases.begin(ended.extend)
    leases.add(range(1, 4))
    clock.advance(400)
    leases.add([4])
    leases.extend(1, 5_000)
    leases.extend(4, 100)
    leases.drop(2)
    assert sum(alarm.is_set for alarm in clock.timers) == 1
    for ms, gone in ((99, []), (1, [4]), (500, [4, 3]), (4_399, [4, 3]), (1, [4, 3, 1])):
        clock.advance(ms)
        assert ended == gone
    assert not any(alarm.is_set for alarm in clock.timers)
    leases.add([5])
    leases.leave()
    clock.advance(10_000)
    assert ended == [4, 3, 1]


def test_settled_deliveries_are_freed() -> None:
    clock = Clock()
    leases = SocketLeases(clock, 1_000_000)
    leases.begin(lambda _numbers: None)
    for number in range(10_000):
        leases.add([number])
        leases.drop(number)
    assert len(leases._heap) <= 1_001
