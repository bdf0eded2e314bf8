"""The frames the load is made of, and the reading of the answers in bulk."""

import json

import pytest

from bench import http_load, mqks_load, queues_load, stomp_load, ws_load
from bench.check import bodies, body
from bench.stomp_load import Account, Frames, Receipts, read_messages, read_receipts, receipt_id
from bench.web_wire import frame_at, frame_head
from bench.wire import BenchError

MESSAGES = b"".join(
    b"MESSAGE\nsubscription:0\nmessage-id:u-%d\nack:%d\ncontent-length:20\nredelivered:false\n\n%s\0\n"
    % (seq, seq, body(0, seq, 20))
    for seq in range(5)
)


def test_sends_are_whole_stomp_frames_of_one_length() -> None:
    frames = stomp_load.send_frames("/queue/a", 2, 5, 3, 30, b"persistent:true\n")
    assert len(frames) % 3 == 0
    first = frames[: len(frames) // 3]
    assert first == (
        b"SEND\ndestination:/queue/a\ncontent-length:30\npersistent:true\nreceipt:%s\n\n%s\0"
        % (receipt_id(2, 5), body(2, 5, 30))
    )
    assert frames.count(b"\0") == 3


def test_last_ack_can_request_a_receipt() -> None:
    assert stomp_load.ack_frames([b"a", b"b"]) == b"ACK\nid:a\n\n\0ACK\nid:b\n\n\0"
    assert stomp_load.ack_frames([b"a", b"b"], last=True) == b"ACK\nid:a\n\n\0ACK\nid:b\nreceipt:last-ack\n\n\0"


@pytest.mark.parametrize("step", [1, 7, 50, 10_000])
def test_parsed_messages_do_not_depend_on_splitting(step: int) -> None:
    incoming = Frames()
    found = []
    for at in range(0, len(MESSAGES), step):
        found += read_messages(incoming.complete(MESSAGES[at : at + step]))
    assert found == [(b"%d" % seq, one) for seq, one in enumerate(bodies(0, 0, 5, 20))]


def test_an_error_among_messages_ends_the_run() -> None:
    with pytest.raises(BenchError, match="ERROR"):
        read_messages(MESSAGES + b"ERROR\nmessage:no\n\nbody\0")


def test_an_error_among_receipts_ends_the_run() -> None:
    with pytest.raises(BenchError, match="queue is full"):
        read_receipts(b"RECEIPT\nreceipt-id:1\n\n\0\nERROR\nreceipt-id:2\nmessage:queue is full\n\n\0")


def test_receipts_count_in_order_and_out_of_order() -> None:
    ids = [receipt_id(0, seq) for seq in range(100, 106)]
    receipts = Receipts(0, 100, 6)
    assert receipts.take(ids[:2]) == 2
    assert receipts.take([ids[3]]) == 0
    assert receipts.take([ids[2]]) == 2
    assert receipts.take(ids[4:]) == 2


def test_repeated_receipt_confirms_nothing_more() -> None:
    receipts = Receipts(0, 0, 3)
    assert receipts.take([receipt_id(0, 0)]) == 1
    assert receipts.take([receipt_id(0, 0)]) == 0


def test_websocket_publishes_are_masked_frames_of_one_length() -> None:
    frames = ws_load.publish_frames(0, 0, 2, 300)
    head = b"\x81\x80\0\0\0\0" + b"\x82\xfe" + (300).to_bytes(2) + b"\0\0\0\0"
    assert frames == head + body(0, 0, 300) + head + body(0, 1, 300)


def test_websocket_acks_of_different_lengths_are_separate_frames() -> None:
    expected = b"".join(
        ws_load.client_frame(ws_load.TEXT, b'{"ackId":"%s"}' % ack) for ack in (b"8", b"9", b"10", b"11")
    )
    assert ws_load.ack_frames([b"8", b"9", b"10", b"11"]) == expected
    assert ws_load.ack_frames([b"8", b"9"]) == expected[: expected.index(b"\x81", 30)]
    assert ws_load.ack_frames([]) == b""


class Stream:
    """Stands in for a Wire: gives out the pieces it was made of, keeps what is sent."""

    def __init__(self, data: bytes, step: int) -> None:
        self.pieces = [data[at : at + step] for at in range(0, len(data), step)]
        self.sent = b""

    def receive(self) -> bytes:
        return self.pieces.pop(0)

    def send(self, data: bytes | memoryview) -> None:
        self.sent += data


def frame(opcode: int, payload: bytes) -> bytes:
    return ws_load.server_head(opcode, len(payload)) + payload


def deliveries(size: int, *, ping: bool) -> bytes:
    data = b""
    for seq in range(1, 6):
        metadata = b'{"Content-Type":"","timestamp":1,"ackId":"%d","id":"%s"}' % (seq, b"x" * 40 * seq)
        data += frame(ws_load.TEXT, metadata)
        if ping and seq == 3:
            data += frame(ws_load.PING, b"hi")
        data += frame(ws_load.BINARY, body(0, seq, size))
    return data


@pytest.mark.parametrize("ping", [False, True])
@pytest.mark.parametrize("step", [1, 13, 200, 100_000])
@pytest.mark.parametrize("size", [20, 125, 126, 1024])
def test_parsed_websocket_deliveries_do_not_depend_on_splitting(size: int, step: int, ping: bool) -> None:
    stream = Stream(deliveries(size, ping=ping), step)
    reader = ws_load.Deliveries(stream, size)
    found = []
    while stream.pieces:
        found += reader.receive()
    assert found == [(b"%d" % seq, body(0, seq, size)) for seq in range(1, 6)]
    assert stream.sent == (ws_load.client_frame(ws_load.PONG, b"hi") if ping else b"")


@pytest.mark.parametrize("step", [1, 3, 100])
def test_websocket_confirms_around_a_ping_are_counted(step: int) -> None:
    stream = Stream(ws_load.CONFIRM * 5 + frame(ws_load.PING, b"") + ws_load.CONFIRM * 4, step)
    confirms = ws_load.Confirms(stream)
    assert sum(confirms.receive() for _ in range(len(stream.pieces))) == 9


def test_a_refused_websocket_publish_ends_the_run() -> None:
    stream = Stream(ws_load.CONFIRM + frame(ws_load.TEXT, b'{"code":507,"error":"full"}'), 1000)
    with pytest.raises(BenchError, match="507"):
        ws_load.Confirms(stream).receive()


def test_posts_are_requests_of_one_length() -> None:
    requests = http_load.post_requests(("127.0.0.1", 80), "default/q", 1, 2, 50)
    first = requests[: len(requests) // 2]
    assert first.startswith(b"POST /v2/default/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1:80\r\n")
    assert first.endswith(b"Content-Length: 50\r\n\r\n" + body(1, 0, 50))


@pytest.mark.parametrize(
    ("answer", "created"),
    [
        (b"HTTP/1.1 201 Created\r\nx-msg-id: a\r\n", None),
        (b"HTTP/1.1 201 Created\r\nx-msg-id: a\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}", False),
        (b"HTTP/1.1 507 Insufficient Storage\r\ncontent-length: 0\r\n\r\n", False),
    ],
)
def test_only_an_empty_201_confirms_a_post(answer: bytes, created: bool | None) -> None:
    assert http_load.is_created(answer) is created


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_parsed_stomp_over_websocket_does_not_depend_on_splitting(step: int) -> None:
    frames = [frame(0x82, b"RECEIPT"), frame(ws_load.PING, b"hi"), frame(0x81, b"x" * 300), frame(0x82, b"y" * 70_000)]
    data = b"".join(frames)
    found, at = [], 0
    for end in range(step, len(data) + step, step):
        while (one := frame_at(data[:end], at)) is not None:
            found.append(one[:2])
            at = one[2]
    assert found == [(0x82, b"RECEIPT"), (ws_load.PING, b"hi"), (0x81, b"x" * 300), (0x82, b"y" * 70_000)]


@pytest.mark.parametrize("size", [125, 126, 65_535, 65_536])
def test_websocket_frame_headers_have_the_length(size: int) -> None:
    assert frame_at(ws_load.server_head(0x82, size) + b"x" * size, 0) == (
        0x82,
        b"x" * size,
        len(ws_load.server_head(0x82, size)) + size,
    )
    assert frame_head(0x82, size) == ws_load.client_head(0x82, size)


def test_a_batch_is_a_json_array_of_the_bodies() -> None:
    requests = http_load.batch_requests(("127.0.0.1", 80), "default/q", 1, 2, 50)
    _, _, text = requests[: len(requests) // 2].partition(b"\r\n\r\n")
    assert [one["message"].encode() for one in json.loads(text)] == bodies(1, 0, http_load.BATCH, 50)


def test_frames_to_many_queues_alternate_and_name_the_queue_in_the_body() -> None:
    job = queues_load.QueuesJob(Account(("127.0.0.1", 1)), ["qa", "qb"], 2, 30, 10)
    frames = queues_load.frames_in_turn(job).split(b"\0")[:-1]
    assert [one.partition(b"\n\n")[2] for one in frames] == [
        body(0, 0, 30),
        body(1, 0, 30),
        body(0, 1, 30),
        body(1, 1, 30),
    ]
    assert [one.splitlines()[1] for one in frames] == [b"destination:/queue/qa", b"destination:/queue/qb"] * 2


def test_frames_to_many_queues_have_the_headers_that_a_peer_needs() -> None:
    account = Account(("127.0.0.1", 1), send_headers=b"persistent:true\n")
    frames = queues_load.frames_in_turn(queues_load.QueuesJob(account, ["qa", "qb"], 2, 30, 10)).split(b"\0")[:-1]
    assert [one.splitlines()[3] for one in frames] == [b"persistent:true"] * 4


def test_mqks_acks_request_a_confirm_of_the_last() -> None:
    assert mqks_load.ack_lines([b"1", b"2"]) == b"a ack c 1\na ack c 2\n"
    assert mqks_load.ack_lines([b"1", b"2"], last=True) == b"a ack c 1\nlast ack --confirm c 2\n"
