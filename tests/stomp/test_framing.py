"""Framing and headers as a session shows them (F1 to F35); test_codec.py has what the parser alone shows.

Each test is named by the number its pitfall has in the project's conformance list.
"""

from __future__ import annotations

import re

import pytest

from curbstone.stomp.limits import Limits
from tests.stomp.harness import SUB, Client, send


def test_f01_escapes_of_1_2_round_trip(client: Client) -> None:
    client.send(send("x", r"v:a\cb\nc\rd\\e"))
    (message,) = client.send(SUB)
    assert message.headers["v"] == "a:b\nc\rd\\e"
    assert rb"v:a\cb\nc\rd\\e" in message.raw


@pytest.mark.parametrize(
    ("version", "header"), [("1.1", r"v:a\rb"), ("1.1", r"v:a\tb"), ("1.2", r"v:a\tb"), ("1.2", "v:a\\")]
)
def test_f02_f03_undefined_escapes_are_fatal(version: str, header: str) -> None:
    error = Client(version=version).error(send("x", header, "receipt:r"))
    assert error.headers["receipt-id"] == "r"
    assert header.encode().replace(b"\\", b"\\\\") in error.body, "the offending header is shown"


def test_f04_backslash_is_literal_in_1_0() -> None:
    client = Client(version="1.0")
    client.send(send("x", r"path:C:\new\temp"))
    frame = client.session
    client.feed(Client.frame("SUBSCRIBE|destination:/queue/a"))
    client.lab.settle()
    assert rb"path:C:\new\temp" + b"\n" in b"".join(frame.take_output())
    other = Client(client.lab)
    client.send(send("y", r"path:C:\new\temp", queue="/queue/b"))
    (message,) = other.send("SUBSCRIBE|id:0|destination:/queue/b")
    assert message.headers["path"] == r"C:\new\temp", "the same text in 1.2, escaped there"


def test_f05_connect_is_not_unescaped() -> None:
    client = Client(connect=r"|login:u|passcode:p\nq:z\t")
    assert client.connected.command == "CONNECTED"


def test_f06_connected_needs_no_escaping() -> None:
    raw = Client().connected.raw
    assert b"\\" not in raw
    for line in raw.strip(b"\0\n").split(b"\n")[1:]:
        assert line.count(b":") == 1


def test_f07_names_are_escaped_too(client: Client) -> None:
    client.send(send("x", r"a\cb:v"))
    (message,) = client.send(SUB)
    assert message.headers["a:b"] == "v"


def test_f09_the_first_of_a_repeated_header_wins(client: Client) -> None:
    client.send(send("x", "foo:World", "foo:Hello"))
    (message,) = client.send(SUB)
    assert message.headers["foo"] == "World"
    assert b"Hello" not in message.raw


def test_f11_padding_is_kept(client: Client) -> None:
    client.send(send("x", "v: padded "))
    (message,) = client.send(SUB)
    assert message.headers["v"] == " padded "


def test_f14_f15_empty_values_and_colons_in_values(client: Client) -> None:
    client.send(send("x", "empty:", "t:12:30"))
    (message,) = client.send(SUB)
    assert message.headers["empty"] == ""
    assert b"t:12:30\n" in message.raw or rb"t:12\c30" in message.raw


def test_f16_crlf_in_1_2(client: Client) -> None:
    client.feed(b"SEND\r\ndestination:/queue/a\r\nreceipt:1\r\nk:v\r\n\r\nhi\0\r\n" * 2)
    receipts = client.turn()
    assert [frame.headers["receipt-id"] for frame in receipts] == ["1", "1"]
    first, second = client.send(SUB)
    assert (first.body, first.headers["k"], second.body) == (b"hi", "v", b"hi")


def test_f21_f26_body_with_nul_round_trips_with_its_length(client: Client) -> None:
    client.feed(b"SEND\ndestination:/queue/a\ncontent-length:5\n\na\0b\0c\0")
    client.feed("SEND\ndestination:/queue/a\n\nü\0".encode())
    binary, text = client.send(SUB)
    assert (binary.body, binary.headers["content-length"]) == (b"a\0b\0c", "5")
    assert (text.body, text.headers["content-length"]) == ("ü".encode(), "2"), "octets, not characters"


def test_f31_large_body_is_refused_before_it_arrives() -> None:
    client = Client(limits=Limits(body_bytes_max=100))
    client.feed(b"SEND\ndestination:/queue/a\nreceipt:big\ncontent-length:101\n\n")
    (error,) = client.turn()
    assert error.command == "ERROR"
    assert error.headers["receipt-id"] == "big"
    assert b"content-length:101" in error.body
    assert client.session.closing


