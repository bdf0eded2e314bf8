"""Messages on their way to the outbox of one queue: what can be said of them before there is a batch."""

from __future__ import annotations

from curbstone.core.errors import CurbstoneError, MessageTooLarge
from curbstone.core.log.format import BATCH_BYTES, entry_bytes
from curbstone.core.log.publish import Publish
from curbstone.core.log.room import RELEASE_BYTES
from curbstone.core.message import Message
from curbstone.core.notes.notes import Notes
from curbstone.core.pending.pending import Pending
from curbstone.core.state import QueueState
from curbstone.core.values import IdempotencyKey, Numbered, Published
from curbstone.core.writing.outbox import Outbox

ATOMIC_SHARE = 2


class Intake:
    """See the module's docstring."""

    __slots__ = ("_notes", "_outbox", "_pending", "_state")

    def __init__(self, state: QueueState, pending: Pending, notes: Notes, outbox: Outbox) -> None:
        self._state = state
        self._pending = pending
        self._notes = notes
        self._outbox = outbox

    def whole(
        self, messages: list[Message], on_done: Published, key: IdempotencyKey | None, numbered: Numbered | None
    ) -> None:
        """Publish all or nothing."""
        options = self._state.options
        cap, most = options.cap, options.max_message_size
        tries = RELEASE_BYTES * sum(map(self._pending.entitled_count, messages))
        size = sum(map(entry_bytes, messages)) + 8 * len(messages) + BATCH_BYTES + tries
        too_large = next((message for message in messages if len(message.body) > most), None)
        error: CurbstoneError | None = None
        if too_large is not None:
            error = self._state.too_large(too_large)
        elif size > cap // ATOMIC_SHARE:
            error = MessageTooLarge(f"{size} bytes at once can never fit the queue's cap of {cap} bytes")
        publish = Publish(messages, on_done, size)
        publish.numbered = numbered
        if error is not None:
            self._state.host.call_soon(lambda: on_done(error, 0, len(messages)))
        elif key is None or self._notes.keys.begin(publish, key):
            self._outbox.publish(publish)

    def each(self, messages: list[Message], on_done: Published, numbered: Numbered | None) -> None:
        """Publish messages one by one; what is too large is answered in its turn."""
        most = self._state.options.max_message_size
        start = 0
        if any([len(message.body) > most for message in messages]):
            for place, message in enumerate(messages):
                if len(message.body) > most:
                    self._publish(messages[start:place], on_done, numbered and numbered.behind(start))
                    refused = Publish([message], on_done)
                    refused.refusal = self._state.too_large(message)
                    self._outbox.publish(refused)
                    start = place + 1
        self._publish(messages[start:] if start else messages, on_done, numbered and numbered.behind(start))

    def _publish(self, messages: list[Message], on_done: Published, numbered: Numbered | None) -> None:
        if messages:
            publish = Publish(messages, on_done)
            publish.numbered = numbered
            self._outbox.publish(publish)
