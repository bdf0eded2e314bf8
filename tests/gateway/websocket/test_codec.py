"""WebSocket frames, whole, byte by byte and in one piece with others."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterable

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from curbstone.gateway.websocket.codec import Frames, Inbound, binary_frame, text_frame

BYTES_MAX = 70_000
CLOSE = Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True)


def masked(opcode: Opcode, data: bytes, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def fed(*pieces: bytes) -> tuple[Frames, list[Inbound]]:
    frames = Frames(BYTES_MAX)
    return frames, [message for piece in pieces for message in frames.receive(piece)]


def sent(output: bytes) -> list[tuple[Opcode, bytes]]:
    client = Protocol(Side.CLIENT, state=State.OPEN, max_size=None)
    client.receive_data(output)
    return [(event.opcode, bytes(event.data)) for event in client.events_received() if isinstance(event, Frame)]


def one_by_one(data: bytes) -> Iterable[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


STREAM = [
    (masked(Opcode.TEXT, b""), [Inbound(True, b"")]),
    (masked(Opcode.BINARY, b""), [Inbound(False, b"")]),
    (masked(Opcode.TEXT, "é".encode()), [Inbound(True, "é".encode())]),
    (masked(Opcode.BINARY, bytes(range(256))), [Inbound(False, bytes(range(256)))]),
    (masked(Opcode.PING, b"ping"), []),
    (masked(Opcode.BINARY, b"x" * 125), [Inbound(False, b"x" * 125)]),
    (masked(Opcode.BINARY, b"y" * 126), [Inbound(False, b"y" * 126)]),
    (masked(Opcode.TEXT, b"fra", fin=False), []),
    (masked(Opcode.PONG, b""), []),
    (masked(Opcode.CONT, b"gme", fin=False), []),
    (masked(Opcode.CONT, b"nt"), [Inbound(True, b"fragment")]),
    (masked(Opcode.BINARY, b"z" * 65_536), [Inbound(False, b"z" * 65_536)]),
    (masked(Opcode.BINARY, b"", fin=False), []),
    (masked(Opcode.CONT, b""), [Inbound(False, b"")]),
    (b"\x82\xfe\0\x01\0\0\0\0a", [Inbound(False, b"a")]),  # lengths longer than they need to be
    (b"\x82\xff\0\0\0\0\0\0\0\0\0\0\0\0", [Inbound(False, b"")]),
    (masked(Opcode.TEXT, b"end"), [Inbound(True, b"end")]),
]
WHOLE = b"".join(data for data, _ in STREAM)
EXPECTED = [message for _, messages in STREAM for message in messages]


def test_frames_are_read_one_after_the_other() -> None:
    assert fed(*(data for data, _ in STREAM))[1] == EXPECTED


def test_frames_are_read_in_one_piece() -> None:
    frames, messages = fed(WHOLE)
    assert messages == EXPECTED
    assert sent(frames.take_pong()) == [(Opcode.PONG, b"ping")]
    assert frames.take_output() == frames.take_pong() == b""


def test_only_the_latest_ping_gets_a_pong() -> None:
    frames, _ = fed(*[masked(Opcode.PING, b"%d" % number) for number in range(1000)])
    assert sent(frames.take_pong()) == [(Opcode.PONG, b"999")]
    frames.receive(masked(Opcode.PING, b""))
    assert sent(frames.take_pong()) == [(Opcode.PONG, b"")]
    assert frames.take_pong() == b""


def test_ping_after_close_is_not_answered() -> None:
    frames, _ = fed(masked(Opcode.PING, b"before"))
    frames.close(1000, "")
    for piece in (masked(Opcode.PING, b"behind"), masked(Opcode.PING, b"it")):
        frames.receive(piece)
    assert frames.take_pong() == b""
    assert sent(frames.take_output()) == [(Opcode.CLOSE, b"\x03\xe8")]
    frames.receive(masked(Opcode.PING, b"again"))
    assert frames.take_output() == b""


@pytest.mark.parametrize(
    ("pieces", "unfinished"),
    [
        ([masked(Opcode.BINARY, b"a")], 0),
        ([masked(Opcode.BINARY, b"b" * 1000)[:700]], 700),
        ([masked(Opcode.BINARY, b"", fin=False)], 1),
        ([masked(Opcode.BINARY, b"ccc", fin=False), masked(Opcode.CONT, b"cc", fin=False)], 6),
        ([masked(Opcode.BINARY, b"ccc", fin=False), masked(Opcode.PING, b"p"), masked(Opcode.CONT, b"cc")], 0),
        ([masked(Opcode.BINARY, b"ccc", fin=False) + masked(Opcode.CONT, b"c" * 20)[:9]], 13),
        ([masked(Opcode.PING, b"d" * 100)[:50]], 50),
    ],
)
def test_incomplete_bytes_are_counted(pieces: list[bytes], unfinished: int) -> None:
    assert fed(*pieces)[0].unfinished_bytes == unfinished


def test_pings_within_a_message_do_not_restart_its_deadline() -> None:
    frames, _ = fed(masked(Opcode.PING, b""))
    assert frames.is_another
    begun, more = masked(Opcode.BINARY, b"a", fin=False), masked(Opcode.CONT, b"", fin=False)
    for piece in (begun, masked(Opcode.PING, b""), more):
        frames.receive(piece)
        assert not frames.is_another
    frames.receive(masked(Opcode.CONT, b""))
    assert frames.is_another


def test_peer_close_after_our_close_is_found_for_any_split() -> None:
    late = WHOLE + b"\x81\x01a" + masked(Opcode.BINARY, b"x" * BYTES_MAX) + CLOSE
    for pieces in ([late], [late[:100_000], late[100_000:]], [late[at : at + 7] for at in range(0, len(late), 7)]):
        frames, _ = fed(masked(Opcode.BINARY, b"cut off")[:4])
        frames.close(1000, "")
        assert not frames.peer_closed
        for piece in [b"\0" * 9, *pieces]:
            assert frames.receive(piece) == []
        assert frames.peer_closed


def test_our_close_drops_an_incomplete_message() -> None:
    big = masked(Opcode.BINARY, b"b" * 60_000)
    frames, _ = fed(big[:50_000])
    frames.close(1008, "too slow")
    assert frames.unfinished_bytes == 0
    assert frames.receive(big[50_000:] + CLOSE) == []
    assert frames.peer_closed


def test_frames_are_read_byte_by_byte() -> None:
    assert fed(*one_by_one(WHOLE))[1] == EXPECTED


@pytest.mark.parametrize("at", range(1, 60))
def test_frames_are_read_when_cut_anywhere(at: int) -> None:
    assert fed(WHOLE[:at], WHOLE[at:])[1] == EXPECTED


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_encoded_frames_are_read_by_another_implementation(size: int) -> None:
    data = b"a" * size
    assert sent(text_frame(data) + binary_frame(data)) == [(Opcode.TEXT, data), (Opcode.BINARY, data)]


@pytest.mark.parametrize("trailing", [b"", masked(Opcode.TEXT, b"late")], ids=["nothing", "more"])
def test_the_peers_close_is_answered_and_ends_everything(trailing: bytes) -> None:
    frames, messages = fed(masked(Opcode.TEXT, b"a") + CLOSE + trailing)
    assert messages == [Inbound(True, b"a")]
    assert frames.is_closed and frames.peer_closed
    assert sent(frames.take_output()) == [(Opcode.CLOSE, b"\x03\xe8")]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x01a", 1002),  # not masked
        (b"\xc1\x80\0\0\0\0", 1002),  # a reserved bit
        (b"\x83\x80\0\0\0\0", 1002),  # an unknown opcode
        (b"\x80\x80\0\0\0\0", 1002),  # nothing to continue
        (b"\x89\xfe\x00\x7e\0\0\0\0" + b"p" * 126, 1002),  # a long ping
        (b"\x09\x80\0\0\0\0", 1002),  # a ping in fragments
        (masked(Opcode.TEXT, b"a", fin=False) + masked(Opcode.TEXT, b"b"), 1002),
        (masked(Opcode.TEXT, b"a", fin=False) + masked(Opcode.BINARY, b"b", fin=False), 1002),
        (masked(Opcode.CONT, b"a", fin=False), 1002),
        (masked(Opcode.TEXT, b"\xff"), 1007),
        (masked(Opcode.TEXT, b"\xc3", fin=False) + masked(Opcode.CONT, b"("), 1007),
        (masked(Opcode.CLOSE, b"\x03"), 1002),
    ],
    ids=range(12),  # masks are random, and each worker must find the same names
)
def test_a_peer_that_breaks_the_protocol_gets_an_error_and_is_closed(data: bytes, code: int) -> None:
    for pieces in ([data], one_by_one(data)):
        frames, messages = fed(*pieces)
        assert messages == []
        assert frames.is_closed
        [(opcode, payload)] = sent(frames.take_output())
        assert (opcode, int.from_bytes(payload[:2], "big")) == (Opcode.CLOSE, code)


@pytest.mark.parametrize("size", [BYTES_MAX + 1, 1 << 40, (1 << 63) - 1])
def test_message_above_the_limit_is_detected_by_its_header(size: int) -> None:
    head = b"\x82\xff" + size.to_bytes(8, "big")
    frames, _ = fed(masked(Opcode.TEXT, b"a") + head)
    assert frames.too_big and not frames.is_closed


def test_message_above_the_limit_is_skipped_until_the_peer_close() -> None:
    big = masked(Opcode.BINARY, b"b" * (BYTES_MAX + 1))
    frames, _ = fed(big[:100])
    assert frames.too_big
    frames.close(1009, "too big")
    for piece in (big[100:500], big[500:] + masked(Opcode.TEXT, b"late")):
        assert frames.receive(piece) == []
        assert not frames.peer_closed
    frames.receive(CLOSE)
    assert frames.peer_closed


def test_fragments_above_the_limit_together_are_too_big() -> None:
    half = b"h" * (BYTES_MAX // 2 + 1)
    frames, messages = fed(masked(Opcode.BINARY, half, fin=False) + masked(Opcode.CONT, half))
    assert frames.too_big and messages == []


def test_peer_close_is_found_after_a_split_frame() -> None:
    late = masked(Opcode.BINARY, b"late")
    frames, _ = fed(late[:5])
    frames.close(1000, "")
    assert sent(frames.take_output()) == [(Opcode.CLOSE, b"\x03\xe8")]
    assert frames.receive(late[5:] + CLOSE) == []
    assert frames.peer_closed


def test_closing_twice_sends_one_close_frame() -> None:
    frames, _ = fed(masked(Opcode.TEXT, b"a"))
    frames.close(1000, "first")
    frames.close(1001, "second")
    assert len(sent(frames.take_output())) == 1


def test_thousand_frames_in_one_piece_are_parsed_once() -> None:
    assert len(fed(masked(Opcode.BINARY, b"m" * 100) * 1000)[1]) == 1000


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1000])
def test_masks_are_removed_without_the_compiled_function_of_the_library(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setitem(sys.modules, "websockets.speedups", None)
    spec = importlib.util.find_spec("curbstone.gateway.websocket.codec")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data, mask = random.Random(size).randbytes(size), b"\x01\x80\x00\xff"
    assert module.apply_mask.__module__ == module.__name__
    assert module.apply_mask(data, mask) == bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))
