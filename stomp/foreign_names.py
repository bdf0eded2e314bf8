"""Destinations of other brokers: each gets an ERROR that names the nearest thing here.

docs/stomp.md shows the table, and a test keeps the two equal.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from curbstone.stomp.errors import ProtocolError


class Shape(NamedTuple):
    """A form of destination that another broker knows."""

    shown: str
    pattern: re.Pattern[str]
    rule: str


def _shape(shown: str, pattern: str, rule: str) -> Shape:
    return Shape(shown, re.compile(pattern), rule)


SHAPES = (
    _shape("`/queue/a,/queue/b`", r".*,(/|[a-z-]+://)", "one destination at a time; send or subscribe to each"),
    _shape("`/queue/a?consumer.x=1`", r"/.*\?consumer\.", "a destination has no options; what there is are headers"),
    _shape("`/exchange/…`", r"/exchange(/|$)", "there are no exchanges; /topic/{event} has a copy for each subscriber"),
    _shape("`/amq/queue/{queue}`", r"/amq/queue(/|$)", "it is /queue/{queue} here"),
    _shape("`/temp-topic/{name}`", r"/temp-topic(/|$)", "it is /topic/{event}, or /temp-queue/{name} for replies"),
    _shape("`/user/…`", r"/user(/|$)", "/user is for a framework to translate; there are no users here"),
    _shape(
        "`a::b`", r"(?!/topic/).*[^:]::[^:]",
        "a queue is no part of an address; it is /queue/{queue}, or a topic's x-queue-name",
    ),
    _shape("`queue://…`, `topic://…`", r"[a-z-]+://", "it is /queue/{queue} or /topic/{event} here"),
    _shape("`/queue/a%2Fb`", r"/(queue|q|temp-queue)/.*%[0-9A-Fa-f]{2}", "names are not percent-decoded; use dots"),
    _shape(
        "`/queue/a/b/c`", r"/queue/[^/]+/[^/]+/(?!count$)",
        "a queue has a name in a project, /queue/{project}/{queue}; for more levels use dots",
    ),
)  # fmt: skip


def check_destination(text: str) -> None:
    """Raise ProtocolError if the destination has a form that another broker knows."""
    for shape in SHAPES:
        if shape.pattern.match(text):
            raise ProtocolError(f"unknown destination: {shape.rule}", f"destination:{text}")
