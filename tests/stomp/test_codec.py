"""The frame parser: each case whole, byte by byte and with data behind it; any cut gives the same frames."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.stomp import frames as server_frames
from curbstone.stomp.codec import ACK_BY_ID, Frame, FrameParser
from curbstone.stomp.limits import Limits

Parsed = tuple[str, dict[str, str], bytes | None, bytes]
LIMITS = Limits(header_bytes_max=2000, headers_max=10, body_bytes_max=1000)


def parser_of(version: str) -> FrameParser:
    parser = FrameParser(LIMITS)
    if version:
        parser.version = version
    return parser


def plain(frame: Frame) -> Parsed:
    head, varied, receipt, body = frame
    if head is ACK_BY_ID:
        return "ACK", {"id": body.decode()}, receipt, b""
    return head.command, head.having(varied).headers, receipt, body


def parse(parser: FrameParser, *chunks: bytes) -> list[Parsed]:
    frames: list[Parsed] = []
    for chunk in chunks:
        data = chunk
        # Behind a CONNECT the parser waits; here nothing is negotiated, so it continues at once.
        while got := parser.feed(data):
            frames += [plain(frame) for frame in got]
            data = b""
    return frames


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


GOOD: list[tuple[str, str, bytes, list[Parsed]]] = [
    ("a body up to NUL", "1.2", b"SEND\ndestination:a\n\nhi\0", [("SEND", {"destination": "a"}, None, b"hi")]),
    ("no body", "1.2", b"BEGIN\ntransaction:t\n\n\0", [("BEGIN", {"transaction": "t"}, None, b"")]),
    ("no header", "1.2", b"DISCONNECT\n\n\0", [("DISCONNECT", {}, None, b"")]),
    ("no blank line (F20)", "1.2", b"DISCONNECT\n\0", [("DISCONNECT", {}, None, b"")]),
    ("no blank line, headers", "1.2", b"DISCONNECT\nreceipt:1\n\0", [("DISCONNECT", {}, b"1", b"")]),
    ("CRLF", "1.2", b"SEND\r\na:b\r\nreceipt:7\r\n\r\nhi\0\r\n", [("SEND", {"a": "b"}, b"7", b"hi")]),
    ("mixed line ends", "1.2", b"SEND\r\na:b\nc:d\r\n\nhi\0\n", [("SEND", {"a": "b", "c": "d"}, None, b"hi")]),
    ("LF headers and a CRLF blank line", "1.2", b"SEND\na:b\n\r\nhi\0", [("SEND", {"a": "b"}, None, b"hi")]),
    ("CRLF before the version is known", "", b"CONNECT\r\nhost:x\r\n\r\n\0", [("CONNECT", {"host": "x"}, None, b"")]),
    ("CR is part of the value in 1.1", "1.1", b"SEND\na:b\r\n\nhi\0", [("SEND", {"a": "b\r"}, None, b"hi")]),
    ("NULs in a counted body", "1.2", b"SEND\ncontent-length:5\n\na\0b\0c\0",
     [("SEND", {"content-length": "5"}, None, b"a\0b\0c")]),
    ("an empty counted body", "1.2", b"SEND\ncontent-length:0\n\n\0", [("SEND", {"content-length": "0"}, None, b"")]),
    ("LF LF in a body", "1.2", b"SEND\na:b\n\nx\n\ny\0", [("SEND", {"a": "b"}, None, b"x\n\ny")]),
    ("the first of a repeated header", "1.2", b"SEND\nfoo:World\nfoo:Hello\n\n\0",
     [("SEND", {"foo": "World"}, None, b"")]),
    ("the first of a repeated receipt", "1.2", b"SEND\nreceipt:1\na:b\nreceipt:2\n\n\0",
     [("SEND", {"a": "b"}, b"1", b"")]),
    ("colons in a value (F15)", "1.2", b"SEND\nt:12:30\n\n\0", [("SEND", {"t": "12:30"}, None, b"")]),
    ("an empty value (F14)", "1.2", b"SEND\nx:\n\n\0", [("SEND", {"x": ""}, None, b"")]),
    ("spaces are kept in 1.2 (F11)", "1.2", b"SEND\nx: a \n\n\0", [("SEND", {"x": " a "}, None, b"")]),
    ("spaces are cut in 1.0 (F11)", "1.0", b"SEND\nx : a \nreceipt: 1\n\n\0", [("SEND", {"x": "a"}, b"1", b"")]),
    ("escapes of 1.2 (F1)", "1.2", rb"SEND" + b"\n" + rb"v:a\cb\nc\rd\\e" + b"\n\n\0",
     [("SEND", {"v": "a:b\nc\rd\\e"}, None, b"")]),
    ("one pass (F8)", "1.2", b"SEND\nv:" + rb"\\n" + b"\n\n\0", [("SEND", {"v": r"\n"}, None, b"")]),
    ("escaped names (F7)", "1.2", b"SEND\n" + rb"a\cb:v" + b"\n\n\0", [("SEND", {"a:b": "v"}, None, b"")]),
    ("no escapes in 1.0 (F4)", "1.0", b"SEND\n" + rb"v:a\tb\c" + b"\n\n\0", [("SEND", {"v": r"a\tb\c"}, None, b"")]),
    ("no escapes on CONNECT (F5)", "", b"CONNECT\n" + rb"passcode:p\nq:z\t" + b"\n\n\0",
     [("CONNECT", {"passcode": r"p\nq:z\t"}, None, b"")]),
    ("an escaped receipt stays as it came", "1.2", b"SEND\n" + rb"receipt:a\cb" + b"\nx:y\n\n\0",
     [("SEND", {"x": "y"}, rb"a\cb", b"")]),
    ("heart-beats around", "1.2", b"\n\r\n\nBEGIN\na:b\n\n\0\n\n\r\n", [("BEGIN", {"a": "b"}, None, b"")]),
    ("several frames", "1.2", b"SEND\na:b\n\n1\0SEND\na:b\n\n2\0\nSEND\na:c\nreceipt:9\n\n3\0",
     [("SEND", {"a": "b"}, None, b"1"), ("SEND", {"a": "b"}, None, b"2"), ("SEND", {"a": "c"}, b"9", b"3")]),
    ("the same head, receipts at different places", "1.2",
     b"SEND\na:b\nreceipt:1\nc:d\n\n\0SEND\na:b\nc:d\n\n\0SEND\na:b\nc:d\nreceipt:2\n\n\0SEND\nreceipt:3\na:b\nc:d\n\n\0",
     [("SEND", {"a": "b", "c": "d"}, r, b"") for r in (b"1", None, b"2", b"3")]),
    ("ACKs", "1.2", b"ACK\nid:1.1.0\n\n\0ACK\nid:1.2.0\nreceipt:a\n\n\0\nACK\nreceipt:b\nid:1.3.0\n\n\0",
     [("ACK", {"id": f"1.{n}.0"}, r, b"") for n, r in ((1, None), (2, b"a"), (3, b"b"))]),
    ("an ACK with an escape", "1.2", b"ACK\nid:" + rb"a\cb" + b"\n\n\0", [("ACK", {"id": "a:b"}, None, b"")]),
    ("an ACK in a transaction", "1.2", b"ACK\nid:1\ntransaction:t\n\n\0",
     [("ACK", {"id": "1", "transaction": "t"}, None, b"")]),
    ("content-length on another frame (F24)", "1.2", b"BEGIN\ntransaction:t\ncontent-length:0\n\n\0",
     [("BEGIN", {"transaction": "t", "content-length": "0"}, None, b"")]),
    ("a body on another frame in 1.0 (F34)", "1.0", b"BEGIN\na:b\n\nbody\0", [("BEGIN", {"a": "b"}, None, b"body")]),
    ("UTF-8", "1.2", "SEND\nä:ö\n\nü\0".encode(), [("SEND", {"ä": "ö"}, None, "ü".encode())]),
]  # fmt: skip

BAD: list[tuple[str, str, bytes, str]] = [
    (r"\r in 1.1 (F2)", "1.1", b"SEND\n" + rb"v:a\rb" + b"\n\n\0", "STOMP 1.1 has no escape"),
    ("an undefined escape (F3)", "1.2", b"SEND\n" + rb"v:a\tb" + b"\n\n\0", "undefined escape"),
    ("a lone backslash (F3)", "1.2", b"SEND\nv:a\\\n\n\0", "undefined escape"),
    ("an undefined escape in a receipt", "1.2", b"SEND\n" + rb"receipt:a\tb" + b"\n\n\0", "undefined escape"),
    ("no colon (F12)", "1.2", b"SEND\nfoo\n\n\0", "has no colon"),
    ("no name (F13)", "1.2", b"SEND\n:x\n\n\0", "has no name"),
    ("a bare CR (F18)", "1.2", b"SEND\nx:a\rb\n\n\0", "bare CR"),
    ("a NUL in a header", "1.2", b"SEND\nx:a\0\n\n\0", "header contains NUL"),
    ("not NUL behind the body (F22)", "1.2", b"SEND\ncontent-length:3\n\nabcd\0", "no NUL follows"),
    *[("content-length " + text, "1.2", f"SEND\ncontent-length:{text}\n\nabc\0".encode(), "content-length")
      for text in ("-1", "abc", "1e3", "+5", " 5", "99999999999999999999", "", "5 ", "0x5", "٣")],
    ("a body on a frame that has none (F34)", "1.2", b"BEGIN\ntransaction:t\n\nbody\0", "BEGIN frame can't have"),
    ("a counted body on an ACK (F24)", "1.2", b"ACK\nid:1\ncontent-length:2\n\nab\0", "ACK frame can't have a body"),
    ("lower case (F28)", "1.2", b"send\na:b\n\n\0", "capitals"),
    ("unknown (F29)", "1.2", b"FOO\n\n\0", "unknown command"),
    ("a long first line (F29)", "1.2", b"X" * 40, "unknown command"),
    ("a server's command (F30)", "1.2", b"MESSAGE\na:b\n\n\0", "only a server sends"),
    ("CRLF in 1.1 is a header without a colon", "1.1", b"SEND\na:b\n\r\n\n\0", "has no colon"),
    ("too many headers (F31)", "1.2", b"SEND\n" + b"".join(b"h%d:x\n" % n for n in range(11)) + b"\n\0",
     "at most 10 headers"),
    ("too large a head (F10, F31)", "1.2", b"SEND\n" + b"same:name\n" * 300, "headers are larger than 2000"),
    ("too large a head without an end", "1.2", b"SEND\nx:" + b"y" * 2100, "headers are larger than 2000"),
    ("too large a body, said before it comes (F31)", "1.2", b"SEND\ncontent-length:1001\n\n", "1001 bytes is larger"),
    ("too large a body (F31)", "1.2", b"SEND\na:b\n\n" + b"x" * 1001 + b"\0", "larger than 1000"),
    ("too large a body that never ends", "1.2", b"SEND\na:b\n\n" + b"x" * 1001, "larger than 1000"),
    ("no UTF-8 (F32)", "1.2", b"SEND\nx:\xff\xfe\n\n\0", "not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "version", "data", "expected"), GOOD, ids=[case[0] for case in GOOD])
def test_good_frames_are_read(name: str, version: str, data: bytes, expected: list[Parsed]) -> None:
    tail = b"BEGIN\ntransaction:t"
    for chunks in ([data], bytewise(data), [data + tail], bytewise(data + tail), [data[:7], data[7:]]):
        parser = parser_of(version)
        assert parse(parser, *chunks) == expected
        assert parser.error is None


@pytest.mark.parametrize(("name", "version", "data", "rule"), BAD, ids=[case[0] for case in BAD])
def test_bad_frames_are_refused(name: str, version: str, data: bytes, rule: str) -> None:
    good = b"SEND\nfirst:1\n\nok\0"
    for chunks in ([good + data], bytewise(good + data), [good, data, good]):
        parser = parser_of(version)
        assert parse(parser, *chunks) == [("SEND", {"first": "1"}, None, b"ok")], "what came before counts"
        assert parser.error is not None
        assert rule in str(parser.error)
        assert parser.feed(good) == [], "what comes after does not"


def test_receipt_of_an_invalid_frame_is_parsed() -> None:
    parser = parser_of("1.2")
    parser.feed(b"SEND\nreceipt:r1\ncontent-length:99999\n\n")
    assert parser.error is not None
    assert parser.error.receipt == b"r1"


def test_parser_waits_for_the_version_after_connect() -> None:
    parser = parser_of("")
    assert [plain(f)[0] for f in parser.feed(b"CONNECT\nhost:x\n\n\0\nSEND\n" + rb"a:\c" + b"\n\n\0")] == ["CONNECT"]
    parser.version = "1.2"
    assert [plain(f) for f in parser.feed(b"")] == [("SEND", {"a": ":"}, None, b"")]


def test_body_is_not_parsed_as_headers() -> None:
    parser = parser_of("1.2")
    data = b"SEND\na:b\n\n" + b"\n" * 900 + b"\0"
    assert parse(parser, data + data, *bytewise(data)) == [("SEND", {"a": "b"}, None, b"\n" * 900)] * 3


def test_many_different_headers_do_not_fill_memory() -> None:
    parser = parser_of("1.2")
    for n in range(5000):
        assert len(parser.feed(b"SEND\ndestination:a\nn:%d\n\n\0" % n)) == 1
    assert len(parser._heads) <= 2048
    assert len(parser._lines) <= 1024


def test_many_long_headers_do_not_fill_memory() -> None:
    parser = parser_of("1.2")
    for n in range(1000):
        assert len(parser.feed(b"SEND\ndestination:a\nlong:%d%b\n\n\0" % (n, b"x" * 900))) == 1
        assert sum(map(len, parser._heads)) <= 256 * 1024


def test_headers_for_a_thousand_queues_are_parsed_once() -> None:
    parser = parser_of("1.2")
    data = b"".join([b"SEND\ndestination:/queue/a-long-name-of-a-queue.%d\n\n\0" % n for n in range(1000)])
    first = [head for head, *_ in parser.feed(data)]
    assert all(again is head for (again, *_), head in zip(parser.feed(data), first, strict=True))


class CountingParser(FrameParser):
    """Counts the bytes it looks at again because a frame was not complete."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.looked_at = 0

    def _read_all(self, data: bytes, searched: int, in_body: bool, frames: list[Frame]) -> int:
        self.looked_at += len(data)
        return super()._read_all(data, searched, in_body, frames)


