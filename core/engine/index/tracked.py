"""The tries and the delay of a message that is or was in flight in a group."""

from __future__ import annotations

from typing import Protocol

from curbstone.core.engine.log.commit import Segment
from curbstone.core.message import Message


class InFlightHolder(Protocol):
    """A consumer or a lease that holds deliveries."""

    def lose(self, seq: int) -> None:
        """Drop the delivery of this message, which is stale: the message was settled in another way."""


class Tracked:
    """The state of a message that was requeued, that is delayed, or whose delivery no mark covers."""

    __slots__ = ("due_ms", "is_record_head", "mature_ms", "message", "segment", "tries")

    def __init__(self, tries: int, due_ms: int, mature_ms: int, message: Message | None = None) -> None:
        self.tries = tries
        self.due_ms = due_ms
        """Engine time from which it may be delivered; 0 once that time has passed."""
        self.mature_ms = mature_ms
        """Wall-clock time when it became or becomes ready."""
        self.message = message
        self.segment: Segment | None = None
        """The segment with the latest record of this state; None if the log has none."""
        self.is_record_head = False
        """Whether the message is the first one in that record."""
