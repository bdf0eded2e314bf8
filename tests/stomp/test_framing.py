"""Framing and headers as a session shows them (F1 to F35); test_codec.py has what the parser alone shows.

Each test is named by the number its pitfall has in the project's conformance list.
"""

from __future__ import annotations

import pytest

from curbstone.stomp.limits import Limits
from tests.stomp.harness import SUB, Client, send


def test_f01_escapes_of_1_2_come_back_as_they_were() -> None:
    client = Client()
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


def test_f04_a_backslash_means_itself_in_1_0() -> None:
    client = Client(version="1.0")
    client.send(send("x", r"path:C:\new\temp"))
    frame = client.session
    client.feed(Client.frame("SUBSCRIBE|destination:/queue/a"))
    client.broker.turn()
    assert rb"path:C:\new\temp" + b"\n" in b"".join(frame.take_output())
    other = Client(client.broker)
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


def test_f07_names_are_escaped_too() -> None:
    client = Client()
    client.send(send("x", r"a\cb:v"))
    (message,) = client.send(SUB)
    assert message.headers["a:b"] == "v"


def test_f09_the_first_of_a_repeated_header_wins() -> None:
    client = Client()
    client.send(send("x", "foo:World", "foo:Hello"))
    (message,) = client.send(SUB)
    assert message.headers["foo"] == "World"
    assert b"Hello" not in message.raw


def test_f11_padding_is_kept() -> None:
    client = Client()
    client.send(send("x", "v: padded "))
    (message,) = client.send(SUB)
    assert message.headers["v"] == " padded "


def test_f14_f15_empty_values_and_colons_in_values() -> None:
    client = Client()
    client.send(send("x", "empty:", "t:12:30"))
    (message,) = client.send(SUB)
    assert message.headers["empty"] == ""
    assert b"t:12:30\n" in message.raw or rb"t:12\c30" in message.raw


def test_f16_crlf_in_1_2() -> None:
    client = Client()
    client.feed(b"SEND\r\ndestination:/queue/a\r\nreceipt:1\r\nk:v\r\n\r\nhi\0\r\n" * 2)
    receipts = client.turn()
    assert [frame.headers["receipt-id"] for frame in receipts] == ["1", "1"]
    first, second = client.send(SUB)
    assert (first.body, first.headers["k"], second.body) == (b"hi", "v", b"hi")


def test_f21_f26_a_body_with_nul_comes_back_with_the_right_length() -> None:
    client = Client()
    client.feed(b"SEND\ndestination:/queue/a\ncontent-length:5\n\na\0b\0c\0")
    client.feed("SEND\ndestination:/queue/a\n\nü\0".encode())
    binary, text = client.send(SUB)
    assert (binary.body, binary.headers["content-length"]) == (b"a\0b\0c", "5")
    assert (text.body, text.headers["content-length"]) == ("ü".encode(), "2"), "octets, not characters"


def test_f31_a_large_body_is_refused_before_it_comes() -> None:
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
def test_f33_a_user_header_never_overrides_the_servers(name: str) -> None:
    client = Client()
    client.send(send("x", f"{name}:forged", "x-dead-queue:forged", "other:kept"))
    (message,) = client.send(SUB)
    assert b"forged" not in message.raw
    assert message.headers["other"] == "kept"


def test_f34_a_body_where_none_belongs() -> None:
    assert "body" in Client().error("SUBSCRIBE|id:0|destination:/queue/a||body").headers["message"]
    assert not Client(version="1.0").send("SUBSCRIBE|id:0|destination:/queue/a||body")


def test_f35_each_frame_ends_with_one_line_feed() -> None:
    client = Client()
    client.feed(Client.frame(send("x", "receipt:1")) + Client.frame(SUB))
    client.broker.turn()
    assert b"".join(client.session.take_output()).count(b"\0\n") == 2
