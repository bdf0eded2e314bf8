"""Encodes the frames that a server sends.

Each frame ends with an LF after its NUL, as in other brokers; clients expect it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from curbstone.core import headers as blocks
from curbstone.stomp.codec import V10, V11, V12
from curbstone.stomp.errors import body_text

HEART_BEAT = b"\n"

CHARSET_MARK = b"x-http-charset:"
"""The start of a line that the gateway stores in header blocks for its own use: the charset of HTTP header values."""

_CHARSET_LINE = re.compile(rb"^x-http-charset:[^\n]*\n", re.MULTILINE)
_LENGTH = b"\ncontent-length:"
_BACKSLASH = ord("\\")

_BARE = str.maketrans({"\\": "/", "\n": " ", "\r": " ", "\0": " "})


def connected(
    version: str, heart_beat: tuple[int, int], session: str, server: str, sync: str, more: tuple[str, ...] = ()
) -> bytes:
    """Return CONNECTED. This frame is never escaped (§ Value Encoding); only its `:` would have to be."""
    lines = "".join([f"{line}\n" for line in more])
    return (
        f"CONNECTED\nversion:{version}\nheart-beat:{heart_beat[0]},{heart_beat[1]}\nsession:{session}\n"
        f"server:{server}\nx-sync:{sync}\n{lines}\n\0\n"
    ).encode()


def receipt(receipt_id: bytes, more: tuple[str, ...] = ()) -> bytes:
    """Return RECEIPT. `receipt_id` is encoded as the client sent it, so it is written unchanged."""
    return b"RECEIPT\nreceipt-id:%b\n%b\n\0\n" % (receipt_id, "".join([f"{line}\n" for line in more]).encode())


def receipts(receipt_ids: Iterable[bytes]) -> bytes:
    """Return a RECEIPT for each id; there must be at least one."""
    return b"RECEIPT\nreceipt-id:" + b"\n\n\0\nRECEIPT\nreceipt-id:".join(receipt_ids) + b"\n\n\0\n"


def error(
    rule: str,
    shown: bytes | str = "",
    receipt_id: bytes | None = None,
    headers: tuple[str, ...] = (),
    version: str = "",
) -> bytes:
    """Return ERROR with a text body.

    The only backslash in its `message` is that of an escaped colon, so every client reads it correctly. Before a
    version is agreed on, it is written as in 1.0, without escapes.
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
    """Return `text` as a header value of that version. Characters that 1.0 and 1.1 can't write become spaces."""
    if version == V12:
        return blocks.escape(text)
    if version == V11:
        return blocks.escape(text.replace("\r", " "))
    return text.replace("\n", " ").replace("\r", " ")


def encode_block(block: bytes, version: str) -> bytes:
    """Return the header lines of a stored block for a session of that version.

    The block is encoded as in 1.2, so for 1.2 it is used unchanged, except for the gateway's own line. A block without
    a backslash is the same in every version. Otherwise the block is encoded again: 1.1 has no `\\r`, and 1.0 has no
    escapes at all. For 1.0, a header whose name would need an escape is left out, because clients would read it as
    another header.
    """
    if block.find(CHARSET_MARK) >= 0:
        block = _CHARSET_LINE.sub(b"", block)
    if version == V12 or _BACKSLASH not in block:
        return block
    pairs = blocks.decode(block)
    if version == V10:
        pairs = [(name, value) for name, value in pairs if not set(name) & set(":\n\r")]
        return "".join([f"{name}:{escape(value, V10)}\n" for name, value in pairs]).encode()
    return "".join([f"{escape(name, V11)}:{escape(value, V11)}\n" for name, value in pairs]).encode()


def split(data: bytes) -> Iterator[bytes]:
    """Yield the frames (each with the LF after it) and heart-beats of a session's output, which has no partial ones."""
    pos = 0
    size = len(data)
    while pos < size:
        start = pos
        if data[pos] == 10:
            pos += 1
        else:
            blank = data.index(b"\n\n", pos)
            # The first content-length is the server's own, so a producer's header of that name is never taken for it.
            at = data.find(_LENGTH, pos, blank)
            if at < 0:
                pos = data.index(b"\0", blank) + 2
            else:
                at += len(_LENGTH)
                pos = blank + 2 + int(data[at : data.index(b"\n", at)]) + 2
        yield data[start:pos]
