"""Whatever a client sends gets an answer or an error: never an exception, never silence for good."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.codec import Frames, Inbound
from curbstone.gateway.websocket.consume_session import ConsumeSession
from curbstone.gateway.websocket.publish_session import PublishSession
from curbstone.gateway.websocket.publish_targets import ToQueue
from curbstone.gateway.websocket.subscription import Subscription
from tests.gateway.fakes import ANYBODY, FakeQueue, FakeWire, anything, delivery

SETTINGS = GatewaySettings(max_message_size=200)

names = st.sampled_from(
    ["message", "ttl", "delay", "groups", "encoding", "Content-Type", "x-a", "x-msg-x-b", "x-dead-c"]
    + ["ackId", "ackToId", "nackId", "rejectId", "error", "other"]
)
# JSON allows lone surrogates as escapes, but nobody can write them as UTF-8.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(2**53), 2**53) | st.floats()
scalars = st.none() | st.booleans() | numbers | texts | st.sampled_from(["1", "2", "3"])
values: st.SearchStrategy[Any] = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner))
objects = st.dictionaries(names, values, max_size=4).map(orjson.dumps)
junk = values.map(orjson.dumps) | texts.map(str.encode) | st.just(b"")
frames = st.builds(Inbound, st.just(True), objects | junk) | st.builds(Inbound, st.just(False), st.binary(max_size=250))
reads = st.lists(st.lists(frames, min_size=1, max_size=5), max_size=5)


@given(reads)
def test_producer_gets_one_answer_per_message_in_order(reads: list[list[Inbound]]) -> None:
    queue = FakeQueue()
    session = PublishSession(ToQueue(queue.queue, anything, confirm_ids=True), ANYBODY, SETTINGS)
    wire = FakeWire(session)
    for read in reads:
        session.receive(read)
    seq = 1
    for batch, done in zip(queue.published, list(queue.done), strict=True):
        done(None, seq, len(batch))
        seq += len(batch)
    answers = wire.take_json()
    confirms = [answer for answer in answers if "error" not in answer]
    assert confirms == [{"id": f"uid-{number}"} for number in range(1, seq)]
    assert {frozenset(answer) for answer in answers if "error" in answer} <= {frozenset(("code", "error"))}
    frames = [frame for read in reads for frame in read]
    assert len(answers) <= len(frames)
    if wire.code is None:
        assert len(answers) >= len(frames) // 2, "a message got no answer"
    else:
        assert "error" in answers[-1]


@given(reads, st.booleans())
def test_a_consumer_settles_or_gets_one_error_and_a_close(reads: list[list[Inbound]], settles: bool) -> None:
    queue = FakeQueue()
    session = ConsumeSession(Subscription(queue.queue, settles=settles, limit=3), ANYBODY)
    wire = FakeWire(session)
    [consumer] = queue.consumers
    consumer.give(delivery(11), delivery(12), delivery(13))
    wire.take()
    for read in reads:
        session.receive(read)
    errors = wire.take_json()
    assert (wire.code is None) == (errors == [])
    assert [set(error) for error in errors] in ([], [{"code", "error"}])
    settled = [seq for call in consumer.calls if call[0] in ("ack", "nack", "reject") for seq in call[1]]
    assert len(settled) == len(set(settled))
    assert (consumer.calls[-1:] == [("close",)]) == (wire.code is not None)


# Begins of heads: random bytes alone are seldom frames.
heads = st.lists(st.sampled_from([0, 1, 2, 8, 9, 0x7E, 0x7F, 0x80, 0x81, 0x82, 0x88, 0x89, 0xFE, 0xFF]), max_size=12)


@given(st.lists(st.binary(max_size=40) | heads.map(bytes), max_size=10))
@example([b"\x08\xff\x00\x00\x00~", b"\x00\x80\x00\x00"])  # a long control frame whose length comes in pieces
@example([b"\x81", b"\x80\x89\xfe\xfe\xfe\x80\xfe", b"\x81"])  # half a length that is above the limit by itself
def test_bytes_that_are_no_frames_end_the_connection_or_wait_for_more(pieces: list[bytes]) -> None:
    whole, cut = Frames(100), Frames(100)
    messages = whole.receive(b"".join(pieces))
    assert [message for piece in pieces for message in cut.receive(piece)] == messages
    assert (whole.is_closed, whole.too_big) == (cut.is_closed, cut.too_big)
