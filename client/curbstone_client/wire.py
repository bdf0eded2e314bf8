"""STOMP 1.2 in a client. Pure: bytes in, frames out.

Nearly all frames of a server are RECEIPTs and MESSAGEs, so both are parsed in few steps: a run of RECEIPTs takes one
split, and of a MESSAGE only the header `content-length` is searched, which tells where its body ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

RECEIPT = b"RECEIPT\nreceipt-id:"
_NEXT_RECEIPT = b"\n\n\0\n" + RECEIPT
_LENGTH = b"\ncontent-length:"
_HEAD_BYTES_MAX = 1024 * 1024

CONTENT_LENGTH_FROM = 32 * 1024
"""A body from this size on is sent with a content-length, so that its end need not be searched for.

So is a body with a NUL byte, which would end the frame otherwise.
"""


class WireError(Exception):
    """The server sent an invalid frame."""


@dataclass(frozen=True, slots=True)
class Receipts:
    """A run of RECEIPT frames. Each piece is the receipt id and, after a LF, the further lines of the head, if any."""

    pieces: list[bytes]


Delivery = tuple[bytes, bytes]
"""A MESSAGE: its head without the command line, and its body. It is a plain tuple because there are so many."""


@dataclass(frozen=True, slots=True)
class Other:
    """Any other frame, such as CONNECTED or ERROR."""

    command: str
    headers: dict[str, str]
    body: bytes


Item = Receipts | Delivery | Other


def escape(text: str) -> str:
    """Escape the name or value of a header as in STOMP 1.2. Raise ValueError if it has a NUL."""
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if ":" in text:
        text = text.replace(":", "\\c")
    if "\n" in text:
        text = text.replace("\n", "\\n")
    if "\r" in text:
        text = text.replace("\r", "\\r")
    if "\0" in text:
        raise ValueError("a header can't contain NUL")
    return text


def unescape(text: str) -> str:
    """Unescape the name or value of a header."""
    if "\\" not in text:
        return text
    first, *rest = text.split("\\\\")
    return "\\".join([_unescape_plain(part) for part in [first, *rest]])


def _unescape_plain(text: str) -> str:
    return text.replace("\\c", ":").replace("\\n", "\n").replace("\\r", "\r")


def head(command: str, headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """Return the head of a frame, without the blank line after it."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    lines = [command, *[f"{escape(name)}:{escape(value)}" for name, value in pairs]]
    return "\n".join(lines).encode()


def frame(command: str, headers: Mapping[str, str] | Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """Return a whole frame."""
    return b"%b\n\n%b\0" % (head(command, headers), body)


def connect(headers: Mapping[str, str]) -> bytes:
    """Return a CONNECT frame, whose headers are not escaped (§ Value Encoding). Raise ValueError for a line break."""
    lines = "".join([f"{name}:{value}\n" for name, value in headers.items()])
    if "\0" in lines or "\r" in lines or lines.count("\n") != len(headers):
        raise ValueError("a login can't contain line breaks")
    return f"CONNECT\n{lines}\n\0".encode()


def parse_head(lines: bytes) -> dict[str, str]:
    """Parse the headers of a head without its command line. If a name is repeated, the first one counts."""
    headers: dict[str, str] = {}
    for line in lines.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers.setdefault(unescape(name), unescape(value.removesuffix("\r")))
    return headers


class Parser:
    """Splits the bytes of a server into frames.

    The frames do not depend on how the bytes were split, except that a run of RECEIPTs may come in several parts.
    """

    def __init__(self) -> None:
        self._held = b""
        self._parts: list[bytes] = []
        self._needed = 0

    def feed(self, data: bytes) -> list[Item]:
        """Return the frames that these bytes complete. Raise WireError."""
        if self._parts:
            self._parts.append(data)
            self._needed -= len(data)
            if self._needed > 0:
                return []
            data = b"".join(self._parts)
            self._parts = []
        items: list[Item] = []
        rest, needed = self._cut(data, items)
        if rest < len(data):
            self._parts = [data[rest:] if rest else data]
            self._needed = needed
        return items

    def _cut(self, data: bytes, items: list[Item]) -> tuple[int, int]:
        """Append the complete frames to `items`.

        Return where the incomplete one starts, and how many bytes are missing at least.
        """
        pos = 0
        size = len(data)
        while pos < size:
            first = data[pos]
            if first == 10 or first == 13:  # a heart-beat, or a line end after a frame
                pos += 1
                continue
            if first == 82 and data.startswith(RECEIPT, pos):
                end = self._receipts(data, pos, items)
                if end > pos:
                    pos = end
                    continue
            blank = data.find(b"\n\n", pos)
            if blank < 0:
                if size - pos > _HEAD_BYTES_MAX:
                    raise WireError("the server sent a head that is too long")
                return pos, 1
            start = blank + 2
            at = data.find(_LENGTH, pos, blank)
            if at < 0:
                end = data.find(b"\0", start)
                if end < 0:
                    return pos, 1
            else:
                at += 16
                line = data.find(b"\n", at)
                try:
                    end = start + int(data[at:line])
                except ValueError:
                    raise WireError("the server sent a content-length that is not a number") from None
                if end >= size:
                    return pos, end + 1 - size
                if data[end]:
                    raise WireError("the server sent a body without its NUL")
            if first == 77 and data.startswith(b"MESSAGE\n", pos):
                items.append((data[pos + 8 : blank], data[start:end]))
            else:
                items.append(_other(data[pos:blank], data[start:end]))
            pos = end + 1
        return size, 0

    def _receipts(self, data: bytes, pos: int, items: list[Item]) -> int:
        """Append the run of complete RECEIPTs at `pos`. Return the position after it, or `pos` if none is complete."""
        end = data.find(b"\n\n\0", pos)
        if end < 0:
            return pos
        if not data.startswith(_NEXT_RECEIPT, end):
            items.append(Receipts([data[pos + 19 : end]]))
            return end + 3
        pieces = data[pos + 19 : data.rfind(b"\n\n\0", end)].split(_NEXT_RECEIPT)
        for index, piece in enumerate(pieces):
            if b"\0" in piece:  # another frame follows this RECEIPT, so the run ends here
                pieces[index:] = [piece[: piece.index(b"\n\n\0")]]
                break
        items.append(Receipts(pieces))
        return pos + sum(map(len, pieces)) + 23 * len(pieces) - 1


def _other(lines: bytes, body: bytes) -> Other:
    command, _, rest = lines.partition(b"\n")
    name = command.decode("latin-1").removesuffix("\r")
    if name not in ("CONNECTED", "ERROR", "RECEIPT", "MESSAGE"):
        raise WireError(f"the server sent {name[:40]!r}, which is not a frame of a server")
    return Other(name, parse_head(rest), body)
