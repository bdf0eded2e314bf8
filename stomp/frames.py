"""The frames a server sends, as bytes. Pure.

Each ends with one LF behind its NUL, as other brokers do and clients have come to expect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from curbstone.core import headers as blocks
from curbstone.stomp.codec import V10, V11, V12
from curbstone.stomp.errors import body_text

HEART_BEAT = b"\n"

CHARSET_MARK = b"x-http-charset:"
"""Begins a line that the gateway keeps in blocks for itself: how the bytes of HTTP headers were read."""

_CHARSET_LINE = re.compile(rb"^x-http-charset:[^\n]*\n", re.MULTILINE)
_LENGTH = b"\ncontent-length:"

_BARE = str.maketrans({"\\": "/", "\n": " ", "\r": " ", "\0": " "})


def connected(
    version: str, heart_beat: tuple[int, int], session: str, server: str, sync: str, more: tuple[str, ...] = ()
) -> bytes:
    """Return CONNECTED. It is never escaped (§ Value Encoding), but for `:` nothing in it would have to be."""
    lines = "".join([f"{line}\n" for line in more])
    return (
        f"CONNECTED\nversion:{version}\nheart-beat:{heart_beat[0]},{heart_beat[1]}\nsession:{session}\n"
        f"server:{server}\nx-sync:{sync}\n{lines}\n\0\n"
    ).encode()


def receipt(receipt_id: bytes, more: tuple[str, ...] = ()) -> bytes:
    """Return RECEIPT; `receipt_id` as it came, which is also how it is written."""
    return b"RECEIPT\nreceipt-id:%b\n%b\n\0\n" % (receipt_id, "".join([f"{line}\n" for line in more]).encode())


def receipts(receipt_ids: Iterable[bytes]) -> bytes:
    """Return the RECEIPT of each; there must be one at least."""
    return b"RECEIPT\nreceipt-id:" + b"\n\n\0\nRECEIPT\nreceipt-id:".join(receipt_ids) + b"\n\n\0\n"


def error(
    rule: str,
    shown: bytes | str = "",
    receipt_id: bytes | None = None,
    headers: tuple[str, ...] = (),
    version: str = "",
) -> bytes:
    """Return ERROR with a text body. `message` holds no backslash but that of an escaped colon, so nobody misreads it.

    Before a version is agreed on, it is written as in 1.0, without escapes.
    """
    body = body_text(rule, shown).encode("utf-8", "backslashreplace")
    message = rule.translate(_BARE)
    if version in (V11, V12):
        message = message.replace(":", "\\c")
    head = f"ERROR\nmessage:{message}\n".encode("utf-8", "backslashreplace")
    if receipt_id is not None:
        head += b"receipt-id:%b\n" % receipt_id
    for line in headers:
        head += f"{line}\n".encode()
    return head + b"content-type:text/plain\ncontent-length:%d\n\n%b\0\n" % (len(body), body)


def escape(text: str, version: str) -> str:
    """Return `text` as a header value of that version; what 1.0 and 1.1 can't write becomes a space."""
    if version == V12:
        return blocks.escape(text)
    if version == V11:
        return blocks.escape(text.replace("\r", " "))
    return text.replace("\n", " ").replace("\r", " ")


def encode_block(block: bytes, version: str) -> bytes:
    """Return the header lines of a stored block for a session of that version.

    The block is the encoding of 1.2 and passes through, but for the gateway's own mark. Without a backslash
    it says the same in every version; with one, 1.1 lacks `\\r`, and 1.0 has no escapes: a name that needs
    one is left out there, for it would end up as another header.
    """
    if CHARSET_MARK in block:
        block = _CHARSET_LINE.sub(b"", block)
    if version == V12 or b"\\" not in block:
        return block
    pairs = blocks.decode(block)
    if version == V10:
        pairs = [(name, value) for name, value in pairs if not set(name) & set(":\n\r")]
        return "".join([f"{name}:{escape(value, V10)}\n" for name, value in pairs]).encode()
    return "".join([f"{escape(name, V11)}:{escape(value, V11)}\n" for name, value in pairs]).encode()


def split(data: bytes) -> Iterator[bytes]:
    """Yield the frames (with the LF behind each) and heart-beats of a session's output, which holds whole ones only."""
    pos = 0
    size = len(data)
    while pos < size:
        start = pos
        if data[pos] == 10:
            pos += 1
        else:
            blank = data.index(b"\n\n", pos)
            # Ours is the first of that name, so a header of the producer is never taken for it.
            at = data.find(_LENGTH, pos, blank)
            if at < 0:
                pos = data.index(b"\0", blank) + 2
            else:
                at += len(_LENGTH)
                pos = blank + 2 + int(data[at : data.index(b"\n", at)]) + 2
        yield data[start:pos]
