"""The bytes of the client's codecs: whole, byte by byte, and cut anywhere, they mean the same."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone_client import websocket, wire
from curbstone_client.errors import CantConnect, NotAllowed

CONNECTED = b"CONNECTED\nversion:1.2\nheart-beat:0,0\n\n\0\n"
RECEIPTS = (
    b"RECEIPT\nreceipt-id:1.1\n\n\0\nRECEIPT\nreceipt-id:1.2\nx-msg-id:u-7\n\n\0\nRECEIPT\nreceipt-id:2.1\n\n\0\n"
)
# A body that looks like the receipts in front of it.
BODY = b"a\n\n\0\nRECEIPT\nreceipt-id:1.9\n\n\0\n"
_HEAD = b"subscription:1\nmessage-id:u-1\nack:1.1.0\ncontent-length:%d\nx:a\\cb" % len(BODY)
MESSAGE = b"MESSAGE\n%b\n\n%b\0\n" % (_HEAD, BODY)
EMPTY = b"MESSAGE\nsubscription:1\nmessage-id:u-2\ncontent-length:0\n\n\0\n"
ERROR = b"ERROR\nmessage:no\n\nwhy\0\n"
STREAM = CONNECTED + b"\n" + RECEIPTS + MESSAGE + RECEIPTS + EMPTY + b"\n\n" + MESSAGE + ERROR


def flat(pieces: list[bytes]) -> list[object]:
    """What a parser makes of these pieces, with runs of receipts taken apart."""
    parser = wire.Parser()
    found: list[object] = []
    for piece in pieces:
        for item in parser.feed(piece):
            if isinstance(item, wire.Receipts):
                found += item.pieces
            elif isinstance(item, wire.Other):
                found.append((item.command, item.headers, item.body))
            else:
                found.append(item)
    return found


def test_a_stream_is_cut_into_its_frames() -> None:
    receipts = [b"1.1", b"1.2\nx-msg-id:u-7", b"2.1"]
    (connected, *frames, error) = flat([STREAM])
    assert connected == ("CONNECTED", {"version": "1.2", "heart-beat": "0,0"}, b"")
    assert frames[:3] == frames[4:7] == receipts
    assert frames[3] == frames[8] == (MESSAGE[8 : MESSAGE.index(b"\n\n")], BODY)
    assert frames[7] == (EMPTY[8 : EMPTY.index(b"\n\n")], b"")
    assert error == ("ERROR", {"message": "no"}, b"why")


def test_frames_do_not_depend_on_splitting() -> None:
    whole = flat([STREAM])
    assert flat([STREAM[i : i + 1] for i in range(len(STREAM))]) == whole
    for cut in range(1, len(STREAM)):
        assert flat([STREAM[:cut], STREAM[cut:]]) == whole


@pytest.mark.parametrize(
    "data", [b"NONSENSE\n\n\0", b"MESSAGE\ncontent-length:x\n\n\0", b"MESSAGE\ncontent-length:1\n\nab\0"]
)
def test_invalid_frame_is_reported(data: bytes) -> None:
    with pytest.raises(wire.WireError, match="the server sent"):
        wire.Parser().feed(data)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_headers_round_trip(text: str) -> None:
    assert wire.parse_head(wire.head("X", {text: text}).partition(b"\n")[2]) == {text: text}


def test_connect_is_not_escaped_and_takes_no_line_breaks() -> None:
    assert b"passcode:a:b\\" in wire.connect({"passcode": "a:b\\"})
    for bad in ("a\nb", "a\0"):
        with pytest.raises(ValueError, match="line breaks"):
            wire.connect({"passcode": bad})


# ---------------------------------------------------------------- WebSocket


def server_frame(payload: bytes, first: int = 0x82) -> bytes:
    """A frame as a server writes it."""
    size = len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 65536:
        return bytes((first, 126)) + size.to_bytes(2, "big") + payload
    return bytes((first, 127)) + size.to_bytes(8, "big") + payload


def unmasked(data: bytes) -> list[tuple[int, bytes]]:
    """The frames that a client wrote, by RFC 6455 and slowly."""
    found = []
    while data:
        size, start = data[1] & 127, 2
        assert data[1] & 128, "a client's frame has a mask"
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        mask, payload = data[start : start + 4], data[start + 4 : start + 4 + size]
        found.append((data[0], bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))))
        data = data[start + 4 + size :]
    return found


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 200_001])
def test_encoding_round_trips(size: int) -> None:
    data = os.urandom(size)
    frames = unmasked(websocket.encode(data))
    assert {first for first, _ in frames} == {0x82}
    assert b"".join(payload for _, payload in frames) == data


def test_websocket_stream_does_not_depend_on_splitting() -> None:
    large = os.urandom(70_000)
    parts = [server_frame(b"one"), server_frame(b"hi", 0x89), server_frame(b"t" * 200, 0x81), server_frame(b"")]
    whole = b"".join([*parts, server_frame(b"cut", 0x02), server_frame(b"ting", 0x80), server_frame(large)])
    reported = b"one" + b"t" * 200 + b"cutting" + large
    for cut in [*range(1, 300), len(whole) - 1]:
        decoder = websocket.Decoder()
        assert decoder.feed(whole[:cut]) + decoder.feed(whole[cut:]) == reported
        assert unmasked(b"".join(decoder.replies)) == [(0x8A, b"hi")]


def test_close_frame_has_code_and_reason() -> None:
    decoder = websocket.Decoder()
    decoder.feed(server_frame((1008).to_bytes(2, "big") + b"too slow", 0x88))
    assert decoder.close_reason == "too slow (close code 1008)"
    assert unmasked(b"".join(decoder.replies)) == [(0x88, (1008).to_bytes(2, "big"))]


def test_masked_server_frame_is_refused() -> None:
    with pytest.raises(websocket.BadFrame):
        websocket.Decoder().feed(websocket.encode(b"x"))


def test_handshake_leaves_following_bytes() -> None:
    key = b"dGhlIHNhbXBsZSBub25jZQ=="
    answer = b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    for cut in range(len(answer)):
        assert websocket.response(answer[:cut], key) is None
    assert websocket.response(answer + b"more", key) == b"more"
    with pytest.raises(CantConnect, match="wrong Sec-WebSocket-Accept"):
        websocket.response(answer, b"other")


def test_refused_handshake_reports_the_server_response() -> None:
    with pytest.raises(NotAllowed, match="401 Unauthorized: log in"):
        websocket.response(b"HTTP/1.1 401 Unauthorized\r\n\r\nlog in", b"k")
    with pytest.raises(CantConnect, match="404"):
        websocket.response(b"HTTP/1.1 404 Not Found\r\n\r\n", b"k")
    with pytest.raises(CantConnect, match="not an HTTP server"):
        websocket.response(b"SSH-2.0\r\n\r\n", b"k")
