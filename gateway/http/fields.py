"""The header fields of a request, walked once; afterwards each field is looked up by name."""

from __future__ import annotations

from curbstone.core import batches, headers, orders

Header = tuple[bytes, bytes]

FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect"))
"""The fields that `head.framing_of` checks."""

TRAVELLING = {
    "content-encoding": "Content-Encoding",
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    headers.KEY: "key",
    orders.UNIQUE: "unique",
    orders.UNIQUE_UNTIL: "unique_until",
    orders.REPLACE: "replace",
    batches.BATCH: "batch",
    batches.BATCH_SIZE: "batch_size",
    batches.BATCH_TO: "batch_to",
}
"""The headers, besides Content-Type, that stay with a message over every protocol, and their names in JSON."""
PRIORITY = b"x-priority"
"""The header for a message's priority. `priority` itself is for the response (RFC 9218), and browsers send it."""
REPLACE_MAX = orders.REPLACE_MAX.encode()
"""The header for how long messages that replace each other may wait, in seconds; a header block has it in ms."""
MESSAGE_PREFIX, EVENT_PREFIX = b"x-msg-x-", b"ce-"
"""The prefixes of a message's own headers and of a CloudEvent's attributes."""

_OF_MESSAGE = frozenset([b"content-type", PRIORITY, REPLACE_MAX, *(name.encode() for name in TRAVELLING)])
_PREFIXES_OF_MESSAGE = (MESSAGE_PREFIX, EVENT_PREFIX)


class Fields:
    """The header fields of a request: `scope["fields"]`."""

    __slots__ = ("all", "framing", "named", "of_message")

    def __init__(self, fields: list[Header]) -> None:
        """`fields` are in order, with their names in lower case."""
        self.all = fields
        self.named: dict[bytes, bytes] = {}
        """The first value of each name."""
        self.framing: list[Header] = []
        """The fields that frame the request: those of `FRAMING`."""
        self.of_message: list[Header] = []
        """The fields that a published message keeps."""
        named = self.named
        for field in fields:
            name, value = field
            if name not in named:
                named[name] = value
            if name in FRAMING:
                self.framing.append(field)
            elif name in _OF_MESSAGE or name.startswith(_PREFIXES_OF_MESSAGE):
                self.of_message.append(field)

    def value(self, name: bytes) -> bytes:
        """Return the first value of a name, or b"" without it."""
        return self.named.get(name, b"")

    def put(self, name: bytes, value: bytes) -> None:
        """Append a field that the head does not have."""
        self.all.append((name, value))
        self.named[name] = value
