"""The WebSocket that publishes, without a socket."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from curbstone.access.errors import NotAllowed
from curbstone.core import headers
from curbstone.core.errors import (
    CurbstoneError,
    KeyReused,
    NoSuchQueue,
    NotSupported,
    QueueFull,
    SchemaViolation,
    Unavailable,
)
from curbstone.core.message import Message
from curbstone.gateway.http.problem import status_of
from curbstone.gateway.limits import UNCONFIRMED_MAX
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.codec import Inbound
from curbstone.gateway.websocket.publish_session import PublishSession
from curbstone.gateway.websocket.publish_targets import ToQueue
from tests.gateway.fakes import ANYBODY, FakeQueue, FakeWire, anything, binary, text

SETTINGS = GatewaySettings(max_message_size=500, max_ttl_s=3600)
DEEP = "[" * 100_000


class Publisher:
    """A session with its queue and wire."""

    def __init__(self, *, groups: tuple[str, ...] = (), confirm_ids: bool = False) -> None:
        self.queue = FakeQueue()
        self.session = PublishSession(
            ToQueue(self.queue.queue, anything, confirm_ids=confirm_ids), ANYBODY, SETTINGS, groups=groups
        )
        self.wire = FakeWire(self.session)

    def send(self, *messages: Inbound) -> None:
        self.session.receive(list(messages))

    @property
    def published(self) -> list[Message]:
        return [message for batch in self.queue.published for message in batch]


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


def test_the_messages_of_one_read_are_published_in_one_call(publisher: Publisher) -> None:
    publisher.send(binary(b"1"), text('{"message":"2"}'), text(""), text("3"), text("{}"), binary(b"4"))
    assert [[message.body for message in batch] for batch in publisher.queue.published] == [[b"1", b"2", b"3", b"4"]]


def test_nothing_is_confirmed_before_its_commit(publisher: Publisher) -> None:
    publisher.send(binary(b"1"), binary(b"2"), binary(b"3"))
    assert publisher.wire.take() == []
    publisher.queue.done[0](None, 1, 2)
    assert publisher.wire.take() == ["", ""]
    publisher.queue.done[0](None, 3, 1)
    assert publisher.wire.take() == [""]


def test_confirms_can_carry_ids() -> None:
    publisher = Publisher(confirm_ids=True)
    publisher.send(binary(b"1"), binary(b"2"))
    publisher.queue.done[0](None, 7, 2)
    assert publisher.wire.take_json() == [{"id": "uid-7"}, {"id": "uid-8"}]


def test_a_refusal_does_not_overtake_a_confirm(publisher: Publisher) -> None:
    publisher.send(binary(b"1"))
    publisher.send(binary(b"2"), binary(b"3"))
    publisher.queue.done[1](QueueFull("full"), 0, 2)
    assert publisher.wire.take() == []
    publisher.queue.done[0](None, 1, 1)
    full = {"code": 507, "error": "full"}
    assert [item and orjson.loads(item) for item in publisher.wire.take()] == ["", full, full]
    assert publisher.wire.code is None


def test_metadata_and_options_apply_to_the_next_frame(publisher: Publisher) -> None:
    publisher.send(text('{"Content-Type":"a/b","x-msg-x-a":"1","ttl":1.5,"delay":2,"groups":"g,h"}'), text("body"))
    [message] = publisher.published
    assert headers.decode(message.headers) == [("content-type", "a/b"), ("x-msg-x-a", "1")]
    assert (message.body, message.ttl_ms, message.delay_ms, message.groups) == (b"body", 1500, 2000, ("g", "h"))


def test_frame_after_metadata_is_always_payload(publisher: Publisher) -> None:
    publisher.send(text("{}"), text('{"message":"no"}'), text(""), text(""))
    assert [message.body for message in publisher.published] == [b'{"message":"no"}', b""]


def test_metadata_and_payload_can_be_split_over_reads(publisher: Publisher) -> None:
    publisher.send(text('{"Content-Type":"a/b"}'))
    assert publisher.queue.published == []
    publisher.send(binary(b"body"))
    assert publisher.published[0].headers == b"content-type:a/b\n"


def test_an_empty_message_is_a_message(publisher: Publisher) -> None:
    publisher.send(text('{"message":""}'), binary(b""))
    assert [message.body for message in publisher.published] == [b"", b""]


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ('"message":"aGk=","encoding":"base64"', b"hi"),
        ('"message":"6869","encoding":"hex"', b"hi"),
        ('"message":"é","encoding":"utf8"', "é".encode()),
    ],
)
def test_a_body_may_be_encoded(publisher: Publisher, fields: str, body: bytes) -> None:
    publisher.send(text("{" + fields + "}"))
    assert publisher.published[0].body == body


def test_connection_groups_are_the_default_of_messages() -> None:
    publisher = Publisher(groups=("g",))
    publisher.send(binary(b"1"), text('{"message":"2"}'), text('{"message":"3","groups":["h"]}'), text(), binary(b"4"))
    assert [message.groups for message in publisher.published] == [("g",), ("g",), ("h",), ("g",)]


@pytest.mark.parametrize(
    "frame",
    [
        *("5", "[]", "null", '"text"', "not json", "{", DEEP, '{"a":' * 2000, "[1,2", "NaN", '{"message":"\\ud800"}'),
        *('{"messag":"x"}', '{"ttl":1,"colour":"red"}', '{"ackId":"a.1"}', '{"token":5}'),
    ],
)
def test_stray_frame_is_400_and_close(publisher: Publisher, frame: str) -> None:
    publisher.send(text(frame))
    [error] = publisher.wire.take_json()
    assert error["code"] == 400 and error["error"]
    assert publisher.wire.code == 1000
    assert publisher.published == []


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        *((400, [text(frame)]) for frame in (
            '{"message":5}', '{"message":null}', '{"message":{}}', '{"message":"?","encoding":"base64"}',
            '{"message":"","encoding":"rot13"}', '{"message":"","encoding":5}', '{"message":"","colour":"red"}',
        )),
        *((400, [text(frame), binary(b"{}")]) for frame in (
            '{"ttl":3601}', '{"ttl":"x"}', '{"delay":-1}', '{"delay":true}', '{"groups":5}', '{"x-a":1}',
            '{"x-a":"\\n"}', '{"Content-Type":null}', '{"Idempotency-Key":5}',
        )),
        *((413, frames) for frames in (
            [binary(b"x" * 501)], [text(), text("x" * 501)], [text('{"ttl":1}'), binary(b"x" * 501)],
            [text('{"message":"%s"}' % ("x" * 501))],
        )),
    ],
)  # fmt: skip
def test_a_refused_message_gets_its_error_in_place_of_its_confirm(
    publisher: Publisher, code: int, refused: list[Inbound]
) -> None:
    """It ended the connection, and messages behind one that the queue refused were stored, but not confirmed."""
    publisher.send(binary(b"1"), *refused, *refused, text('{"message":"2"}'), binary(b"3"))
    publisher.send(*refused, binary(b"4"))
    assert [message.body for message in publisher.published] == [b"1", b"2", b"3", b"4"]
    assert publisher.wire.take() == [], "an answer overtook that of the first message"
    for done, count in zip(publisher.queue.done, (1, 2, 1), strict=True):
        done(None, 1, count)
    answers = [answer and orjson.loads(answer)["code"] for answer in publisher.wire.take()]
    assert answers == ["", code, code, "", "", code, ""]
    assert publisher.wire.code is None


def test_error_waits_for_earlier_confirms(publisher: Publisher) -> None:
    publisher.send(binary(b"1"), text("not json"), binary(b"2"))
    publisher.send(binary(b"3"))
    assert [message.body for message in publisher.published] == [b"1"]
    assert publisher.wire.code is None
    publisher.queue.done[0](None, 1, 1)
    assert publisher.wire.take() == ["", '{"code":400,"error":"Payload must be binary or a JSON object."}']
    assert publisher.wire.code == 1000


def test_message_of_the_maximum_size_is_accepted(publisher: Publisher) -> None:
    publisher.send(binary(b"x" * 500), text('{"message":"%s"}' % ("x" * 500)))
    assert len(publisher.published) == 2


@pytest.mark.parametrize("error", [Unavailable("the disk failed"), SchemaViolation("no"), KeyReused("no")])
def test_engine_refusal_is_reported_per_message(publisher: Publisher, error: CurbstoneError) -> None:
    publisher.send(*map(binary, (b"1", b"2", b"3")))
    publisher.queue.done[0](error, 0, 2)
    publisher.queue.done[0](None, 1, 1)
    refused = orjson.dumps({"code": status_of(error), "error": str(error)}).decode()
    assert publisher.wire.take() == [refused, refused, ""]
    assert publisher.wire.code is None


@pytest.mark.parametrize(("error", "code"), [(NoSuchQueue("gone"), 1000), (NotAllowed("no longer"), 1008)])
def test_the_connection_ends_with_its_queue_or_its_right(
    publisher: Publisher, error: CurbstoneError, code: int
) -> None:
    publisher.send(binary(b"1"), binary(b"2"))
    publisher.queue.done[0](error, 0, 2)
    assert publisher.wire.take_json() == [{"code": status_of(error), "error": str(error)}]
    assert publisher.wire.code == code


def test_idle_producer_is_notified_of_a_deleted_queue(publisher: Publisher) -> None:
    publisher.queue.is_closed = True
    publisher.queue.watchers[0]()
    assert publisher.wire.take_json()[0]["code"] == 404
    assert publisher.wire.code == 1000
    assert publisher.queue.watchers == []


def test_a_producer_far_ahead_is_not_read_until_half_is_confirmed(publisher: Publisher) -> None:
    publisher.send(*[binary(b"m")] * (UNCONFIRMED_MAX + 1))
    assert publisher.wire.is_held
    publisher.queue.done[0](None, 1, UNCONFIRMED_MAX // 2)
    assert publisher.wire.is_held
    publisher.queue.done[0](None, UNCONFIRMED_MAX // 2 + 1, 1)
    assert not publisher.wire.is_held


def test_a_producer_that_reads_no_confirms_is_not_read(publisher: Publisher) -> None:
    publisher.session.pause()
    assert publisher.wire.is_held
    publisher.session.resume()
    assert not publisher.wire.is_held


def test_stop_answers_accepted_messages_and_accepts_no_more(publisher: Publisher) -> None:
    publisher.send(binary(b"1"))
    publisher.session.stop()
    publisher.send(binary(b"2"))
    assert publisher.wire.code is None
    publisher.queue.done[0](None, 1, 1)
    assert publisher.wire.take() == [""]
    assert publisher.wire.code == 1001
    assert len(publisher.published) == 1


def test_confirm_after_the_end_is_dropped(publisher: Publisher) -> None:
    publisher.send(binary(b"1"))
    publisher.session.closed()
    publisher.queue.done[0](None, 1, 1)
    assert publisher.wire.take() == []


def picky(publish: Any) -> Any:
    """Return what publishes, but for messages that say they are bad: as an engine does that lacks what they ask for."""

    def refusing(*given: Any, **more: Any) -> None:
        messages = next(each for each in given if isinstance(each, list))
        if any(b"x-msg-x-bad" in message.headers for message in messages):
            raise NotSupported("no such thing here")
        publish(*given, **more)

    return refusing


def test_immediate_refusal_does_not_overtake_earlier_answers(publisher: Publisher) -> None:
    """Where an engine lacked idempotency keys, or ordering keys, the connection broke without a word."""
    publisher.queue.publish = picky(publisher.queue.publish)  # type: ignore[method-assign]
    publisher.session = PublishSession(ToQueue(publisher.queue.queue, anything), ANYBODY, SETTINGS)
    publisher.wire = FakeWire(publisher.session)
    publisher.send(
        *(text(f'{{"message":"{number}"{bad}}}') for number, bad in enumerate(["", ',"x-msg-x-bad":"1"', ""]))
    )
    assert [[message.body for message in batch] for batch in publisher.queue.published] == [[b"0"], [b"2"]]
    for done in publisher.queue.done:
        done(None, 1, 1)
    assert publisher.wire.take() == ["", '{"code":501,"error":"no such thing here"}', ""]
    assert publisher.wire.code is None