@pytest.mark.source
def test_large_frame_in_small_pieces_is_copied_and_searched_once() -> None:
    parser = CountingParser(Limits(body_bytes_max=8_000_000))
    parser.version = "1.2"
    for head in (b"SEND\ncontent-length:4000000\n\n", b"SEND\na:b\n\n"):
        parser.looked_at = 0
        assert parser.feed(head) == []
        for _ in range(40_000):
            assert parser.feed(b"x" * 100) == []
        (frame,) = parser.feed(b"\0")
        assert len(frame[3]) == 4_000_000
        assert parser.looked_at < 2 * 4_000_000, "quadratic"


class CountingBytes(bytes):
    """Counts how many bytes its searches go over."""

    searched = 0

    def find(self, *args: Any) -> int:
        found = super().find(*args)
        start = args[1] if len(args) > 1 else 0
        stop = found if found >= 0 else min(args[2] if len(args) > 2 else len(self), len(self))
        self.searched += stop - start
        return found


def test_many_frames_in_one_piece_are_searched_once() -> None:
    for end in (b"\n", b"\r\n"):
        for length in (b"content-length:3", b"k:v"):
            data = CountingBytes(end.join([b"SEND", b"destination:/queue/a", length, b"", b"abc\0"]) * 5_000)
            parser = parser_of("1.2")
            assert len(parser.feed(data)) == 5_000
            # For CRLF each head is also searched for an LF LF, but only as far as a head may go.
            bound = 3 * len(data) if end == b"\n" else 5_000 * 2 * LIMITS.header_bytes_max
            assert data.searched < bound, "a search without a bound"


