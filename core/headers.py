"""The header block: how a message's content type and application headers are stored.

A block is ``name:value\\n`` lines in UTF-8, in the order in which they were given. In names and values, ``\\`` is
written ``\\\\``, LF ``\\n``, CR ``\\r`` and a colon ``\\c``. That is the header encoding of STOMP 1.2 (§ Value
Encoding), so a message that is sent and received over STOMP 1.2 passes through unchanged; all other protocols decode
it here. The content type is the line named ``content-type``. The ordering key (see `core.engine.index.keys`) is the
first line named ``x-key``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

CONTENT_TYPE = "content-type"
KEY = "x-key"
KEY_MARK = b"x-key:"
"""A block without this has no ordering key. Look for marks with `find`: for `in` with bytes on both sides, CPython
makes an error first and drops it, which takes ten times as long."""
KEY_BYTES_MAX = 256

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)
_UNESCAPES = {escaped: plain for plain, escaped in _ESCAPES.items()}
_NEWLINE = ord("\n")
_BACKSLASH = ord("\\")
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)


class HeaderError(ValueError):
    """An escape sequence that the encoding does not define; the text shows it."""


def escape(text: str) -> str:
    """Return `text` with backslash, LF, CR and colon escaped."""
    return text.translate(_ESCAPE_TABLE)


def unescape(text: str) -> str:
    """Return `text` with the four escapes undone in one pass; raise HeaderError on any other."""
    if "\\" not in text:
        return text
    return _ESCAPED.sub(_unescape_one, text)


def _unescape_one(match: re.Match[str]) -> str:
    plain = _UNESCAPES.get(match.group())
    if plain is None:
        raise HeaderError(f"undefined escape sequence {match.group()!r}")
    return plain


def encode(headers: Iterable[tuple[str, str]]) -> bytes:
    return "".join([f"{escape(name)}:{escape(value)}\n" for name, value in headers]).encode()


def decode(block: bytes) -> list[tuple[str, str]]:
    if not block:
        return []
    text = block.decode("utf-8", "replace")
    pairs = [line.partition(":") for line in text.split("\n")[:-1]]
    if "\\" not in text:
        return [(name, value) for name, _, value in pairs]
    return [(unescape(name), unescape(value)) for name, _, value in pairs]


def find_value(block: bytes, mark: bytes) -> bytes | None:
    """Return the value, still escaped, of the first line that begins with `mark`, or None if there is none."""
    before, found, rest = block.partition(mark)  # `find` takes twice as long in CPython, which parses its arguments
    if before and before[-1] != _NEWLINE:
        _, found, rest = block.partition(b"\n" + mark)
    return rest.partition(b"\n")[0] if found else None


def key_of(block: bytes) -> bytes:
    """Return the ordering key in a block, or b"" if there is none."""
    key = find_value(block, KEY_MARK) or b""
    return unescape(key.decode("utf-8", "replace")).encode() if _BACKSLASH in key else key


def check_key(key: str) -> str:
    """Return an ordering key unchanged; raise ValueError if no message may have it."""
    if not key:
        raise ValueError("an ordering key is not empty")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise ValueError(f"an ordering key has {KEY_BYTES_MAX} bytes at most")
    return key
