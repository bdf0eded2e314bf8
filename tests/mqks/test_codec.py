"""The pure parts: lines, requests, masks, and the words of consume and rebind."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.core.errors import BadRequest
from curbstone.mqks import arguments, codec
from curbstone.mqks.codec import LineReader
from curbstone.mqks.errors import RequestError
from curbstone.mqks.event_patterns import LOOK_TRIES, TRIES_MAX, EventPatterns


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=8), st.data())
def test_a_stream_gives_the_same_lines_wherever_it_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join([line + b"\n" for line in lines]) + b"begun"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    reader = LineReader(20)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == [(line, len(line) <= 20) for line in lines]


def test_overlong_line_is_skipped_without_memory() -> None:
    reader = LineReader(2000)
    for _ in range(1000):
        assert reader.feed(b"x" * 10_000) == []
    assert reader.overlong_bytes > 9_000_000
    assert reader.feed(b"\nnext\n") == [(b"x" * codec.HEAD_BYTES, False), (b"next", True)]
    assert reader.overlong_bytes == 0


def test_line_in_tiny_pieces_is_searched_once() -> None:
    reader = LineReader(1 << 20)
    started = time.process_time()
    for _ in range(300_000):
        reader.feed(b"x")
    (line,) = reader.feed(b"\n")
    assert len(line.text) == 300_000
    print(f"{time.process_time() - started:.2f} s")


@pytest.mark.parametrize(
    ("line", "request_id", "action", "rest", "confirm"),
    [
        (b"p1 ping hello world", b"p1", b"ping", b"hello world", False),
        (b"p1 ping hello \r", b"p1", b"ping", b"hello", False),
        (b"m publish e  two spaces", b"m", b"publish", b"e  two spaces", False),
        (b"m publish --confirm e d", b"m", b"publish", b"e d", True),
        (b"m publish e --confirm x", b"m", b"publish", b"e --confirm x", False),
        (b"m ping --confirm", b"m", b"ping", b"--confirm", False),
        (b"\xff\xfe ping \x80", b"\xff\xfe", b"ping", b"\x80", False),
    ],
)
def test_requests(line: bytes, request_id: bytes, action: bytes, rest: bytes, confirm: bool) -> None:
    assert codec.parse_request(line) == (request_id, action, rest, confirm)
    assert codec.request_id_of(line, 100) == request_id


@pytest.mark.parametrize("line", [b"", b"p3", b"p3 ping", b"p3 ping  ", b" ping x", b"\r"])
def test_request_needs_three_words(line: bytes) -> None:
    with pytest.raises(RequestError):
        codec.parse_request(line)
    assert codec.request_id_of(line, 100) == b"None"


def test_a_delivery_is_one_line() -> None:
    assert codec.delivery(b"c", b"m", b"e", 0, b"d d") == b"c ok m event=e d d\n"
    assert codec.delivery(b"c", b"m", b"e", 2, b"") == b"c ok m event=e,retry=2 \n"
    assert codec.delivery(b"c", b"m", b"e", 0, b"a\nb\tc\r\n") == rb"c ok m event=e a\nb\tc\r\n" + b"\n"


def test_message_id_of_the_publisher_round_trips() -> None:
    assert codec.names_in(codec.block_of("m:1\\", "a.b:c", {})) == (b"m:1\\", b"a.b:c")
    assert codec.names_in(b"content-type:text/plain\n") == (b"", b"")
    assert codec.names_in(b"x-msg-x-mqks-id:m\nx-msg-x-mqks-event:e\n") == (b"m", b"e"), "moved over HTTP"


@pytest.mark.parametrize("value", ["a b", "a\\nb", "\x01", "a\u2028b"])
def test_names_from_another_protocol_can_not_break_the_line(value: str) -> None:
    assert codec.names_in(f"mqks-id:{value}\nmqks-event:ok\n".encode()) == (b"", b"ok")


@pytest.mark.parametrize(
    ("mask", "event", "taken"),
    [
        ("*.updated", "user.updated", True),
        ("*.updated", "a.user.updated", False),
        ("document.*", "document.created", True),
        ("document.*", "document.", True),
        ("user.*.connected", "user.57e82b3931d9d614f0247ac7.connected", True),
        ("*.*.deleted", "category.subcategory.deleted", True),
        ("e3.*", "e3.1.u", False),
        ("*", "e", False),
        ("e", "e", False),
        ("e.x", "e.x", True),
        ("e.a*b*c", "e.aXbbYc", True),
        ("e.a*b*c", "e.ac", False),
        ("e.ab*b", "e.ab", False),
        ("e.**", "e.x", True),
        ("e.[a-z]", "e.b", False),
        ("e?x", "e.x", False),
    ],
)
def test_masks(mask: str, event: str, taken: bool) -> None:
    assert EventPatterns([mask]).take(event) is taken
    assert EventPatterns(["x.y", "*.*.*.*.*.*", mask, "*x*.*y"]).take(event) is taken


def test_mask_of_many_stars_is_fast() -> None:
    """As a regular expression this takes longer than the universe has."""
    assert not EventPatterns(["a." + "a*" * 50 + "b"]).take("a." + "a" * 10_000)


def test_many_masks_are_looked_up_together() -> None:
    masks = EventPatterns([f"*.e{n}.{tail}" for n in range(1000) for tail in ("*", "x", "x*")])
    assert [masks.take(f"a.e{n}.x") for n in (0, 999, 1000)] == [True, True, False]
    assert masks.tries < 50


@pytest.mark.parametrize("mask", ["a{}*.b", "*event*{}.b", "*event*b*x{}.b"])
def test_expensive_request_is_refused(mask: str) -> None:
    masks = EventPatterns([mask.format(n) for n in range(1000)])
    with pytest.raises(RequestError, match="too many masks"):
        for _ in range(TRIES_MAX // 1000 + 2):
            masks.take("event.b")
    assert masks.tries <= TRIES_MAX + (1 + LOOK_TRIES) * 1000, "it continued"


def test_rebind_parts_have_a_fixed_order() -> None:
    wanted = arguments.parse_rebind(b"q e3 --add e4 --remove e3")
    assert wanted.binding.apply(frozenset(["old"])) == {"e4"}
    assert arguments.parse_rebind(b"q --add a --remove a").binding.apply(frozenset()) == {"a"}
    assert arguments.parse_rebind(b"q x --remove x").binding.apply(frozenset(["y"])) == frozenset()


def test_consume_options_can_be_in_any_order() -> None:
    wanted = arguments.parse_consume(b"q e1 --manual-ack e2 --delete-queue-when-unused=5 --add e3 --window=7", 1000)
    assert wanted.binding.apply(frozenset(["gone"])) == {"e1", "e2", "e3"}
    assert wanted.binding.add == {"e3"}
    assert wanted.manual_ack
    assert wanted.window == 7
    assert wanted.unused == (5.0, " --delete-queue-when-unused=5.0")
    bare = arguments.parse_consume(b"q --delete-queue-when-unused", 1000)
    assert bare.unused == (0, " --delete-queue-when-unused")
    assert bare.binding.apply(frozenset(["kept"])) == {"kept"}


@pytest.mark.parametrize(
    "rest",
    [
        *(b"", b"--manual-ack", b"q --nonsense", b"q --manual-ack=1", b"q --window=0", b"q --window=x", b"q/r e"),
        *(b"q --delete-queue-when-unused=-1", b"q --delete-queue-when-unused=nan", b"q --delete-queue-when-unused=x"),
        *(b"q " + b"e" * 201, b"q --remove e", b"\xff e", b"q \xff"),
    ],
)
def test_invalid_consume_is_refused(rest: bytes) -> None:
    with pytest.raises((RequestError, BadRequest)):
        arguments.parse_consume(rest, 1000)


@pytest.mark.parametrize("rest", [b"q", b"q --add", b"q --manual-ack e", b"q --remove-masks e", b"--add e"])
def test_invalid_rebind_is_refused(rest: bytes) -> None:
    with pytest.raises((RequestError, BadRequest)):
        arguments.parse_rebind(rest)
