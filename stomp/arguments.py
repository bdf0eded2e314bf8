"""Headers of a SUBSCRIBE or SEND that set options of the queue it creates, named as in RabbitMQ.

| header | option of the queue |
|---|---|
| `auto-delete:true`, `exclusive:true` | `unused` 0: the queue is deleted when its last consumer leaves |
| `x-expires:ms` | `unused` |
| `x-message-ttl:ms` (on a SEND it is the message's own) | `ttl` |
| `x-max-length-bytes:n` with `x-overflow:reject-publish` or `drop-head` | `cap`, and `overflow` |
| `x-dead-letter-routing-key:queue` | `dead_letter` |

They are applied only when the queue is created. If the queue exists, its options must already match the headers:
sending or subscribing does not change them. A SUBSCRIBE with `exclusive:true` is refused if the queue has a consumer; a
later subscriber without that header is accepted. A connection's private queues are deleted with the connection in any
case, so for them only `auto-delete` and `exclusive` are accepted.
"""

from __future__ import annotations

from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.stomp import header_values
from curbstone.stomp.codec import Head
from curbstone.stomp.destinations import Destination
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.session_state import SessionState

AUTO_DELETE = ("auto-delete", "exclusive")
HEADERS = frozenset(
    [*AUTO_DELETE, "x-expires", "x-message-ttl", "x-max-length-bytes", "x-overflow"]
    + ["x-dead-letter-exchange", "x-dead-letter-routing-key"]
)
OVERFLOWS = {"reject-publish": "refuse", "drop-head": "drop-oldest"}
_HEADER_OF = {
    "unused": "x-expires",
    "ttl": "x-message-ttl",
    "cap": "x-max-length-bytes",
    "overflow": "x-overflow",
    "dead_letter": "x-dead-letter-routing-key",
}
"""The header that sets each option."""
OF_SEND: frozenset[str] = HEADERS - {"x-message-ttl"}


def apply(connection: SessionState, head: Head, destination: Destination) -> None:
    """Create the destination's queue with the options in the headers; raise ProtocolError if it exists with others."""
    changes = _options(head)
    if destination.private:
        known = HEADERS if head.command == "SUBSCRIBE" else OF_SEND
        for header in sorted(known - {*AUTO_DELETE}):
            if head.headers.get(header):
                raise ProtocolError(
                    f"{header} is for queues that outlive their connection; this one is deleted with it",
                    head.lines[header],
                )
        return
    name = destination.queue
    try:
        queue = connection.access.find(name)
    except NoSuchQueue:
        if changes:
            connection.access.declare(name, changes, lambda error: _failed(connection, error))
        return
    # Checked before the options: the exclusive subscriber may have created the queue with more options than this
    # client's headers, and an error about those would mislead.
    is_exclusive = head.command == "SUBSCRIBE" and header_values.flag(head, "exclusive")
    if is_exclusive and queue.counts().consumers:
        raise ProtocolError(
            f"queue {name} can't be exclusive, because it has a consumer",
            head.lines["exclusive"],
        )
    options = queue.options.merged(changes, name.project)
    if options != queue.options:
        now = queue.options.as_json()
        wrong = next(option for option, value in options.as_json().items() if value != now[option])
        current = (
            _as_header(wrong, now[wrong]) if connection.access.may(Right.PEEK, name) else f"another {_HEADER_OF[wrong]}"
        )
        raise ProtocolError(
            f"queue {name} exists with {current}; change the options of a queue over HTTP",
            f"destination:{head.headers['destination']}",
        )


def _options(head: Head) -> dict[str, object]:
    """Return the options that the headers set; raise ProtocolError."""
    changes: dict[str, object] = {}
    if any([header_values.flag(head, name) for name in AUTO_DELETE]):
        changes["unused"] = 0
    expires_ms = header_values.number(head, "x-expires", 1, header_values.DURATION_MS_MAX)
    if expires_ms is not None:
        changes["unused"] = expires_ms / 1000
    if head.command == "SUBSCRIBE":
        ttl_ms = header_values.number(head, "x-message-ttl", 1, header_values.DURATION_MS_MAX)
        if ttl_ms is not None:
            changes["ttl"] = ttl_ms / 1000
    overflow = head.headers.get("x-overflow", "")
    if overflow and overflow not in OVERFLOWS:
        raise ProtocolError("x-overflow must be reject-publish or drop-head", head.lines["x-overflow"])
    if overflow:
        changes["overflow"] = OVERFLOWS[overflow]
    size = header_values.number(head, "x-max-length-bytes", 1, 10**15)
    if size is not None:
        if not overflow:
            raise ProtocolError(
                "x-max-length-bytes needs x-overflow: reject-publish, or drop-head to drop the oldest messages",
                head.lines["x-max-length-bytes"],
            )
        changes["cap"] = size
    if head.headers.get("x-dead-letter-exchange"):
        raise ProtocolError(
            "there are no exchanges; name the dead-letter queue with x-dead-letter-routing-key alone",
            head.lines["x-dead-letter-exchange"],
        )
    if dead_letter := head.headers.get("x-dead-letter-routing-key"):
        changes["dead_letter"] = dead_letter
    return changes


def _as_header(option: str, value: object) -> str:
    """Return the value of a queue's option as the header that would set it."""
    header = _HEADER_OF[option]
    if option == "unused":
        if value is None:
            return "neither auto-delete nor x-expires"
        if not value:
            return "auto-delete:true"
    if not value:
        return f"no {header}"
    if option in ("unused", "ttl"):
        assert isinstance(value, int | float)
        return f"{header}:{round(value * 1000)}"
    if option == "overflow":
        value = next(word for word, ours in OVERFLOWS.items() if ours == value)
    return f"{header}:{value}"


def _failed(connection: SessionState, error: CurbstoneError | None) -> None:
    if error is not None and not connection.lost:
        connection.fail(error)