@pytest.mark.parametrize(
    "name",
    ["message-id", "subscription", "ack", "redelivered", "timestamp", "x-tries", "x-mature"],
)
def test_f33_user_header_never_overrides_a_server_header(client: Client, name: str) -> None:
    client.send(send("x", f"{name}:forged", "x-dead-queue:forged", "other:kept"))
    (message,) = client.send(SUB)
    assert b"forged" not in message.raw
    assert message.headers["other"] == "kept"


def test_f34_unexpected_body() -> None:
    assert "body" in Client().error("SUBSCRIBE|id:0|destination:/queue/a||body").headers["message"]
    assert not Client(version="1.0").send("SUBSCRIBE|id:0|destination:/queue/a||body")


def test_f35_each_frame_ends_with_one_line_feed(client: Client) -> None:
    client.feed(Client.frame(send("x", "receipt:1")) + Client.frame(SUB))
    client.lab.settle()
    assert b"".join(client.session.take_output()).count(b"\0\n") == 2


def test_f08_escapes_are_decoded_in_one_pass(client: Client) -> None:
    client.send(send("x", r"v:a\\nb"))
    (message,) = client.send(SUB)
    assert message.headers["v"] == r"a\nb"


def test_f10_a_repeated_header_is_limited_by_its_bytes() -> None:
    limits = Limits(headers_max=5)
    assert "headers are larger" in Client(limits=limits).error(send("x", *["same:name"] * 10_000)).headers["message"]
    assert Client(limits=limits).receipts(send("x", *["same:name"] * 100, "receipt:r")) == ["r"]


def test_f12_a_header_line_without_a_colon() -> None:
    assert b"'nocolon'" in Client().error(send("x", "nocolon")).body


def test_f13_a_header_without_a_name() -> None:
    assert b"':value'" in Client().error(send("x", ":value")).body


def test_f17_crlf_is_tolerated_until_the_version_is_known() -> None:
    client = Client(version=None)
    client.feed(b"CONNECT\r\naccept-version:1.1\r\nhost:x\r\n\r\n\0")
    assert client.turn()[0].headers["version"] == "1.1"
    client.feed(b"SEND\ndestination:/queue/a\nk:v\r\n\nx\0")
    client.turn()
    client.feed(Client.frame(SUB))
    client.lab.settle()
    out = b"".join(client.session.take_output())
    assert b"\nk:v \n" in out or b"\nk:v\r\n" in out, "there the CR is part of the value"


def test_f18_a_bare_cr_in_a_header() -> None:
    assert "bare CR" in Client().error(send("x", "k:a\rb")).headers["message"]


def test_f19_line_ends_between_frames_are_heart_beats() -> None:
    client = Client(version=None)
    client.feed(
        b"\n\r\n\nCONNECT\naccept-version:1.2\n\n\0\n\r\n\n\n" + Client.frame(send("x", "receipt:r")) + b"\r\n\n"
    )
    assert [frame.command for frame in client.turn()] == ["CONNECTED", "RECEIPT"]


def test_f20_a_frame_may_lack_its_blank_line(client: Client) -> None:
    """As the specification's own DISCONNECT does."""
    client.feed(b"DISCONNECT\nreceipt:77\n\0")
    assert [frame.headers for frame in client.turn()] == [{"receipt-id": "77"}]


def test_f22_the_body_must_end_where_content_length_says() -> None:
    error = Client().error("SEND|destination:/queue/a|content-length:3|receipt:r||four")
    assert ("no NUL" in error.headers["message"], error.headers["receipt-id"]) == (True, "r")


@pytest.mark.parametrize("value", ["-1", "abc", "1e3", "+5", " 5", "99999999999999999999", "", "5 ", "0x5", "٣"])
def test_f23_content_length_must_be_digits(client: Client, value: str) -> None:
    assert "content-length" in client.error(f"SEND|destination:/queue/a|content-length:{value}||abc").headers["message"]
    assert not client.lab.names()


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_f24_content_length_counts_on_every_frame(version: str) -> None:
    client = Client(version=version)
    assert client.receipts("BEGIN|transaction:t|content-length:0|receipt:r") == ["r"]
    assert "body" in client.error("ABORT|transaction:t|content-length:2||ab").headers["message"]


def test_f25_without_a_length_the_body_ends_at_nul(client: Client) -> None:
    client.feed("SEND\ndestination:/queue/a\n\nzwölf €\0SEND\ndestination:/queue/a\n\nnext\0".encode())
    assert [frame.body.decode() for frame in client.send(SUB)] == ["zwölf €", "next"]


HANDLE = re.compile(rb"(?<=\nack:)[0-9a-f]{12}")
"""What is drawn for each connection."""


