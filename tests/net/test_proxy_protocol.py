"""The PROXY protocol's header: what it says, and that anything else is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.net.limits import PROXY_HEADER_BYTES_MAX
from curbstone.net.proxy_protocol import SIGNATURE, BadHeader, Header, read_header

V4 = bytes((192, 0, 2, 7, 10, 0, 0, 1)) + (4711).to_bytes(2, "big") + (61613).to_bytes(2, "big")
V6 = bytes.fromhex("20010db8" + "00" * 11 + "07" + "00" * 15 + "01") + V4[8:]


def binary(addresses: bytes, command: int = 0x21, family: int = 0x11, fields: bytes = b"") -> bytes:
    body = addresses + fields
    return SIGNATURE + bytes((command, family)) + len(body).to_bytes(2, "big") + body


def field(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + len(value).to_bytes(2, "big") + value


GOOD = [
    (b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 61613\r\n", ("192.0.2.7", 4711, False)),
    (b"PROXY TCP6 2001:db8::7 ::1 4711 61613\r\n", ("2001:db8::7", 4711, False)),
    (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 4711 61613\r\n", ("192.0.2.7", 4711, False)),
    (b"PROXY UNKNOWN\r\n", ("", 0, False)),
    (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", ("", 0, False)),
    (binary(V4), ("192.0.2.7", 4711, False)),
    (binary(V6, family=0x21), ("2001:db8::7", 4711, False)),
    (binary(V4, command=0x20), ("", 0, False)),
    (binary(b"", family=0), ("", 0, False)),
    (binary(b"x" * 216, family=0x31), ("", 0, False)),
    (binary(V4, fields=field(0x20, b"\x01\0\0\0\0")), ("192.0.2.7", 4711, True)),
    (binary(V4, fields=field(4, b"padding") + field(0x20, b"\0\0\0\0\0")), ("192.0.2.7", 4711, False)),
]


@pytest.mark.parametrize(("data", "says"), GOOD, ids=[str(number) for number in range(len(GOOD))])
def test_header_is_parsed_for_any_split_and_the_rest_kept(data: bytes, says: tuple[str, int, bool]) -> None:
    for end in range(len(data)):
        assert read_header(data[:end]) is None
    assert read_header(data) == read_header(data + b"CONNECT\n") == Header(*says, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"CONNECT\n",
        b"GET / HTTP/1.1\r\n",
        b"\r\n\r\n\0\r\nQUIX\n",
        b"PROXY tcp4 192.0.2.7 10.0.0.1 4711 61613\r\n",
        b"PROXY TCP4 2001:db8::7 10.0.0.1 4711 61613\r\n",
        b"PROXY TCP4 192.0.2 10.0.0.1 4711 61613\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 4711\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 65536 61613\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 -1 61613\r\n",
        b"PROXY " + b"x" * 200,
        binary(V4, command=0x11),
        binary(V4, command=0x22),
        binary(V4, family=0x12),
        binary(V4[:-1]),
        binary(V4, fields=b"\x04\0"),
        binary(V4, fields=b"\x04\0\x05abcd"),
        SIGNATURE + b"\x21\x11" + PROXY_HEADER_BYTES_MAX.to_bytes(2, "big"),
    ],
)
def test_invalid_header_is_an_immediate_error(data: bytes) -> None:
    with pytest.raises(BadHeader):
        read_header(data)


@given(st.binary(max_size=300))
def test_parser_accepts_any_bytes_without_crashing(rest: bytes) -> None:
    for start in (b"", SIGNATURE, b"PROXY TCP4 ", SIGNATURE + b"\x21\x11\0\x20"):
        try:
            header = read_header(start + rest)
        except BadHeader:
            continue
        assert header is None or header.size <= len(start + rest)