header_text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)
header_names = header_text.filter(lambda name: name not in ("", "content-length", "receipt"))


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n").replace(":", "\\c")


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, Parsed]:
    command = draw(st.sampled_from(["SEND", "SEND", "ACK", "SUBSCRIBE", "NACK"]))
    pairs = draw(st.lists(st.tuples(header_names, header_text), max_size=4))
    receipt = draw(st.none() | st.sampled_from(["1", "r-2", "a:b", "\n", "ö"]))
    counted = draw(st.booleans()) and command == "SEND"
    body = draw(st.binary(max_size=40)) if command == "SEND" else b""
    eol = draw(st.sampled_from(["\n", "\r\n"]))
    if not counted:
        body = body.replace(b"\0", b"")
    lines = [f"{escaped(name)}:{escaped(value)}" for name, value in pairs]
    if receipt is not None:
        lines.insert(draw(st.integers(0, len(lines))), f"receipt:{escaped(receipt)}")
    headers: dict[str, str] = {}
    for name, value in pairs:
        headers.setdefault(name, value)
    if counted:
        lines.append(f"content-length:{len(body)}")
        headers["content-length"] = str(len(body))
    data = eol.join([command, *lines, "", ""]).encode() + body + b"\0" + draw(st.sampled_from([b"", b"\n", b"\r\n\n"]))
    return data, (command, headers, None if receipt is None else escaped(receipt).encode(), body)


