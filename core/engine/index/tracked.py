"""What a group knows of a message that is or was in flight."""

from __future__ import annotations

from typing import Protocol

from curbstone.core.engine.log.commit import Segment
from curbstone.core.message import Message


class InFlightHolder(Protocol):
    """A consumer or a lease that holds deliveries."""

    def lose(self, seq: int) -> None:
        """The delivery of this message is stale: the message was settled in another way."""


class Tracked:
    """What a group knows of a message that was requeued, that is not due yet, or whose delivery no mark covers."""

    __slots__ = ("due_ms", "is_record_head", "mature_ms", "message", "segment", "tries")

    def __init__(self, tries: int, due_ms: int, mature_ms: int, message: Message | None = None) -> None:
        self.tries = tries
        self.due_ms = due_ms
        """Engine time from which on it may be delivered; 0 once that time was reached."""
        self.mature_ms = mature_ms
        """Wall-clock time when it became ready, or will."""
        self.message = message
        self.segment: Segment | None = None
        """The segment with the latest record of this, or None if there is none in the log."""
        self.is_record_head = False
        """Whether the message is the first one of that record."""
