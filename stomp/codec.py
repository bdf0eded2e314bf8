"""Parses bytes into frames.

`FrameParser.feed(data)` returns the frames that `data` completes. The result does not depend on how the bytes are cut.
Each byte is searched once: the parser remembers how far it has searched an unfinished frame, and every search for the
end of a head is bounded.

The speed comes from one observation: the heads of a client's frames are all the same except for `receipt` (and the id
of an ACK). So the parser takes the receipt out and looks the rest up in a table of heads that it has parsed before.
Only a new head is parsed. If a SEND has headers whose values differ in each message (`VARIED`), these are taken out,
too, and what is left is looked up.
"""

from __future__ import annotations

import re
from typing import Any

from curbstone.core import headers as blocks
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.limits import COMMAND_BYTES_MAX, Limits

V10, V11, V12 = "1.0", "1.1", "1.2"
VERSIONS = (V10, V11, V12)

CLIENT_COMMANDS = frozenset(
    ["CONNECT", "STOMP", "DISCONNECT", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT"]
)
SERVER_COMMANDS = frozenset(["CONNECTED", "MESSAGE", "RECEIPT", "ERROR"])

# A head ends with a blank line; if the frame has no body, it may also end at the frame's NUL, without a blank line.
_END = re.compile(rb"\n\n|\0")
_END_CRLF = re.compile(rb"\n\r?\n|\0")
_EOLS = re.compile(rb"\n*+(?:\r\n++)*+")  # (\r?\n)*, but with possessive quantifiers: no step for each LF of a flood
_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)
VARIED = ("x-key", "JMSXGroupID", "x-unique", "x-replace", "correlation-id", "traceparent")
"""Headers of a SEND that differ in each message and do not affect the rest of its head."""
# Only values that need no decoding in any version; a line with another value is parsed with the rest of the head.
_VARIED = re.compile(rb"\n((?:%b):)([!-\[\]-~][ -\[\]-~]*)(?=\n|\Z)" % "|".join(VARIED).encode())
_REPEATED = (b"x-key:", b"JMSXGroupID:")
"""How those of them begin whose values are often the same."""
_VARIED_BYTES_MAX = 256
"""The most bytes of these lines together: so no value is longer than an ordering key or a name may be."""
_CR, _SPACE, _S = b"\r S"
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)

PLAIN = bytes(c for c in range(0x20, 0x7F) if c != 0x5C)
"""Bytes that are never escaped in any version: printable ASCII without the backslash."""

_HEADS_MAX = 2048
"""How many heads are remembered: enough for one for each queue that a client sends to in turn."""
_HEADS_BYTES_MAX = 256 * 1024
"""The bytes of all remembered heads together."""
_HEAD_CACHED_BYTES_MAX = 1024
_LIKES_MAX = 256
"""How many heads are remembered by what is left of them without `VARIED` headers."""
_LINES_MAX = 1024
_LINE_CACHED_BYTES_MAX = 128


class Head:
    """Command and headers of a frame. Frames with the same head share one instance.

    `headers` has the first value of each name, decoded (§ Repeated Header Entries). `lines` has the line of each as
    received, without CR. `receipt` is in neither. Frames whose heads differ in lines that vary share one, too; it has
    those of the first of them.
    """

    __slots__ = ("command", "content_length", "headers", "lines", "plan")

    def __init__(self, command: str, headers: dict[str, str], lines: dict[str, bytes], length: int | None) -> None:
        self.command = command
        self.headers = headers
        self.lines = lines
        self.content_length = length
        self.plan: Any = None
        """The `SendPlan` of this head, set by the session; None at first."""

    def having(self, varied: bytes) -> Head:
        """Return the head of a frame with these lines that vary."""
        if not varied:
            return self
        head = Head(self.command, self.headers.copy(), self.lines.copy(), self.content_length)
        for line in varied.splitlines():
            name, _, value = line.decode().partition(":")
            head.headers[name] = value
            head.lines[name] = line
        return head

    def __repr__(self) -> str:
        return f"Head({self.command}, {self.headers})"