LINES = [
    *(b"x-key:1", b"x-key:2", b"x-key:a\\cb", b"x-key:", b"x-key: 1", "x-key:é".encode(), b"JMSXGroupID:g:h"),
    *(b"correlation-id:c ", b"traceparent:00-1", b"traceparent:bad\\q", b"a:b", b"a:c", b"receipt:7", b":x"),
    *(b"content-length:2", b"x-keys:1", b"no colon", *[b"n%d:1" % n for n in range(9)]),
]


@pytest.mark.source
@pytest.mark.parametrize("version", ["1.1", "1.2"])
@given(heads=st.lists(st.lists(st.sampled_from(LINES), max_size=12), min_size=1, max_size=4))
def test_varied_headers_are_parsed_like_others(version: str, heads: list[list[bytes]]) -> None:
    quick, thorough = parser_of(version), parser_of(version)
    setattr(thorough, "_varied_head", lambda _key: None)  # noqa: B010
    data = b"".join([b"\n".join([b"SEND", *lines, b"", b"hi\0"]) for lines in heads])
    found, expected = quick.feed(data), thorough.feed(data)
    assert [plain(frame) for frame in found] == [plain(frame) for frame in expected]
    lines = [[head.having(varied).lines for head, varied, *_ in frames] for frames in (found, expected)]
    assert lines[0] == lines[1]
    assert str(quick.error) == str(thorough.error)


