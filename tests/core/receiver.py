"""A consumer of the engine's queue, as the plain model sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from curbstone.core.message import Delivery
from tests.kit.lab import Peer


@dataclass
class Receiver:
    """A consumer, as the model sees it."""

    peer: Peer
    group: str
    window: int
    held: set[int] = field(default_factory=set)
    is_open: bool = True
    seen: int = 0

    @property
    def credit(self) -> int:
        return self.window - len(self.held) if self.is_open else 0

    def news(self) -> list[Delivery]:
        """Return what was given since the last call."""
        fresh = self.peer.received[self.seen :]
        self.seen = len(self.peer.received)
        return fresh
