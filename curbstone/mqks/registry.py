"""The shared state of all MQKS connections of a server: their consumers, and the queues to delete when unused.

A consumer belongs to its connection: the id that its client chose is unknown on other connections.
`--delete-queue-when-unused` requests the deletion of a queue without consumers. Each consume sets this option, and it
is stored with the queue. But only queues that were created with it, or created here and not consumed from yet, can have
it: no consumer can cause the deletion of any other queue. When the server stops, all consumers end, but no queue is
deleted because of that. After the next start the consumers have `RETURN_MS` to reconnect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.errors import NoSuchQueue
from curbstone.core.names import QueueName
from curbstone.core.traffic import Traffic
from curbstone.core.values import ignore
from curbstone.mqks import codec
from curbstone.mqks.arguments import Unused
from curbstone.mqks.consumer import QueueConsumer

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.core.host import Host, Timer

RETURN_MS = 60_000
"""How long a queue with this option stays at least after a start, so that its consumers can reconnect."""

MAY_GO_MIN = 1000
"""The size of `_may_delete` from which entries of deleted queues are removed."""

USED_POLL_MS = 1000
"""How often to check a queue that still has consumers over other protocols."""


class Registry:
    """The shared state of all connections; see the module's docstring."""

    def __init__(self, authenticator: Authenticator, host: Host) -> None:
        self.authenticator = authenticator
        self.engine = authenticator.everyone
        """The server's own access, for deletions by the registry."""
        self.traffic: Traffic = Traffic()
        self.sessions: set[object] = set()
        self._is_open = True
        self._host = host
        self._by_queue: dict[QueueName, dict[QueueConsumer, None]] = {}
        self._timers: dict[QueueName, Timer] = {}
        self._may_delete: dict[str, bool] = {}
        """The uids of queues that have or had the option (True), or were created here without it and not consumed
        from yet (False)."""
        self._settling: dict[QueueName, int] = {}

    def open(self) -> None:
        """Start: unused queues from before the start are deleted, unless they are used in time."""
        for queue in self.engine.queues():
            if (unused := self.unused(queue.name)) is not None and queue.name not in self._by_queue:
                self._check_later(queue.name, max(round(unused.seconds * 1000), RETURN_MS))

    def close(self) -> None:
        """Stop: queues are no longer deleted when their consumers end."""
        self._is_open = False
        for name in list(self._timers):
            self._stop_timer(name)

    # --- consumers

    def add(self, consumer: QueueConsumer) -> None:
        """Add a consumer, which makes its queue used."""
        self._by_queue.setdefault(consumer.queue_name, {})[consumer] = None
        self._stop_timer(consumer.queue_name)

    def remove(self, consumer: QueueConsumer) -> None:
        """Remove a consumer. If it was the last one of its queue, the queue may be deleted."""
        self._leave_queue(consumer)

    def consumers_of(self, name: QueueName) -> list[QueueConsumer]:
        """Return the consumers of a queue."""
        return list(self._by_queue.get(name, ()))

    @property
    def consumers_count(self) -> int:
        """How many consumers there are."""
        return sum(map(len, self._by_queue.values()))

    @property
    def queues_used(self) -> int:
        """How many queues have a consumer."""
        return len(self._by_queue)

    def notify(self, name: QueueName, events: frozenset[str], but: QueueConsumer | None = None) -> None:
        """Send the consumers of a queue, except `but`, its current bindings."""
        unused = self.unused(name)
        words = "".join([f" {event}" for event in sorted(events)])
        text = f"--update {name.queue}{words}{unused.text if unused else ''}"
        for consumer in self.consumers_of(name):
            if consumer is not but:
                consumer.owner.update(consumer, codec.ok(consumer.id, (text + consumer.options).encode()))

    # --- queues that are deleted when unused

    def note_created(self, name: QueueName, has_option: bool) -> None:
        """Note that a request created this queue, with or without the option: its next consumer may set the option."""
        if len(self._may_delete) > MAY_GO_MIN + 2 * len(self.engine.queues()):
            uids = {queue.uid for queue in self.engine.queues()}
            self._may_delete = {uid: had_option for uid, had_option in self._may_delete.items() if uid in uids}
        self._may_delete[self._uid(name)] = has_option

    def may_delete(self, name: QueueName) -> bool:
        """Return whether a consumer may set the option on this queue."""
        uid = self._uid(name)
        return not uid or uid in self._may_delete or self.unused(name) is not None

    def keep(self, name: QueueName) -> None:
        """Note that a consumer without the option uses the queue: from now on the queue stays."""
        if not self._may_delete.get(self._uid(name), True):
            del self._may_delete[self._uid(name)]

    def unused(self, name: QueueName) -> Unused | None:
        """Return after how long an unused queue is deleted; None if it stays or does not exist."""
        try:
            seconds = self.engine.unused_s(name)
        except NoSuchQueue:
            return None
        return Unused.after(seconds) if seconds is not None else None

    @property
    def unused_count(self) -> int:
        """How many queues have the option."""
        return sum(self.unused(queue.name) is not None for queue in self.engine.queues())

    def forget(self, name: QueueName) -> None:
        """Stop the timer of a queue that is being deleted."""
        self._stop_timer(name)

    def deleted(self, consumer: QueueConsumer) -> None:
        """Notify a consumer that its queue was deleted, and forget the queue."""
        name = consumer.queue_name
        self.forget(name)
        self._leave_queue(consumer)
        consumer.owner.update(consumer, codec.ok(consumer.id, f"--update {name.queue}".encode()))

    def settling(self, name: QueueName) -> None:
        """Note a settle under way: the queue must not be deleted before it is confirmed."""
        self._settling[name] = self._settling.get(name, 0) + 1

    def settled(self, name: QueueName) -> None:
        """Undo `settling`."""
        self._settling[name] -= 1
        if not self._settling[name]:
            del self._settling[name]
            if name not in self._timers:
                self._delete_if_unused(name)

    def _leave_queue(self, consumer: QueueConsumer) -> None:
        name = consumer.queue_name
        consumers = self._by_queue.get(name)
        if consumers is None or consumer not in consumers:
            return
        del consumers[consumer]
        if consumers:
            return
        del self._by_queue[name]
        unused = self.unused(name)
        if unused is None or not self._is_open:
            return
        if unused.seconds:
            self._check_later(name, round(unused.seconds * 1000))
        else:
            self._delete_if_unused(name)

    def _check_later(self, name: QueueName, delay_ms: int) -> None:
        uid = self._uid(name)

        def due() -> None:
            self._timers.pop(name, None)
            if self._uid(name) == uid:  # otherwise it was deleted and made again meanwhile
                self._delete_if_unused(name)

        self._timers[name] = self._host.call_later(delay_ms, due)

    def _stop_timer(self, name: QueueName) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _delete_if_unused(self, name: QueueName) -> None:
        """Delete a queue with the option if it is unused, over any protocol."""
        if not self._is_open or self.unused(name) is None or name in self._by_queue or name in self._settling:
            return
        if self.engine.shares_queues:  # the consumers of other servers count, too
            self.engine.find(name).refresh(lambda _error: self._delete_if_without_consumers(name))
        else:
            self._delete_if_without_consumers(name)

    def _delete_if_without_consumers(self, name: QueueName) -> None:
        if not self._is_open or self.unused(name) is None or name in self._by_queue or name in self._settling:
            return
        if self.engine.find(name).counts().consumers:
            self._check_later(name, USED_POLL_MS)
            return
        self.engine.delete(name, ignore)

    def _uid(self, name: QueueName) -> str:
        try:
            return self.engine.find(name).uid
        except NoSuchQueue:
            return ""
