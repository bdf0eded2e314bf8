"""Headers of other brokers that have no effect here: each gets an ERROR that names the nearest thing.

If such a header were ignored, the client would fail silently: a message would be lost, come too early, or stay for
ever. A header that asks for what is true anyway (`persistent:true` on a SEND) is accepted. docs/stomp.md shows the
table, and a test keeps the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

from curbstone.stomp.codec import Head
from curbstone.stomp.destinations import Destination, Kind
from curbstone.stomp.errors import ProtocolError

SUBSCRIBE, SEND, BOTH = ("SUBSCRIBE",), ("SEND",), ("SEND", "SUBSCRIBE")
QUEUE, TOPIC, ANY = "a queue", "a topic", "any destination"


class Gap(NamedTuple):
    """A header of another broker that is refused here."""

    name: str
    value: str
    """The value that is refused; `…` for any value."""
    commands: tuple[str, ...]
    where: str
    rule: str


_EXCLUSIVE = "a queue may have several consumers; one of the connection's own is /temp-queue/{name}"
_FULL = "how much a queue holds is x-max-length-bytes, or its option cap"
_MULTICAST = "a copy for each subscriber is for topics, /topic/{event}"
_ANYCAST = "each message for one consumer is for queues, /queue/{queue}"
_SCHEDULE = "a message is delivered once; its delay is AMQ_SCHEDULED_DELAY or x-delta-t, in ms"

GAPS = (
    Gap("x-queue-name", "…", SEND, ANY, "a queue is named by the destination"),
    Gap("activemq.exclusive", "true", SUBSCRIBE, ANY, _EXCLUSIVE),
    Gap("x-single-active-consumer", "true", BOTH, ANY, _EXCLUSIVE),
    Gap("x-max-length", "…", BOTH, ANY, _FULL),
    Gap("x-stream-offset", "…", SUBSCRIBE, ANY, "reading by position is for HTTP, see docs/pipeline-api.md"),
    Gap("selector", "…", SUBSCRIBE, ANY, "selector is not supported; send what is read apart to queues of its own"),
    Gap("browser", "true", SUBSCRIBE, ANY, "browser is not supported; to look at a queue is for HTTP, GET …/messages"),
    Gap("no-local", "true", SUBSCRIBE, ANY, "a subscriber of a topic gets what its own connection sends as well"),
    Gap(
        "activemq.noLocal", "true", SUBSCRIBE, ANY, "a subscriber of a topic gets what its own connection sends as well"
    ),
    Gap(
        "activemq.retroactive",
        "true",
        SUBSCRIBE,
        ANY,
        "a topic has no past; what is kept is a queue bound to the event",
    ),
    Gap("destination-type", "MULTICAST", SEND, QUEUE, _MULTICAST),
    Gap("destination-type", "ANYCAST", SEND, TOPIC, _ANYCAST),
    Gap("subscription-type", "MULTICAST", SUBSCRIBE, QUEUE, _MULTICAST),
    Gap("subscription-type", "ANYCAST", SUBSCRIBE, TOPIC, _ANYCAST),
    Gap(
        "consumer-window-size",
        "…",
        SUBSCRIBE,
        ANY,
        "a window is a number of messages, not of bytes: prefetch-count",
    ),
    Gap("AMQ_SCHEDULED_TIME", "…", SEND, ANY, "the time of delivery is x-next-t, in ms since 1970"),
    Gap("AMQ_SCHEDULED_PERIOD", "…", SEND, ANY, _SCHEDULE),
    Gap("AMQ_SCHEDULED_REPEAT", "…", SEND, ANY, _SCHEDULE),
    Gap("AMQ_SCHEDULED_CRON", "…", SEND, ANY, _SCHEDULE),
)

HEADERS = frozenset(gap.name for gap in GAPS)


def check_headers(head: Head, destination: Destination) -> None:
    """Raise ProtocolError if the frame has a refused header. Needed only if the frame has any of `HEADERS`."""
    place = {Kind.TOPIC: TOPIC, Kind.QUEUE: ANY if destination.private else QUEUE}.get(destination.kind, ANY)
    for gap in GAPS:
        value = head.headers.get(gap.name)
        if value is None or head.command not in gap.commands or gap.where not in (ANY, place):
            continue
        if value and (gap.value == "…" or value.lower() == gap.value.lower()):
            raise ProtocolError(f"{gap.name} has no effect here: {gap.rule}", head.lines[gap.name])
