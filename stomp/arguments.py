"""Arguments of a queue in the headers of a SUBSCRIBE or SEND, as RabbitMQ has them: options of the queue it makes.

| header | option of the queue |
|---|---|
| `auto-delete:true`, `exclusive:true` | `unused` 0: it goes when its last consumer has left |
| `x-expires:ms` | `unused` |
| `x-message-ttl:ms` (of a SEND it is that of the message) | `ttl` |
| `x-max-length-bytes:n` with `x-overflow:reject-publish` or `drop-head` | `cap`, and `overflow` |
| `x-dead-letter-routing-key:queue` | `dead_letter` |

They make a queue what it is when it is made. One that is there must be so already: whoever only sends or subscribes
does not change it. A subscriber that asks for an exclusive queue is refused where there is a consumer; later ones that
do not ask are not kept away. A queue of the connection's own goes with that anyway.
"""

from __future__ import annotations

from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.stomp import header_values
from curbstone.stomp.codec import Head
from curbstone.stomp.destinations import Destination
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.session_state import SessionState

GOING = ("auto-delete", "exclusive")
HEADERS = frozenset(
    [*GOING, "x-expires", "x-message-ttl", "x-max-length-bytes", "x-overflow"]
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
"""What a client calls an option."""
OF_SEND: frozenset[str] = HEADERS - {"x-message-ttl"}


def apply(connection: SessionState, head: Head, destination: Destination) -> None:
    """Make the queue of a destination as the headers ask; raise ProtocolError where it can't be so."""
    changes = _options(head)
    if destination.private:
        known = HEADERS if head.command == "SUBSCRIBE" else OF_SEND
        for header in sorted(known - {*GOING}):
            if head.headers.get(header):
                raise ProtocolError(f"{header} is for queues that outlive their connection", head.lines[header])
        return
    name = destination.queue
    try:
        queue = connection.access.find(name)
    except NoSuchQueue:
        if changes:
            connection.access.declare(name, changes, lambda error: _failed(connection, error))
        return
    # The exclusive one may have made it with more than this client asks for: that is not what is wrong then.
    is_exclusive = head.command == "SUBSCRIBE" and header_values.flag(head, "exclusive")
    if is_exclusive and queue.counts().consumers:
        raise ProtocolError(
            f"queue {name} has a consumer, so it can't be exclusive: an exclusive queue has one subscriber",
            head.lines["exclusive"],
        )
    options = queue.options.merged(changes, name.project)
    if options != queue.options:
        now = queue.options.as_json()
        wrong = next(option for option, value in options.as_json().items() if value != now[option])
        is_with = (
            _as_header(wrong, now[wrong]) if connection.access.may(Right.PEEK, name) else f"another {_HEADER_OF[wrong]}"
        )
        raise ProtocolError(
            f"queue {name} is there with {is_with}; options of a queue are changed over HTTP",
            f"destination:{head.headers['destination']}",
        )


def _options(head: Head) -> dict[str, object]:
    """Return the options that the headers stand for; raise ProtocolError."""
    changes: dict[str, object] = {}
    if any([header_values.flag(head, name) for name in GOING]):
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
        raise ProtocolError("x-overflow is reject-publish or drop-head", head.lines["x-overflow"])
    if overflow:
        changes["overflow"] = OVERFLOWS[overflow]
    size = header_values.number(head, "x-max-length-bytes", 1, 10**15)
    if size is not None:
        if not overflow:
            raise ProtocolError(
                "x-max-length-bytes needs x-overflow here: reject-publish, or drop-head if the oldest shall give way",
                head.lines["x-max-length-bytes"],
            )
        changes["cap"] = size
    if head.headers.get("x-dead-letter-exchange"):
        raise ProtocolError(
            "there are no exchanges; x-dead-letter-routing-key alone names the queue of dead letters",
            head.lines["x-dead-letter-exchange"],
        )
    if letters := head.headers.get("x-dead-letter-routing-key"):
        changes["dead_letter"] = letters
    return changes


def _as_header(option: str, value: object) -> str:
    """Return what an option of a queue is in the words of these headers."""
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
