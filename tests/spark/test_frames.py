"""Pages and parts: the bytes, and what Arrow makes of them. Needs no Java."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.core.headers import encode
from curbstone.spark import frames
from curbstone.spark.arrow import Blocks, arrow_schema, message_batch

ALL = tuple((name, True) for name in ("seq", "timestamp", "content_type", "headers", "body", "tries"))
PAIRS = st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3)
ENTRIES = st.lists(st.tuples(st.integers(0, 1 << 41), PAIRS, st.binary(max_size=20)), max_size=8)


def rows(page: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = message_batch(page, "p/q", "e", arrow_schema(ALL)).to_pylist()
    return found


def ms(row: dict[str, Any]) -> int:
    return int(round(row["timestamp"].timestamp() * 1000))


@given(st.lists(ENTRIES, max_size=4), st.booleans())
def test_page_round_trips(contents: list[list[tuple[int, list[tuple[str, str]], bytes]]], masked: bool) -> None:
    seq, page, wanted = 1, b"", []
    for entries in contents:
        packed = [(seq + index, at, encode(pairs), body) for index, (at, pairs, body) in enumerate(entries)]
        mask = (0x5555).to_bytes(2, "little")[: (len(entries) + 7) // 8] if masked else b""
        tries = [(index, 7) for index in range(len(entries)) if index % 4 == 0]
        page += frames.write_page(seq, packed, mask=mask, tries=tries)
        for index, (number, at, _, body) in enumerate(packed):
            if masked and index % 2:
                continue
            headers: dict[str, str] = {}
            for name, value in entries[index][1]:
                headers.setdefault(name, value)
            wanted.append(
                (number, at, headers.pop("content-type", None), list(headers.items()), body, 0 if index % 4 else 7)
            )
        seq += len(entries) + 3
    columns = ("content_type", "headers", "body", "tries")
    found = [(row["seq"], ms(row), *[row[name] for name in columns]) for row in rows(page)]
    assert found == wanted


def test_uniform_entries_are_read_correctly() -> None:
    entries = [
        (10 + 2 * index, 1_700_000_000_000 + index, b"content-type:a\n", b"%03d" % index) for index in range(300)
    ]
    alike = rows(frames.write_page(10, entries))
    mixed = rows(frames.write_page(10, [*entries, (2000, 1, b"", b"another length")]))
    assert alike == mixed[:-1]
    assert [row["seq"] for row in alike] == list(range(10, 610, 2))


def test_unusual_headers_are_unchanged() -> None:
    row = rows(frames.write_page(1, [(1, 1, b"a\\tb:c\nx:1\nx:2\n", b"")]))[0]
    assert row["headers"] == [("a\\tb", "c"), ("x", "1")]


def test_header_names_do_not_depend_on_the_protocol() -> None:
    """One had two names over HTTP and STOMP, so that each query over both needed coalesce."""
    block = b"x-msg-x-lang:de\nlang:en\nfile:a\nx-msg-x-content-type:b\nx-msg-x-x-foo:c\nx-msg-x-:d\nx-key:k\n"
    page = frames.write_page(1, [(1, 1, block, b"")])
    kept = [("x-msg-x-content-type", "b"), ("x-msg-x-x-foo", "c"), ("x-msg-x-", "d"), ("x-key", "k")]
    assert rows(page)[0]["headers"] == [("lang", "de"), ("file", "a"), *kept]
    schema = arrow_schema((("headers", True),))
    [before] = message_batch(page, "p/q", "e", schema, plain=False).to_pylist()
    assert before["headers"] == [("x-msg-x-lang", "de"), ("lang", "en"), ("file", "a"), *kept]


def test_null_header_is_a_one_line_error() -> None:
    """It was a traceback of an AttributeError."""
    with pytest.raises(ValueError, match="the header 'lang' of a row is null; remove it from the map"):
        Blocks().of("text/csv", [("lang", None)])  # type: ignore[list-item]


@pytest.mark.parametrize("cut", [1, 20, 40, -1])
def test_invalid_page_bytes_are_refused(cut: int) -> None:
    page = frames.write_page(1, [(1, 1, b"a:b\n", b"body")])
    with pytest.raises(frames.BadPage):
        frames.read_page(page[:cut])


def test_part_follows_the_contract() -> None:
    part = frames.write_part("q", [b"one", b""], [b"a:b\n", b""], [0, 5000])
    length, kind, _, name, first, entries, mask, tries = struct.unpack_from("<IBBHQIII", part)
    assert (length, kind, name, first, entries, mask, tries) == (len(part) - 4, 2, 1, 0, 2, 0, 0)
    assert part[28:29] == b"q"
    assert struct.unpack_from("<IIQIHH", part, 29) == (31, 0, 0, 4, 0, 0)
    assert part[53:60] == b"a:b\none"
    assert struct.unpack_from("<IIQIHH", part, 60) == (24, 1, 5000, 0, 0, 0)


def test_content_type_column_wins() -> None:
    blocks = Blocks()
    assert blocks.of("text/csv", [("content-type", "no"), ("a:", "b")]) == b"content-type:text/csv\na\\c:b\n"
    assert blocks.of(None, [("content-type", "kept")]) == b"content-type:kept\n"


@pytest.mark.parametrize("is_alike", [True, False])
def test_extras_have_expiry_and_groups(is_alike: bool) -> None:
    extras = [frames.write_extras(1_700_000_000_000 + index, ["", "g"]) for index in range(20)]
    extras[3] = extras[3][:8] + b"a,"
    bodies = [b"%02d" % index for index in range(20)]
    if not is_alike:
        extras[5], bodies[7] = b"", b"another length"
    staged = frames.write_part("q", bodies, [b"a:b\n"] * 20, [0] * 20, extras)
    entries = staged[struct.calcsize("<IBBHQIII") + 1 :]
    head = struct.pack("<IBBHQIII", struct.calcsize("<IBBHQIII") - 4 + len(entries), 1, 0, 0, 100, 20, 0, 0)
    columns = tuple((name, True) for name in ("seq", "body", "headers", "expires", "groups"))
    found = message_batch(head + entries, "p/q", "e", arrow_schema(columns)).to_pylist()
    assert [row["body"] for row in found] == bodies
    assert {str(row["headers"]) for row in found} == {"[('a', 'b')]"}
    for index, row in enumerate(found):
        if extras[index]:
            assert int(round(row["expires"].timestamp() * 1000)) == 1_700_000_000_000 + index
            assert row["groups"] == (["a", ""] if index == 3 else ["", "g"])
        else:
            assert (row["expires"], row["groups"]) == (None, None)


def test_extras_without_a_value_are_null() -> None:
    columns = (("expires", True), ("groups", True))
    page = frames.write_page(1, [(1, 0, b"", b"a"), (2, 0, b"", b"b")])
    assert message_batch(page, "p/q", "e", arrow_schema(columns)).to_pylist() == [{"expires": None, "groups": None}] * 2
    assert frames.write_extras(0, None) == b""
    with pytest.raises(frames.BadPage):
        frames.read_extras(b"short")
