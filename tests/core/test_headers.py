"""The header block: what goes in comes out, and only the four escapes exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.core import headers

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)

ESCAPED = [
    ("", ""),
    ("plain", "plain"),
    ("a:b", r"a\cb"),
    ("a\nb", r"a\nb"),
    ("a\rb", r"a\rb"),
    ("a\\b", r"a\\b"),
    (r"a\nb", r"a\\nb"),
    (r"\\n", r"\\\\n"),
    ("\\\n", r"\\\n"),
    (":\r\n\\", r"\c\r\n\\"),
    ("ä€😀", "ä€😀"),
    ("tab\tstays", "tab\tstays"),
]


@pytest.mark.parametrize(("plain", "escaped"), ESCAPED)
def test_a_text_is_escaped_and_unescaped(plain: str, escaped: str) -> None:
    assert headers.escape(plain) == escaped
    assert headers.unescape(escaped) == plain


@pytest.mark.parametrize("text", [r"\t", r"\x", "\\", "a\\", r"\N", r"ok\cok\q", "\\\n", "\\ "])
def test_an_undefined_escape_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(headers.HeaderError, match="undefined escape sequence"):
        headers.unescape(text)


@given(TEXT)
def test_any_text_round_trips(text: str) -> None:
    escaped = headers.escape(text)
    assert headers.unescape(escaped) == text
    assert not set(escaped) & set(":\r\n")


@given(st.lists(st.tuples(TEXT, TEXT)))
def test_header_pairs_round_trip_in_order_with_repetitions(pairs: list[tuple[str, str]]) -> None:
    assert headers.decode(headers.encode(pairs)) == pairs


@given(st.lists(st.tuples(TEXT, TEXT)), st.lists(st.tuples(TEXT, TEXT)))
def test_blocks_can_be_joined(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> None:
    assert headers.decode(headers.encode(one) + headers.encode(other)) == one + other


def test_no_headers_are_an_empty_block() -> None:
    assert headers.encode([]) == b""
    assert headers.decode(b"") == []


def test_a_block_is_lines_of_utf8() -> None:
    assert (
        headers.encode([("content-type", "text/plain"), ("ä", "x:y")]) == "content-type:text/plain\nä:x\\cy\n".encode()
    )


def test_bytes_that_are_not_utf8_are_shown_as_replacement() -> None:
    assert headers.decode(b"a:\xff\n") == [("a", "\ufffd")]
