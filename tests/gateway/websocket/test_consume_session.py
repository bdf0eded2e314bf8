"""The WebSocket that consumes, without a socket."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from curbstone.core import headers
from curbstone.core.errors import NoSuchQueue
from curbstone.core.values import UNKNOWN
from curbstone.gateway.formats.message_json import Encoding
from curbstone.gateway.websocket.codec import Inbound
from curbstone.gateway.websocket.consume_session import ConsumeSession
from curbstone.gateway.websocket.subscription import Subscription
from tests.gateway.fakes import ANYBODY, Anybody, FakeConsumer, FakeQueue, FakeWire, binary, delivery, text


class Reader:
    """A session with its queue, consumer and wire."""

    def __init__(self, *, settles: bool = True, encoding: Encoding | None = None) -> None:
        self.queue = FakeQueue()
        subscription = Subscription(self.queue.queue, settles=settles, limit=10, encoding=encoding, group="g")
        self.session = ConsumeSession(subscription, ANYBODY)
        self.wire = FakeWire(self.session)
        self.consumer: FakeConsumer = self.queue.consumers[0]

    def send(self, *messages: Inbound | str) -> None:
        self.session.receive([text(item) if isinstance(item, str) else item for item in messages])

    def with_deliveries(self, *seqs: int) -> Reader:
        self.consumer.give(*(delivery(seq) for seq in seqs))
        self.wire.take()
        return self

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        return self.consumer.calls


@pytest.fixture
def reader() -> Reader:
    """A session that was given a message."""
    return Reader().with_deliveries(11)


def test_session_subscribes_with_window_and_group() -> None:
    assert Reader().queue.subscribed == {"window": 10, "group": "g", "auto": False, "client_info": UNKNOWN}
    assert Reader(settles=False).queue.subscribed["auto"] is True


def test_a_message_is_a_metadata_frame_and_a_payload_frame() -> None:
    reader = Reader()
    reader.consumer.give(delivery(41, b"\xffbody", headers.encode([("content-type", "a/b"), ("x-msg-x-a", "1")])))
    metadata, payload = reader.wire.take_json()
    assert payload == b"\xffbody"
    assert list(metadata.items()) == [
        ("Content-Type", "a/b"),
        ("timestamp", 1_700_000_000_000),
        ("redelivered", False),
        ("ackId", "k.1"),
        ("id", "uid-41"),
        ("tries", 0),
        ("x-msg-x-a", "1"),
    ]


def test_without_ack_there_is_no_ack_id() -> None:
    reader = Reader(settles=False)
    reader.consumer.give(delivery(1))
    assert "ackId" not in reader.wire.take_json()[0]


def test_redelivery_is_marked() -> None:
    reader = Reader()
    reader.consumer.give(delivery(1, tries=2))
    metadata = reader.wire.take_json()[0]
    assert (metadata["redelivered"], metadata["tries"]) == (True, 2)


@pytest.mark.parametrize(
    ("encoding", "body", "message"),
    [
        ("utf8", "é".encode(), "é"),
        ("utf8", b"\xff", "\ufffd"),
        ("base64", b"\xff\x00", "/wA="),
        ("hex", b"\xff\x00", "ff00"),
    ],
)
def test_with_an_encoding_a_message_is_one_frame(encoding: Encoding, body: bytes, message: str) -> None:
    reader = Reader(encoding=encoding)
    reader.consumer.give(delivery(1, body))
    [frame] = reader.wire.take_json()
    assert frame["message"] == message
    assert frame.get("encoding", "utf8") == encoding


def test_acks_of_one_read_are_settled_together() -> None:
    reader = Reader().with_deliveries(11, 12, 13)
    reader.send('{"ackId":"k.2"}', '{"ackId":"k.1"}')
    assert reader.calls == [("ack", [12, 11])]


def test_ack_to_id_is_cumulative() -> None:
    reader = Reader().with_deliveries(11, 12, 13)
    reader.send('{"ackId":"k.1"}', '{"ackToId":"k.2"}')
    assert reader.calls == [("ack", [11, 12])]
    assert list(reader.consumer.unsettled) == [13]


def test_nack_keeps_its_order_among_acks() -> None:
    reader = Reader().with_deliveries(11, 12, 13)
    reader.send('{"ackId":"k.1"}', '{"nackId":"k.2","delay":1.5,"error":"why"}', '{"ackId":"k.3"}')
    assert reader.calls == [("ack", [11]), ("nack", [12], 1500, "why"), ("ack", [13])]


def test_nack_without_a_delay_uses_the_queue_delay(reader: Reader) -> None:
    reader.send('{"nackId":"k.1"}')
    assert reader.calls == [("nack", [11], None, "")]


def test_reject_has_a_reason(reader: Reader) -> None:
    reader.send('{"rejectId":"k.1","error":"bad"}')
    assert reader.calls == [("reject", [11], "bad")]


def test_each_delivery_of_a_message_has_its_own_ack_id(reader: Reader) -> None:
    reader.send('{"nackId":"k.1"}')
    reader.with_deliveries(11)
    reader.send('{"ackId":"k.2"}')
    assert reader.calls[-1] == ("ack", [11])


def test_an_empty_frame_ends_deliveries_and_settling_continues(reader: Reader) -> None:
    reader.send("", '{"ackId":"k.1"}')
    assert reader.calls == [("pause",), ("ack", [11])]
    assert reader.wire.code is None


@pytest.mark.parametrize("command", ["ackId", "ackToId", "nackId", "rejectId"])
@pytest.mark.parametrize(
    "ack_id", ["k.999", "k.0", "", "x", "k.01", "1", "k.1.0", "k." + "9" * 5000, "k.²", "j.1", "kk.1", ".1"]
)
def test_an_unknown_id_is_500_and_a_close(reader: Reader, command: str, ack_id: str) -> None:
    reader.send(orjson.dumps({command: ack_id}).decode())
    assert reader.wire.take_json() == [{"code": 500, "error": "Unrecognized acknowledgment ID"}]
    assert reader.wire.code == 1000
    assert reader.calls == [("close",)]


def test_id_of_an_earlier_connection_is_unknown() -> None:
    """Ids counted from 1 on each connection: an ack that came late removed another message, unprocessed."""
    queue = FakeQueue()
    wires = []
    ids = []
    for number in range(2):
        session = ConsumeSession(Subscription(queue.queue, settles=True, limit=10), Anybody(f"c{number}"))
        wires.append(FakeWire(session))
        queue.consumers[number].give(delivery(11))
        ids.append(wires[number].take_json()[0]["ackId"])
    assert ids[0] != ids[1]
    session.receive([text(f'{{"ackId":"{ids[0]}"}}')])
    assert queue.consumers[1].calls == [("close",)]
    assert wires[1].take_json() == [{"code": 500, "error": "Unrecognized acknowledgment ID"}]


def test_an_id_settles_once(reader: Reader) -> None:
    reader.send('{"ackId":"k.1"}', '{"ackId":"k.1"}')
    assert reader.calls == [("ack", [11]), ("close",)]
    assert reader.wire.take_json()[0]["code"] == 500


@pytest.mark.parametrize("frame", ["not json", "5", "[]", "null", "[" * 100_000, binary(b"{}"), '{"ackId":"\\ud800"}'])
def test_invalid_json_object_is_400_and_close(reader: Reader, frame: str | Inbound) -> None:
    reader.send(frame)
    assert reader.wire.take_json() == [{"code": 400, "error": "Payload must be a JSON object."}]
    assert reader.wire.code == 1000


@pytest.mark.parametrize(
    "frame",
    [
        *("{}", '{"ackId":1}', '{"ackId":null}', '{"ackToId":[]}', '{"other":"1"}', '{"nackId":{}}', '{"rejectId":1}'),
        *('{"ackId":"k.1","x":1}', '{"ackToId":"k.1","ackId":"k.1"}', '{"nackId":"k.1","rejectId":"k.1"}'),
        *('{"rejectId":"k.1","delay":1}', '{"nackId":"k.1","dely":1}'),
        *(
            '{"nackId":"k.1","delay":"x"}',
            '{"nackId":"k.1","error":5}',
            '{"rejectId":"k.1","error":{}}',
            '{"ackid":"1"}',
        ),
    ],
)
def test_an_unknown_command_is_400_and_a_close(reader: Reader, frame: str) -> None:
    reader.send(frame)
    assert reader.wire.take_json()[0]["code"] == 400
    assert reader.wire.code == 1000
    assert reader.calls == [("close",)]


def test_settling_without_ack_is_400_and_a_close() -> None:
    reader = Reader(settles=False).with_deliveries(11)
    reader.send('{"ackId":"k.1"}')
    error = {"code": 400, "error": "Acks can only be sent on connections without immediate acks."}
    assert reader.wire.take_json() == [error]
    assert reader.wire.code == 1000


def test_a_deleted_queue_is_404_and_a_close(reader: Reader) -> None:
    reader.consumer.on_closed(NoSuchQueue("gone"))
    assert reader.wire.take_json() == [{"code": 404, "error": "gone"}]
    assert reader.wire.code == 1000


def test_full_socket_pauses_the_consumer() -> None:
    reader = Reader()
    reader.session.pause()
    reader.session.resume()
    assert reader.calls == [("hold",), ("resume",)]


def test_stop_closes_with_1001_and_requeues_unsettled_messages(reader: Reader) -> None:
    reader.session.stop()
    assert reader.wire.code == 1001
    assert reader.calls == [("close",)]


def test_nothing_is_delivered_or_settled_after_the_end(reader: Reader) -> None:
    reader.session.closed()
    reader.send('{"ackId":"k.1"}')
    reader.consumer.give(delivery(12))
    assert reader.calls == [("close",)]
    assert reader.wire.take() == []
