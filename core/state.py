"""What one queue is and how it stands: the facts that its rooms read, each kept once."""

from __future__ import annotations

import logging

from curbstone.core.breakdown import QueueHost
from curbstone.core.errors import (
    CurbstoneError,
    MessageTooLarge,
    NoSuchQueue,
    PublishPaused,
    Unavailable,
    shutting_down,
)
from curbstone.core.log.meta import Meta
from curbstone.core.message import Message
from curbstone.core.options import QueueOptions
from curbstone.core.schemas import Door
from curbstone.core.shared import Shared
from curbstone.core.stats import Stats

logger = logging.getLogger("curbstone.core")


class QueueState:
    """See the module's docstring. It asks nobody, and does nothing."""

    __slots__ = (
        "broken", "committed_end", "damaged", "door", "host", "is_closed", "meta", "_meta_bytes", "name", "next_seq",
        "options", "shared", "stats", "uid", "write_failure",
    )  # fmt: skip

    def __init__(self, shared: Shared, meta: Meta, host: QueueHost) -> None:
        self.shared = shared
        self.host = host
        self.name = meta.name
        self.uid = meta.uid
        self.meta: Meta
        """Its options as they were set, its groups and bindings."""
        self.options: QueueOptions
        """The options in force: those of `meta`, with the server's defaults put in."""
        self._meta_bytes = 0
        """0 while nobody has asked."""
        self.door: Door | None
        """What bodies have to satisfy, None for nothing."""
        self.change(meta)
        self.stats = Stats()
        self.damaged: list[str] = []
        """What can't be read any more, for people."""
        self.next_seq = 1
        """What the next message gets. A commit that failed has used up its seqs, too."""
        self.committed_end = 1
        """Everything below this seq is there or never will be: one past the last committed."""
        self.is_closed = False
        self.broken = ""
        """Why it is closed until the next start, see `core.breakdown`."""
        self.write_failure = ""
        """Why nothing can be written for now, or an empty text."""

    def change(self, meta: Meta) -> None:
        """Take over what the queue is from now on."""
        self.meta = meta
        self.options = meta.options
        self.door = Door(lambda: self.shared.schemas, self.options.schema) if self.options.schema else None
        self._meta_bytes = 0

    @property
    def meta_bytes(self) -> int:
        """Bytes of `meta`."""
        self._meta_bytes = self._meta_bytes or len(self.meta.encode())
        return self._meta_bytes

    @property
    def label(self) -> str:
        """See `Meta.label`."""
        return self.meta.label

    @property
    def failure(self) -> str:
        """Why nothing can be written, or an empty text."""
        return self.write_failure or self.broken

    def refusal(self) -> CurbstoneError | None:
        """Return why nothing can be changed now, or None."""
        if self.shared.is_stopping:
            return shutting_down()
        if self.is_closed and not self.broken:
            return NoSuchQueue(f"no such queue: {self.name}")
        failure = self.write_failure or self.broken
        return Unavailable(failure) if failure else None

    def publish_refusal(self) -> CurbstoneError | None:
        """Return why nothing can be published now, or None."""
        refusal = self.refusal()
        if refusal is None and self.options.publish_paused:
            return PublishPaused(f"queue {self.name} takes no messages until its option publish_paused is false")
        return refusal

    def too_large(self, message: Message) -> MessageTooLarge:
        """Return what to say of a message that is."""
        most = self.options.max_message_size
        return MessageTooLarge(f"the message has {len(message.body)} bytes, the queue's max_message_size is {most}")

    def unfit(self, message: Message) -> CurbstoneError | None:
        """Return why a message may not come in: it is too large, or breaks the queue's schema."""
        if len(message.body) > self.options.max_message_size:
            return self.too_large(message)
        return self.door.refusal(message.body) if self.door is not None else None

    def message_id(self, seq: int) -> str:
        """Return the id of a message: the same on every delivery and every protocol."""
        return f"{self.uid}-{seq}"

    def report(self, text: str) -> None:
        """Log what went wrong."""
        logger.error("queue %s: %s", self.name, text, extra={"queue": self.label})
