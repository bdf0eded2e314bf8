"""Headers and destinations of other brokers that are refused here, with an ERROR that names the nearest alternative.

If such a header were ignored, the client would fail silently: a message would be lost, arrive too early, or stay
forever. A header that changes nothing here (`persistent:true` on a SEND) is accepted. tools/ops/docs_tables.py writes
the tables of docs/stomp.md from these.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from curbstone.core.filters import NOT_SHARED
from curbstone.stomp.codec import Head
from curbstone.stomp.errors import ProtocolError

SUBSCRIBE, SEND, BOTH = ("SUBSCRIBE",), ("SEND",), ("SEND", "SUBSCRIBE")
QUEUE, TOPIC, ANY = "a queue", "a topic", "any destination"
NO_TOPIC = "any destination but a topic"


class Header(NamedTuple):
    """A header of another broker that is refused here."""

    name: str
    value: str
    """The value that is refused; `…` for any value."""
    commands: tuple[str, ...]
    where: str
    rule: str

    def concerns(self, kind: str) -> bool:
        """Return whether it is refused for this kind of destination: QUEUE, TOPIC or ANY, which is any other."""
        return self.where in (ANY, kind) or (self.where == NO_TOPIC and kind != TOPIC)


_EXCLUSIVE = "a queue may have several consumers; for a queue of one connection use /temp-queue/{name}"
_LENGTH = "limit the bytes of a queue, with x-max-length-bytes or the option cap"
_NO_LOCAL = "subscribers of a topic also get what their own connection sends"
_MULTICAST = "a copy for each subscriber needs a topic, /topic/{event}"
_ANYCAST = "delivery to one consumer needs a queue, /queue/{queue}"
_SCHEDULE = "a message is delivered once; delay it with AMQ_SCHEDULED_DELAY or x-delta-t, in ms"

UNSUPPORTED = (
    Header("x-queue-name", "…", SEND, ANY, "the destination names the queue"),
    Header("activemq.exclusive", "true", SUBSCRIBE, ANY, _EXCLUSIVE),
    Header("x-single-active-consumer", "true", BOTH, ANY, _EXCLUSIVE),
    Header("x-max-length", "…", BOTH, ANY, _LENGTH),
    Header("x-stream-offset", "…", SUBSCRIBE, ANY, "read by position over HTTP, see docs/pipeline-api.md"),
    Header("selector", "…", SUBSCRIBE, NO_TOPIC, NOT_SHARED),
    Header("browser", "true", SUBSCRIBE, ANY, "look at a queue over HTTP, with GET …/messages"),
    Header("no-local", "true", SUBSCRIBE, ANY, _NO_LOCAL),
    Header("activemq.noLocal", "true", SUBSCRIBE, ANY, _NO_LOCAL),
    Header(
        "activemq.retroactive",
        "true",
        SUBSCRIBE,
        ANY,
        "topics keep nothing; bind a queue to the event to keep messages",
    ),
    Header("destination-type", "MULTICAST", SEND, QUEUE, _MULTICAST),
    Header("destination-type", "ANYCAST", SEND, TOPIC, _ANYCAST),
    Header("subscription-type", "MULTICAST", SUBSCRIBE, QUEUE, _MULTICAST),
    Header("subscription-type", "ANYCAST", SUBSCRIBE, TOPIC, _ANYCAST),
    Header("consumer-window-size", "…", SUBSCRIBE, ANY, "windows count messages, not bytes: use prefetch-count"),
    Header("AMQ_SCHEDULED_TIME", "…", SEND, ANY, "set the time of delivery with x-next-t, in ms since 1970"),
    Header("AMQ_SCHEDULED_PERIOD", "…", SEND, ANY, _SCHEDULE),
    Header("AMQ_SCHEDULED_REPEAT", "…", SEND, ANY, _SCHEDULE),
    Header("AMQ_SCHEDULED_CRON", "…", SEND, ANY, _SCHEDULE),
)

HEADERS = frozenset(header.name for header in UNSUPPORTED)


def check_headers(head: Head, kind: str) -> None:
    """Raise ProtocolError if the frame has a refused header. Needed only if the frame has any of `HEADERS`.

    `kind` is the kind of its destination: QUEUE, TOPIC or ANY.
    """
    for header in UNSUPPORTED:
        value = head.headers.get(header.name)
        if value is None or head.command not in header.commands or not header.concerns(kind):
            continue
        if value and (header.value == "…" or value.lower() == header.value.lower()):
            raise ProtocolError(f"{header.name} is not supported: {header.rule}", head.lines[header.name])


class Shape(NamedTuple):
    """A form of destination that another broker supports."""

    shown: str
    pattern: re.Pattern[str]
    rule: str


def _shape(shown: str, pattern: str, rule: str) -> Shape:
    return Shape(shown, re.compile(pattern), rule)


SHAPES = (
    _shape("`/queue/a,/queue/b`", r".*,(/|[a-z-]+://)", "a frame has one destination; send or subscribe to each"),
    _shape("`/queue/a?consumer.x=1`", r"/.*\?consumer\.", "destinations have no options; use headers"),
    _shape("`/exchange/…`", r"/exchange(/|$)", "there are no exchanges; /topic/{event} copies to each subscriber"),
    _shape("`/amq/queue/{queue}`", r"/amq/queue(/|$)", "use /queue/{queue}"),
    _shape("`/temp-topic/{name}`", r"/temp-topic(/|$)", "use /topic/{event}, or /temp-queue/{name} for replies"),
    _shape("`/user/…`", r"/user(/|$)", "/user destinations are resolved by a framework; there are none here"),
    _shape(
        "`a::b`", r"(?!/topic/).*[^:]::[^:]",
        "an address names no queue; use /queue/{queue}, or x-queue-name with a topic",
    ),
    _shape("`queue://…`, `topic://…`", r"[a-z-]+://", "use /queue/{queue} or /topic/{event}"),
    _shape("`/queue/a%2Fb`", r"/(queue|q|temp-queue)/.*%[0-9A-Fa-f]{2}", "names are not percent-decoded; use dots"),
    _shape(
        "`/queue/a/b/c`", r"/queue/[^/]+/[^/]+/(?!count$)",
        "a queue is /queue/{project}/{queue}; use dots for more levels",
    ),
)  # fmt: skip


def check_destination(text: str) -> None:
    """Raise ProtocolError if the destination has a form that another broker supports."""
    for shape in SHAPES:
        if shape.pattern.match(text):
            raise ProtocolError(f"unknown destination: {shape.rule}", f"destination:{text}")
