"""What one queue is and how it stands: the facts that its parts share, each kept once."""

from __future__ import annotations

import logging

from curbstone.core.engine.fault_barrier import FaultBarrier
from curbstone.core.engine.log.meta import Meta
from curbstone.core.engine.shared import Shared
from curbstone.core.errors import (
    CurbstoneError,
    MessageTooLarge,
    NoSuchQueue,
    PublishPaused,
    QueueFull,
    Unavailable,
    shutting_down,
)
from curbstone.core.message import Message
from curbstone.core.options import QueueOptions
from curbstone.core.schemas import BodyRule
from curbstone.core.stats import LastMinute, Stats

logger = logging.getLogger("curbstone.core")


class QueueState:
    """See the module's docstring. It uses none of the other parts."""

    __slots__ = (
        "_meta_bytes", "body_rule", "broken", "committed_end", "damaged", "host", "is_closed", "is_private", "meta",
        "name", "next_seq", "options", "passes_over", "refusals", "shared", "stats", "syncs", "uid",
        "uses_keys", "write_failure",
    )  # fmt: skip

    def __init__(self, shared: Shared, meta: Meta, host: FaultBarrier) -> None:
        self.shared = shared
        self.host = host
        self.name = meta.name
        self.is_private = meta.name.is_private
        """Whether it is a client's own queue, which no restart finds again."""
        self.syncs = shared.syncs_always and not self.is_private
        """Whether a commit counts only when it is durable."""
        self.uid = meta.uid
        self.meta: Meta
        """The options as they were set, the groups and the bindings."""
        self.options: QueueOptions
        """The options in force: those of `meta`, and the server's defaults for the rest."""
        self.passes_over: bool
        """See `QueueOptions.passes_over`; and `uses_keys` is there, too."""
        self.uses_keys: bool
        self._meta_bytes = 0
        """0 until the first call of `meta_bytes`."""
        self.body_rule: BodyRule | None
        """The rule that bodies have to satisfy, or None if there is none."""
        self.change(meta)
        self.stats = Stats()
        self.refusals: LastMinute | None = None
        """The messages that found no room lately; None if there never were any."""
        self.damaged: list[str] = []
        """What can't be read any more, as texts for operators."""
        self.next_seq = 1
        """The seq for the next message. The seqs of a commit that failed are not used again."""
        self.committed_end = 1
        """One past the last committed seq. Every message below it is there now or never will be."""
        self.is_closed = False
        self.broken = ""
        """Why the queue is closed until the next start (see `core.engine.fault_barrier`), or an empty text."""
        self.write_failure = ""
        """Why nothing can be written for now, or an empty text."""

    def change(self, meta: Meta) -> None:
        """Take over a changed `meta`."""
        self.meta = meta
        self.options = meta.options
        self.passes_over = self.options.passes_over
        self.uses_keys = self.options.uses_keys
        self.body_rule = BodyRule(lambda: self.shared.schemas, self.options.schema) if self.options.schema else None
        self._meta_bytes = 0

    @property
    def meta_bytes(self) -> int:
        self._meta_bytes = self._meta_bytes or len(self.meta.encode())
        return self._meta_bytes

    @property
    def label(self) -> str:
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

    def refused(self, error: CurbstoneError, messages: int) -> None:
        """Count messages that are refused, if it is for want of room."""
        if not isinstance(error, QueueFull) or isinstance(error, PublishPaused):
            return
        self.stats.refused += messages
        self.refusals = self.refusals or LastMinute()
        self.refusals.add(messages, self.host.now_ms())

    def ended(self) -> CurbstoneError | None:
        """Return why the queue is not served any more, or None as long as it is."""
        return self.refusal() if self.is_closed else None

    def publish_refusal(self) -> CurbstoneError | None:
        """Return why nothing can be published now, or None."""
        may_write = not (self.write_failure or self.broken or self.is_closed or self.shared.is_stopping)
        refusal = None if may_write else self.refusal()
        if refusal is None and self.options.publish_paused:
            return PublishPaused(f"queue {self.name} takes no messages until its option publish_paused is false")
        return refusal

    def too_large(self, message: Message) -> MessageTooLarge | None:
        """Return the error for a message that is too large, or None."""
        most = self.options.max_message_size
        if len(message.body) <= most:
            return None
        return MessageTooLarge(f"the message has {len(message.body)} bytes, the queue's max_message_size is {most}")

    def message_id(self, seq: int) -> str:
        """Return the id of a message. It is the same on every delivery and in every protocol."""
        return f"{self.uid}-{seq}"

    def report(self, text: str) -> None:
        logger.error("queue %s: %s", self.name, text, extra={"queue": self.label})
