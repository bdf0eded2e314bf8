"""The frames that a gateway makes and reads itself are as pika makes them, and pika gets all others, in their place."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import channel as pika_channel
from pika import frame, spec

from curbstone.rabbit.amqp import frames
from curbstone.rabbit.amqp.address import parse
from curbstone.rabbit.amqp.connection import PikaConnector
from curbstone.rabbit.amqp.port import Arrived, Properties
from curbstone.rabbit.amqp.socket_filter import SocketFilter

FRAME_MAX = 4096
SHORT = st.text(max_size=60)
HEADERS = st.dictionaries(
    SHORT,
    st.one_of(st.binary(max_size=2000), SHORT, st.integers(-(2**63), 2**63 - 1), st.lists(SHORT, max_size=3)),
    max_size=4,
)
PROPERTIES = st.builds(
    Properties,
    HEADERS.filter(lambda headers: sum(len(str(value)) for value in headers.values()) < 2000),
    *[st.none() | SHORT] * 3,
    st.none() | st.integers(0, 2**63 - 1),
    *[st.none() | SHORT] * 3,
    app_id=st.none(),
    priority=st.none() | st.integers(0, 255),
)


def of_pika(channel: int, method: Any, properties: Properties, body: bytes) -> bytes:
    """Return the frames as pika makes them."""
    fields = {name: value for name, value in properties._asdict().items() if value is not None}
    most = FRAME_MAX - frames.AROUND
    pieces = [body[at : at + most] for at in range(0, len(body), most)]
    made = [
        frame.Method(channel, method),
        frame.Header(channel, len(body), spec.BasicProperties(**fields, delivery_mode=2)),
        *(frame.Body(channel, piece) for piece in pieces),
    ]
    return b"".join(each.marshal() for each in made)


@given(st.integers(1, 2047), SHORT, SHORT, PROPERTIES, st.binary(max_size=3 * FRAME_MAX), st.booleans())
def test_publish_encodes_as_pika_does(
    channel: int, exchange: str, key: str, properties: Properties, body: bytes, mandatory: bool
) -> None:
    expected = of_pika(channel, spec.Basic.Publish(0, exchange, key, mandatory), properties, body)
    made = frames.publish(channel, exchange, key, properties, body, mandatory=mandatory, frame_max=FRAME_MAX)
    assert made == expected


@pytest.mark.parametrize(
    ("key", "properties"),
    [
        ("k" * 256, Properties({})),
        ("k", Properties({}, "é" * 128)),
        ("k", Properties({"n" * 256: b""})),
        ("k", Properties({"n" * 256: 1})),
        ("k", Properties({"block": bytes(FRAME_MAX)})),
    ],
    ids=["key", "id", "name", "name in a table", "a header frame has one size at most"],
)
def test_values_unencodable_in_amqp_are_reported(key: str, properties: Properties) -> None:
    with pytest.raises(frames.NotEncodable):
        frames.publish(1, "", key, properties, b"", mandatory=True, frame_max=FRAME_MAX)


class FakePika:
    """Notes what pika gets, with messages put together as pika does it."""

    def __init__(self, seen: list[object]) -> None:
        self._seen = seen
        self._data = b""
        self._assembler = pika_channel.ContentFrameAssembler()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while self._data:
            used, found = frame.decode_frame(self._data)
            if found is None:
                return
            self._data = self._data[used:]
            if isinstance(found, frame.Method) and not spec.has_content(found.method.INDEX):
                self._seen.append(("pika", found.method.NAME))
            elif isinstance(found, frame.Heartbeat):
                self._seen.append(("pika", "heartbeat"))
            elif message := self._assembler.process(found):
                self._seen.append((message[0].method.consumer_tag, message[0].method.delivery_tag, message[2]))


def wire_of(seen: list[object]) -> SocketFilter:
    """Return a wire on which the consumer "ours" of channel 1, and the confirms of channel 2, are taken."""
    turns: list[Callable[[], None]] = []
    wire = SocketFilter(turns.append, FakePika(seen))

    def take(arrived: Arrived) -> None:
        seen.append(("ours", arrived.tag, arrived.body))

    wire.consumers[1, b"ours"] = take
    wire.confirmed[2] = lambda tag, multiple, is_stored: seen.append((tag, multiple, is_stored))
    return wire


def delivery(consumer: str, tag: int, body: bytes) -> bytes:
    """Return the frames of a delivery on channel 1."""
    return of_pika(1, spec.Basic.Deliver(consumer, tag, False, "", "key"), Properties({"n": b"v"}, "id"), body)


def reported(random: Random, tag: int) -> tuple[bytes, object]:
    """Return something that a node says, and what is to be seen of it."""
    consumer, body = random.choice(["ours", "other"]), random.randbytes(random.choice([0, 1, 100, 3 * FRAME_MAX]))
    is_multiple = random.random() < 0.5
    return random.choice(
        [
            (delivery(consumer, tag, body), (consumer, tag, body)),
            (frame.Method(2, spec.Basic.Ack(tag, is_multiple)).marshal(), (tag, is_multiple, True)),
            (frame.Method(1, spec.Basic.QosOk()).marshal(), ("pika", "Basic.QosOk")),
            (frame.Method(2, spec.Basic.Nack(tag)).marshal(), ("pika", "Basic.Nack")),
            (frame.Heartbeat().marshal(), ("pika", "heartbeat")),
        ]
    )


@given(st.integers(0, 2**64))
def test_frames_are_parsed_once_in_order_for_any_split(seed: int) -> None:
    random = Random(seed)
    seen: list[object] = []
    wire = wire_of(seen)
    said = [reported(random, tag) for tag in range(1, 30)]
    data = b"".join(part for part, _ in said)
    while data:
        size = random.choice([1, 7, 8, 50, 1000, 10_000])
        wire.data_received(data[:size])
        data = data[size:]
    assert seen == [expected for _, expected in said]


def test_delivery_decodes_as_pika_does() -> None:
    table = {"x-delivery-count": 3, "x-cs-headers": b"a:b\n", "x-death": [{"count": 1, "queue": "q"}]}
    properties = Properties(table, "id-1", "text/plain", "1000", 1_700_000_000, "c", "r", "t", "a", 7)
    got: list[Arrived] = []
    wire = wire_of([])
    wire.consumers[1, b"c"] = got.append
    wire.data_received(of_pika(1, spec.Basic.Deliver("c", 2**40, True, "exchange", "key"), properties, b"body"))
    assert got == [Arrived(2**40, True, "exchange", "key", properties, b"body")]


def test_pika_heartbeats_count_bypassed_bytes() -> None:
    """Else it would take a node for dead that is so busy with deliveries that it sends no heartbeats."""
    counted: list[int] = []
    wire = wire_of([])
    wire.on_received = counted.append
    data = delivery("ours", 1, b"body")
    wire.data_received(data + frame.Heartbeat().marshal())
    assert counted == [len(data)]


def test_consumer_cancel_is_handled_before_later_deliveries() -> None:
    seen: list[object] = []
    wire = wire_of(seen)
    pika = wire.get_protocol()
    hear = pika.data_received

    def end(data: bytes) -> None:
        wire.consumers.clear()
        hear(data)

    pika.data_received = end
    wire.data_received(frame.Method(1, spec.Basic.Cancel("ours")).marshal() + delivery("ours", 1, b"late"))
    assert seen == [("pika", "Basic.Cancel"), ("ours", 1, b"late")]
    assert not wire.consumers


def test_other_protocol_response_is_passed_to_pika() -> None:
    got: list[bytes] = []
    wire = wire_of([])
    wire.get_protocol().data_received = got.append
    wire.data_received(b"AMQP\x00\x00\x09\x01")
    assert got == [b"AMQP\x00\x00\x09\x01"]


@pytest.mark.anyio
async def test_unreachable_node_is_reported() -> None:
    """Through all the layers that pika wraps it in."""
    loop = asyncio.get_running_loop()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        lost: asyncio.Future[str] = loop.create_future()
        connector = PikaConnector(parse(f"amqp://127.0.0.1:{port}/"), loop)
        connector.connect("test", lambda _connection: None, lost.set_result, lambda _reason: None)
        text = await asyncio.wait_for(lost, 60)
    assert text.startswith(f"127.0.0.1:{port}: ") and f"[Errno {errno.ECONNREFUSED}]" in text