Frame = tuple[Head, bytes, bytes | None, bytes]
"""(head, its lines that vary, receipt as received or None, body). These lines are those of `VARIED` headers, each with
its LF; they are empty if there are none, or if only frames with the same lines share the head. A plain tuple, because
one is created for each frame."""

ACK_BY_ID = Head("ACK", {}, {}, None)
"""The head of every 1.2 ACK that has only `id` and perhaps `receipt`. In its frames, the id takes the place of the
body."""


class FrameParser:
    """Cuts the bytes of one connection into frames.

    `feed` never raises. When a rule is broken, `error` is set; the frames before it are still returned, and everything
    after it is ignored. `feed` also stops after a CONNECT, because the bytes after it are read by the rules of the
    version that CONNECT negotiates: set `version`, then call `feed(b"")` to continue.
    """

    def __init__(self, limits: Limits) -> None:
        self.error: ProtocolError | None = None
        self._version = ""
        self._limits = limits
        self._body_bytes_max = min(limits.connect_body_bytes_max, limits.body_bytes_max)
        self._heads: dict[bytes, tuple[Head, bytes]] = {}
        """By a head without its receipt, the head, and its lines that vary."""
        self._heads_bytes = 0
        self._likes: dict[tuple[bytes, ...], Head] = {}
        """Heads with lines that vary, by all but the values of these."""
        self._last: _Varied | None = None
        """The last of these heads, if it has one such line, and its value is seldom repeated."""
        self._lines: dict[bytes, tuple[str, str]] = {}
        self._end = _END_CRLF
        self._blank_is_lf = True
        # The unfinished frame: its bytes, its minimum length, and how far it was searched.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed = 0
        self._wants_nul = False
        self._searched = 0

    @property
    def version(self) -> str:
        """The negotiated version; empty before CONNECT. While it is empty, headers are not unescaped."""
        return self._version

    @version.setter
    def version(self, version: str) -> None:
        self._version = version
        self._body_bytes_max = self._limits.body_bytes_max
        self._forget_heads()
        self._likes.clear()
        self._last = None
        self._lines.clear()
        # Only 1.2 allows CRLF; in 1.0 and 1.1 a CR belongs to the value (C2 of their grammar).
        self._end = _END_CRLF if version == V12 else _END

    @property
    def unfinished_bytes(self) -> int:
        """Bytes held of a frame that is not complete."""
        return self._held_bytes

    def close(self) -> None:
        """Drop all state, and ignore later input."""
        self.error = self.error or ProtocolError("closed")
        self._release()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, in order."""
        if self.error is not None:
            return []
        searched = self._searched, self._wants_nul
        if self._held:
            if not self._ready(data):
                return []
            data = b"".join(self._held) + data
            self._release()
        frames: list[Frame] = []
        try:
            rest = self._read_all(data, *searched, frames)
        except ProtocolError as error:
            self.error = error.with_traceback(None)  # the traceback would hold this parser in a reference cycle
            return frames
        if rest < len(data):
            self._held = [data[rest:] if rest else data]
            self._held_bytes = len(data) - rest
        return frames

    def _release(self) -> None:
        self._held = []
        self._held_bytes = self._needed = self._searched = 0
        self._wants_nul = False

    def _ready(self, data: bytes) -> bool:
        """Return whether `data` may complete the held frame; if not, keep `data`."""
        size = self._held_bytes + len(data)
        if size >= self._needed and not (self._wants_nul and 0 not in data and size <= self._body_bytes_max):
            return True
        self._held.append(data)
        self._held_bytes = size
        if self._wants_nul:
            self._searched = size
        return False

    def _read_all(self, data: bytes, searched: int, in_body: bool, frames: list[Frame]) -> int:
        """Append the complete frames of `data`; return where the unfinished one starts."""
        size = len(data)
        head_max = self._limits.header_bytes_max
        body_max = self._body_bytes_max
        heads = self._heads
        fast = self._blank_is_lf and self._version != V10
        pos = 0
        while pos < size:
            if data[pos] <= 13:
                pos = self._skip_beats(data, pos)
                searched = 0
                if pos == size:
                    break
            # The fast path, for the usual frame. `_read_one` handles all others.
            if fast and not searched:
                end = data.find(b"\n\n", pos, pos + head_max)
                if end > 0:
                    key, mark, receipt = data[pos:end].partition(b"\nreceipt:")
                    if mark:
                        receipt, mark, more = receipt.partition(b"\n")
                        if mark:
                            key += b"\n" + more
                        plain = receipt.isalnum() or not receipt.translate(None, PLAIN)
                        found: bytes | None = receipt
                    else:
                        plain = True
                        found = None
                    if plain:
                        known = heads.get(key)
                        start = end + 2
                        if known is None and data[pos] == _S:
                            known = self._learn(key, found)
                        if known is not None:
                            head, varied = known
                            length = head.content_length
                            stop = data.find(b"\0", start) if length is None else start + length
                            if start <= stop < size and not data[stop] and stop - start <= body_max:
                                frames.append((head, varied, found, data[start:stop]))
                                pos = stop + 1
                                continue
                        elif key.startswith(b"ACK\nid:") and self._version == V12 and start < size:
                            ack_id = key[7:]
                            if not data[start] and (ack_id.isalnum() or not ack_id.translate(None, PLAIN)):
                                frames.append((ACK_BY_ID, b"", found, ack_id))
                                pos = start + 1
                                continue
            after = self._read_one(data, pos, searched, in_body, frames)
            if after < 0:
                return pos
            searched = 0
            pos = after
            fast = self._blank_is_lf and self._version != V10
            if frames[-1][0].command in ("CONNECT", "STOMP"):
                return pos
        return pos

    def _learn(self, key: bytes, receipt: bytes | None) -> tuple[Head, bytes] | None:
        """Return a SEND's head, and its lines that vary; parse and remember it if it is new.

        `key` is the head without its receipt. Return None if it must be read by `_read_one`.
        """
        last = self._last
        if last is not None and (varied := last.varied_in(key)):
            return last.head, varied
        # With a CR or a NUL in it, the head may end before the LF LF that was found.
        if len(key) > _HEAD_CACHED_BYTES_MAX or _CR in key or 0 in key or not key.startswith(b"SEND\n"):
            return None
        try:
            if len(self._heads) >= _HEADS_MAX or self._heads_bytes + len(key) > _HEADS_BYTES_MAX:
                self._forget_heads()
            known = self._heads[key] = self._varied_head(key) or (self._head("SEND", key)[0], b"")
        except ProtocolError as error:
            error.receipt = receipt
            raise
        self._heads_bytes += len(key)
        return known

    def _varied_head(self, key: bytes) -> tuple[Head, bytes] | None:
        """Return the head of a SEND, and its lines that vary; None if it has none, or must be parsed with them."""
        parts = _VARIED.split(key)
        if len(parts) == 1:
            return None
        varied = b"".join([name + value + b"\n" for name, value in zip(parts[1::3], parts[2::3], strict=True)])
        if len(varied) > _VARIED_BYTES_MAX:
            return None
        del parts[2::3]
        shape = tuple(parts)
        like = self._likes.get(shape)
        if like is None:
            like = self._head("SEND", key)[0]
            if len(like.lines) != key.count(b"\n"):
                return like, b""  # of two headers with one name the first counts, wherever it is
            if len(self._likes) >= _LIKES_MAX:
                self._likes.clear()
            self._likes[shape] = like
        if len(parts) == 3 and parts[1] not in _REPEATED:
            self._last = _Varied(like, *parts)
        return like, varied

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._heads_bytes = 0

    def _skip_beats(self, data: bytes, pos: int) -> int:
        """Return the position after the line ends at `pos`: heart-beats, or those after a frame's NUL."""
        match = _EOLS.match(data, pos)
        assert match is not None
        return match.end()

    def _read_one(self, data: bytes, pos: int, searched: int, in_body: bool, frames: list[Frame]) -> int:
        """Read the frame at `pos`, in the general way; return the position after it, or -1 if it is unfinished."""
        limits = self._limits
        size = len(data)
        bound = pos + limits.header_bytes_max
        command = self._command(data, pos)
        if command is None:
            return -1
        # After waiting for the rest of a body, the head is parsed once more; heads are short, so this costs little.
        match = self._end.search(data, pos if in_body else pos + max(0, searched - 2), bound)
        try:
            if isinstance(command, ProtocolError) and (match is not None or size >= bound or not self._version):
                raise command
            if match is None:
                if size >= bound:
                    raise ProtocolError(
                        f"the headers are larger than {limits.header_bytes_max} bytes", data[pos : pos + 80]
                    )
                self._searched = size - pos
                return -1
            assert not isinstance(command, ProtocolError)
            end, start = match.span()
            if data[end] == 0:
                if data[end - 1] != 10:
                    raise ProtocolError("a header contains NUL", data[data.rfind(b"\n", pos, end) + 1 : end + 1])
                end, start = end - 1, end
                self._blank_is_lf = True
            else:
                self._blank_is_lf = start - end == 2 and data[end - 1] != 13
            head, receipt = self._head(command, data[pos:end])
            return self._body(data, pos, start, searched if in_body else 0, head, receipt, frames)
        except ProtocolError as error:
            if match is not None:
                error.receipt = self._receipt_of(data[pos : match.start()])
            if command in ("CONNECT", "STOMP"):
                error.shown = b""  # it may be a passcode
            raise

    def _command(self, data: bytes, pos: int) -> str | ProtocolError | None:
        """Return the command at `pos`, None if its line is unfinished, or an error if it is not a client's command.

        Raise the error if the line is longer than any command, or contains NUL, whether it is finished or not.
        """
        stop = data.find(b"\n", pos, pos + COMMAND_BYTES_MAX + 2)
        line = data[pos : stop if stop >= 0 else pos + COMMAND_BYTES_MAX + 2]
        if len(line) > COMMAND_BYTES_MAX or b"\0" in line:
            raise ProtocolError("unknown command", line)
        if stop < 0:
            return None
        if self._end is _END_CRLF and line.endswith(b"\r"):
            line = line[:-1]
        command = line.decode("latin-1")
        if command in CLIENT_COMMANDS:
            return command
        if command in SERVER_COMMANDS:
            return ProtocolError("only a server sends this command", line)
        if command.upper() in CLIENT_COMMANDS:
            return ProtocolError("unknown command; commands are in capitals", line)
        return ProtocolError("unknown command", line)

    def _receipt_of(self, raw: bytes) -> bytes | None:
        """Return the receipt of a head that breaks a rule, or None if the receipt itself breaks one."""
        for line in raw.split(b"\n")[1:]:
            if line.startswith(b"receipt:"):
                if self._end is _END_CRLF:
                    line = line.removesuffix(b"\r")
                try:
                    pair = self._header("SEND", line)
                except ProtocolError:
                    return None
                return line[8:] if self._version != V10 else pair[1].encode()
        return None

    def _head(self, command: str, raw: bytes) -> tuple[Head, bytes | None]:
        """Parse a head (without its final line end); return the head and its receipt."""
        lines = raw.split(b"\n")
        strip_cr = self._end is _END_CRLF and _CR in raw
        known = self._lines
        headers: dict[str, str] = {}
        kept: dict[str, bytes] = {}
        receipt: bytes | None = None
        for line in lines[1:]:
            if strip_cr and line.endswith(b"\r"):
                line = line[:-1]
            pair = known.get(line)
            if pair is None:
                pair = self._header(command, line)
            name = pair[0]
            if name == "receipt":
                if receipt is None:
                    receipt = line.partition(b":")[2] if self._version != V10 else pair[1].encode()
            elif name not in headers:
                headers[name] = pair[1]
                kept[name] = line
        if len(headers) > self._limits.headers_max:
            raise ProtocolError(f"a frame has at most {self._limits.headers_max} headers")
        head = Head(command, headers, kept, None)
        length = headers.get("content-length")
        if length is not None:
            if not _DIGITS.fullmatch(length):
                raise ProtocolError("content-length is not a whole number", kept["content-length"])
            head.content_length = int(length)
        return head, receipt

    def _header(self, command: str, line: bytes) -> tuple[str, str]:
        """Return name and value of a header line, decoded as the version says."""
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise ProtocolError("a header is not UTF-8", line) from None
        name, colon, value = text.partition(":")
        if not colon:
            raise ProtocolError("a header line has no colon", line)
        if self._end is _END_CRLF and "\r" in text:
            raise ProtocolError("a header contains a bare CR", line)
        if self._version == V10:
            name, value = name.strip(), value.strip()
        elif "\\" in text and command not in ("CONNECT", "STOMP"):
            name, value = self._unescape(name, line), self._unescape(value, line)
        if not name:
            raise ProtocolError("a header has no name", line)
        if len(line) <= _LINE_CACHED_BYTES_MAX and command not in ("CONNECT", "STOMP"):
            if len(self._lines) >= _LINES_MAX:
                self._lines.clear()
            self._lines[line] = (name, value)
        return name, value

    def _unescape(self, text: str, line: bytes) -> str:
        # 1.0 has no escapes, 1.1 has \n \c \\ and 1.2 also \r; any other escape is fatal (§ Value Encoding).
        if self._version == "":
            return text
        if self._version == V11 and "r" in _ESCAPE.findall(text):
            raise ProtocolError("STOMP 1.1 has no escape \\r", line)
        try:
            return blocks.unescape(text)
        except blocks.HeaderError as error:
            raise ProtocolError(str(error), line) from None

    def _body(
        self, data: bytes, pos: int, start: int, searched: int, head: Head, receipt: bytes | None, frames: list[Frame]
    ) -> int:
        """Read the body from `start`; return the position after its NUL, or -1 if it is unfinished."""
        size = len(data)
        body_max = self._body_bytes_max
        length = head.content_length
        if length is not None:
            if length > body_max:
                raise ProtocolError(
                    f"the body of {length} bytes is larger than {body_max} bytes", head.lines["content-length"]
                )
            stop = start + length
            if stop >= size:
                self._needed = stop + 1 - pos
                return -1
            if data[stop]:
                raise ProtocolError("no NUL follows the body of content-length bytes", data[stop : stop + 20])
        else:
            stop = data.find(b"\0", max(start, pos + searched))
            if (stop if stop >= 0 else size) - start > body_max:
                raise ProtocolError(f"the body is larger than {body_max} bytes")
            if stop < 0:
                self._wants_nul = True
                self._searched = size - pos
                return -1
        if stop > start and head.command != "SEND" and self._version not in ("", V10):
            raise ProtocolError(f"a {head.command} frame can't have a body", data[start : min(stop, start + 80)])
        frames.append((head, b"", receipt, data[start:stop]))
        return stop + 1


class _Varied:
    """What heads have in common that differ in one value alone."""

    __slots__ = ("_after", "_before", "_name", "head")

    def __init__(self, head: Head, before: bytes, name: bytes, after: bytes) -> None:
        self.head = head
        self._before = before + b"\n" + name
        self._name = name
        self._after = after

    def varied_in(self, key: bytes) -> bytes:
        """Return the line with the value, and its LF, if a head has all this in common; else nothing."""
        start, end = len(self._before), len(key) - len(self._after)
        if not 0 < end - start <= _VARIED_BYTES_MAX:
            return b""
        value = key[start:end]
        if key[:start] != self._before or key[end:] != self._after:
            return b""
        if value.isalnum() or (value[0] != _SPACE and not value.translate(None, PLAIN)):
            return self._name + value + b"\n"
        return b""
