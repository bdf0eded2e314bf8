"""The client's side of a WebSocket (RFC 6455) as a stream of bytes: the handshake, and payloads in and out. Pure.

STOMP is one stream, however it is split into messages, so message and fragment boundaries are ignored here. The output
of a flush is one masked binary message, or several if it is large. The mask is applied as one XOR of two large
integers, which is fast without an extension.
"""

from __future__ import annotations

import base64
import hashlib
import os

from curbstone_client.errors import CantConnect, ClientError, NotAllowed, detail_of

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_HEAD_BYTES_MAX = 64 * 1024
_MESSAGE_BYTES = 64 * 1024
"""The output is split into messages of at most this size, because servers limit the size of messages."""

_CLOSE, _PING, _PONG = 8, 9, 10


class BadFrame(Exception):
    """The server sent an invalid WebSocket frame."""


def request(authority: str, path: str, key: bytes, token: str | None) -> bytes:
    """Return the request that opens the WebSocket."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {authority}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key.decode()}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: v12.stomp",
    ]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode()


def new_key() -> bytes:
    """Return a key for a handshake."""
    return base64.b64encode(os.urandom(16))


def response(data: bytes, key: bytes) -> bytes | None:
    """Check the server's response to the handshake, and return the bytes that follow it in `data`.

    Return None while the response is incomplete. Raise ClientError if the server refused.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > _HEAD_BYTES_MAX:
            raise CantConnect("the server's response to the handshake is too long")
        return None
    status_line, *lines = data[:end].decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    words = status_line.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1."):
        raise CantConnect("this is not an HTTP server")
    if words[1] != "101":
        raise refused(status_line, data[end + 4 :], headers.get("retry-after", ""))
    if headers.get("sec-websocket-accept", "") != base64.b64encode(hashlib.sha1(key + _GUID).digest()).decode():
        raise CantConnect("wrong Sec-WebSocket-Accept in the handshake")
    return data[end + 4 :]


def refused(status_line: str, body: bytes, retry_after: str) -> ClientError:
    """Return the error for a response to a handshake with a status other than 101."""
    words = status_line.split(" ", 2)
    detail = detail_of(body)
    text = f"the server answered {' '.join(words[1:])}" + (f": {detail}" if detail else "")
    if words[1] in ("401", "403"):
        return NotAllowed(text, int(words[1]))
    return CantConnect(text, float(retry_after) if retry_after.isdigit() else None)


def encode(data: bytes) -> bytes:
    """Return the bytes of the stream as masked binary messages."""
    if len(data) <= _MESSAGE_BYTES:
        return _masked(0x82, data)
    pieces = [data[at : at + _MESSAGE_BYTES] for at in range(0, len(data), _MESSAGE_BYTES)]
    return b"".join([_masked(0x82, piece) for piece in pieces])


def _masked(first: int, data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65536:
        head = bytes((first, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, 0xFF)) + size.to_bytes(8, "big")
    mask = os.urandom(4)
    key = (mask * (size // 4 + 1))[:size]
    masked = (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")
    return b"%b%b%b" % (head, mask, masked)


class Decoder:
    """Decodes the payloads of a server's messages as one stream."""

    def __init__(self) -> None:
        self._held = b""
        self._payload_left = 0
        self.close_reason: str | None = None
        """Why the server closed the WebSocket; None while it is open."""
        self.replies: list[bytes] = []
        """Frames to send: pongs, and the reply to a close. The caller clears the list."""

    def feed(self, data: bytes) -> bytes:
        """Return the payload in these bytes; raise BadFrame."""
        left = self._payload_left
        if left >= len(data) and left:
            self._payload_left = left - len(data)
            return data
        out: list[bytes] = []
        pos = 0
        if left:
            out.append(data[:left])
            pos = left
            self._payload_left = 0
        elif self._held:
            data = self._held + data
            self._held = b""
        size = len(data)
        while pos < size and self.close_reason is None:
            start, length = _head(data, pos)
            if start < 0:
                self._held = data[pos:]
                break
            first = data[pos]
            stop = start + length
            if first & 8:
                if stop > size:
                    self._held = data[pos:]
                    break
                self._control(first & 15, data[start:stop])
                pos = stop
                continue
            out.append(data[start:stop])
            if stop > size:
                self._payload_left = stop - size
                break
            pos = stop
        return out[0] if len(out) == 1 else b"".join(out)

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self.replies.append(_masked(0x80 | _PONG, payload))
        elif opcode == _CLOSE:
            code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
            self.close_reason = f"{payload[2:].decode('utf-8', 'replace') or 'no reason given'} (close code {code})"
            self.replies.append(_masked(0x80 | _CLOSE, payload[:2]))


def _head(data: bytes, pos: int) -> tuple[int, int]:
    """Return the start and the length of the payload of the frame at `pos`. -1 means that the head is incomplete."""
    size = len(data)
    if size - pos < 2:
        return -1, 0
    if data[pos] & 0x70 or data[pos + 1] & 0x80:
        raise BadFrame("the server sent a frame with a mask or reserved bits")
    length = data[pos + 1]
    if length < 126:
        return pos + 2, length
    start = pos + (4 if length == 126 else 10)
    if size < start:
        return -1, 0
    return start, int.from_bytes(data[pos + 2 : start], "big")