def test_a_head_that_is_shorter_than_what_others_have_in_common_is_parsed() -> None:
    parser = parser_of("1.2")
    long, short = b"SEND\ndestination:/queue/a\nx-unique:1\nk:v\n\n\0", b"SEND\na:b\n\n\0"
    assert [head.headers.get("a") for head, *_ in parser.feed(long + short + long)] == [None, "b", None]


@given(st.lists(frames(), max_size=6), st.data())
def test_frames_do_not_depend_on_splitting(made: list[tuple[bytes, Parsed]], data: st.DataObject) -> None:
    wire = b"".join(each for each, _ in made)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    chunks = [wire[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    parser = parser_of("1.2")
    assert parse(parser, *chunks) == [expected for _, expected in made]
    assert parser.error is None


RUBBISH = [b"SEND\n", b"\n", b"\r\n", b"\0", b"a:b\n", b"\\", b"content-length:2\n", b"ACK\n", b"id:1\n", b"x"]


@given(st.lists(st.sampled_from(RUBBISH)), st.integers(1, 9))
def test_garbage_gives_the_same_outcome_for_any_split(parts: list[bytes], step: int) -> None:
    wire = b"".join(parts)
    whole, cut = parser_of("1.2"), parser_of("1.2")
    frames_whole = parse(whole, wire)
    frames_cut = parse(cut, *[wire[at : at + step] for at in range(0, len(wire), step)])
    assert frames_cut == frames_whole
    assert str(cut.error) == str(whole.error)


@given(
    st.lists(st.tuples(st.sampled_from(["receipt", "error", "beat", "message"]), st.binary(max_size=30)), max_size=8)
)
def test_output_is_split_into_its_frames(made: list[tuple[str, bytes]]) -> None:
    pieces = []
    for kind, body in made:
        if kind == "receipt":
            pieces.append(server_frames.receipt(body.replace(b"\n", b"").replace(b"\0", b"")))
        elif kind == "error":
            pieces.append(server_frames.error("a rule", body))
        elif kind == "beat":
            pieces.append(server_frames.HEART_BEAT)
        else:
            head = b"MESSAGE\nmessage-id:1\ncontent-length:%d\ncontent-length:7\n\n" % len(body)
            pieces.append(head + body + b"\0\n")
    assert list(server_frames.split(b"".join(pieces))) == pieces