def test_f27_frames_do_not_depend_on_splitting() -> None:
    frames = [send("a" * 50, "k:v", "receipt:1"), "BEGIN|transaction:t", send("b", "transaction:t"),
              "COMMIT|transaction:t|receipt:2", SUB]  # fmt: skip
    stream = b"".join(Client.frame(frame) for frame in frames)
    outcomes = set()
    for cut in range(len(stream) + 1):
        client = Client()
        client.feed(stream[:cut])
        client.feed(stream[cut:])
        outcomes.add(tuple(HANDLE.sub(b"", frame.raw) for frame in client.turn()))
    client = Client()
    for at in range(len(stream)):
        client.feed(stream[at : at + 1])
    outcomes.add(tuple(HANDLE.sub(b"", frame.raw) for frame in client.turn()))
    assert len(outcomes) == 1


def test_f28_commands_are_case_sensitive() -> None:
    assert "capitals" in Client().error("send|destination:/queue/a||x").headers["message"]


@pytest.mark.parametrize("data", [b"FOO\n\n\0", b"X" * 40, b"SENDSENDSENDSENDSENDSENDSENDSENDSEND"])
def test_f29_an_unknown_command_is_refused_before_it_is_whole(client: Client, data: bytes) -> None:
    client.feed(data)
    (error,) = client.turn()
    assert "unknown command" in error.headers["message"]


@pytest.mark.parametrize("command", ["MESSAGE", "RECEIPT", "ERROR", "CONNECTED"])
def test_f30_a_command_of_the_server(command: str) -> None:
    assert "only a server sends" in Client().error(command).headers["message"]


def test_f31_limits_hold_before_connect_and_after() -> None:
    limits = Limits(header_bytes_max=1000, headers_max=10, connect_body_bytes_max=50)
    for version in (None, "1.2"):
        command = "CONNECT" if version is None else "SEND|destination:/queue/a"
        for headers in ("|".join(f"h{n}:x" for n in range(11)), "h:" + "x" * 1000):
            assert "headers" in Client(version=version, limits=limits).error(f"{command}|{headers}").headers["message"]
    assert "body" in Client(version=None, limits=limits).error("CONNECT||" + "x" * 51).headers["message"]
    assert Client(limits=limits).receipts(send("x" * 51, "receipt:r")) == ["r"]


def test_f32_headers_are_utf8(client: Client) -> None:
    client.feed(b"SEND\ndestination:/queue/a\nk:\xff\xfe\n\nx\0")
    (error,) = client.turn()
    assert "not UTF-8" in error.headers["message"]
    assert b"xff" in error.body, "what broke the rule is shown"


@pytest.mark.parametrize("command", ["send", "FOO", "MESSAGE", "RECEIPT", "ERROR", "CONNECTED"])
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_f28_f29_f30_error_for_an_invalid_command_has_the_receipt(command: str, version: str) -> None:
    """However the frame is cut: the rest of the head is waited for."""
    frame = Client.frame(f"{command}|destination:/queue/a|receipt:r 7|k:v||x")
    for cut in range(len(command) + 1, frame.index(b"\n\n") + 3):
        client = Client(version=version)
        client.feed(frame[:cut])
        client.feed(frame[cut:])
        (error,) = client.turn()
        assert (error.command, error.headers["receipt-id"]) == ("ERROR", "r 7")
        assert ("only a server" if command.isupper() and command != "FOO" else "unknown") in error.headers["message"]
        assert client.session.closing


def test_f29_unknown_command_without_headers_is_bounded() -> None:
    client = Client(limits=Limits(header_bytes_max=200))
    client.feed(b"FOO\n" + b"k:v\n" * 60)
    (error,) = client.turn()
    assert "unknown command" in error.headers["message"]
    assert "unknown command" in Client().error("F" * 40).headers["message"]


@pytest.mark.parametrize(("receipt", "reported"), [(r"a\cb", "a:b"), ("ü", "ü"), (r"a\tb", None), ("", "")])
def test_receipt_of_an_invalid_frame_is_echoed(receipt: str, reported: str | None) -> None:
    error = Client().error(f"SEND|destination:/queue/a|no colon|receipt:{receipt}")
    assert error.headers.get("receipt-id") == reported


@pytest.mark.parametrize(("version", "shown"), [("1.0", b". _ : -"), ("1.1", rb". _ \c -"), ("1.2", rb". _ \c -")])
def test_colon_in_an_error_message_is_unescaped(version: str, shown: bytes) -> None:
    error = Client(version=version).error(send("x", queue="/queue/a b"))
    assert error.headers["message"].endswith("1 to 200 of A-Z a-z 0-9 . _ : -")
    assert shown in error.raw.partition(b"\n\n")[0]
