"""Puts publishes into the outbox of one queue, and checks the sizes of messages, which needs no batch.

Nothing is answered here. A publish that is refused waits for its turn like the others, so that answers keep the order
of the publishes.
"""

from __future__ import annotations

from curbstone.core.engine.index.pending import Pending
from curbstone.core.engine.log.format import BATCH_BYTES, entry_bytes
from curbstone.core.engine.log.publish import EXPIRY_BYTES, Publish, WholePublish
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.write_queue import Outbox
from curbstone.core.errors import CurbstoneError, MessageTooLarge
from curbstone.core.message import Message
from curbstone.core.values import IdempotencyKey, Numbered, Published

ATOMIC_SHARE = 2
"""An atomic publish may take at most the cap divided by this."""


class Intake:
    """See the module's docstring."""

    __slots__ = ("_outbox", "_pending", "_state")

    def __init__(self, state: QueueState, pending: Pending, outbox: Outbox) -> None:
        self._state = state
        self._pending = pending
        self._outbox = outbox

    def whole(
        self, messages: list[Message], on_done: Published, key: IdempotencyKey | None, numbered: Numbered | None
    ) -> None:
        """Publish messages all or nothing."""
        cap = self._state.options.cap
        tries = RELEASE_BYTES * sum(map(self._pending.entitled_count, messages))
        size = sum(map(entry_bytes, messages)) + EXPIRY_BYTES * len(messages) + BATCH_BYTES + tries
        publish = WholePublish(messages, on_done, size)
        publish.numbered = numbered
        publish.key = key
        publish.refusal = next(filter(None, map(self._state.too_large, messages)), None)
        if publish.refusal is None and size > cap // ATOMIC_SHARE:
            publish.refusal = MessageTooLarge(f"{size} bytes at once can never fit the queue's cap of {cap} bytes")
        self._outbox.publish(publish)

    def each(self, messages: list[Message], on_done: Published, numbered: Numbered | None) -> None:
        """Publish messages one by one; those that are too large are refused in their turn."""
        most = self._state.options.max_message_size
        for message in messages:
            if len(message.body) > most:
                self._those_that_fit(messages, on_done, numbered)
                return
        self._outbox.publish(Publish(messages, on_done, numbered))

    def _those_that_fit(self, messages: list[Message], on_done: Published, numbered: Numbered | None) -> None:
        start = 0
        for place, message in enumerate(messages):
            if (refusal := self._state.too_large(message)) is not None:
                self._publish(messages[start:place], on_done, numbered and numbered.behind(start))
                self.refused([message], on_done, refusal)
                start = place + 1
        self._publish(messages[start:], on_done, numbered and numbered.behind(start))

    def refused(self, messages: list[Message], on_done: Published, refusal: CurbstoneError) -> None:
        """Refuse messages in their turn."""
        publish = Publish(messages, on_done)
        publish.refusal = refusal
        self._outbox.publish(publish)

    def _publish(self, messages: list[Message], on_done: Published, numbered: Numbered | None) -> None:
        if messages:
            self._outbox.publish(Publish(messages, on_done, numbered))
