"""Settles deliveries: in memory at once, on disk with the next commit.

`requeue` returns deliveries that are to be tried again.
"""

from __future__ import annotations

from functools import partial

from curbstone.core.engine.log.format import Reason, TriesRecord
from curbstone.core.engine.parts import Parts
from curbstone.core.message import Delivery
from curbstone.core.values import NOBODY, UNNAMED, Done, Lease, WasThere


class Acks:
    __slots__ = ("_index", "_limits", "_state", "_wakeups", "_write_queue")

    def __init__(self, parts: Parts) -> None:
        self._state = parts.state
        self._wakeups = parts.wakeups
        self._index = parts.index
        self._write_queue = parts.write_queue
        self._limits = parts.limits

    def ack(self, group: str, deliveries: list[Delivery], on_done: Done | None) -> bool:
        """Settle deliveries that a consumer has claimed. Return False if refused now: it has to unclaim them."""
        if self.is_refused(on_done):
            return False
        self.settle_now(group, deliveries)
        if on_done is not None:
            self._write_queue.when_committed(on_done)
        return True

    def is_refused(self, on_done: Done | None) -> bool:
        """Return whether nothing can be settled now; if so, `on_done` gets the reason, in a later turn."""
        state = self._state
        if not (state.write_failure or state.broken or state.is_closed):  # a server that stops still settles
            return False
        error = state.refusal()
        if on_done is not None:
            state.host.call_soon(partial(on_done, error))
        return True

    def settle_now(self, group: str, deliveries: list[Delivery], reason: Reason = Reason.ACK) -> None:
        """Settle deliveries in memory now, and on disk with the next commit.

        An ack in a private queue does not cause a commit by itself: no restart needs it, and otherwise each of a
        thousand subscribers of a topic would make two commits for a message.
        """
        messages = [delivery.message for delivery in deliveries]
        if reason is Reason.ACK:
            self._state.stats.acked += len(messages)
        self._index.clear(group, messages)
        seqs = [message.seq for message in messages]
        if self._state.is_private and reason is Reason.ACK:
            self._write_queue.acked_lazily(group, seqs)
            if not self._index.group(group).has_ready:
                return
        else:
            self._write_queue.settled(group, reason, seqs)
        self._wakeups.wake(group)

    def settle_by_id(self, seq: int, on_done: WasThere, owner: str = NOBODY) -> None:
        state, index = self._state, self._index
        refusal = state.refusal()
        holder = index.unnamed.in_flight.get(seq)
        is_of_another = isinstance(holder, Lease) and holder.owner != owner
        if refusal is not None or not index.is_pending(UNNAMED, seq) or is_of_another:
            state.host.call_soon(lambda: on_done(refusal, False))
            return
        index.clear_seq(UNNAMED, seq)
        state.stats.acked += 1
        self._write_queue.settled(UNNAMED, Reason.ACK, [seq])
        self._wakeups.changed()
        self._write_queue.when_committed(lambda error: on_done(error, error is None))

    def put_back(self, group: str, deliveries: list[Delivery]) -> None:
        """Return deliveries that reached no client to their place, without counting a try."""
        if not deliveries or self._state.is_closed:
            return
        of_group = self._index.group(group)
        if of_group.keys is not None:
            of_group.keys.refund([delivery.message.seq for delivery in deliveries])
        for delivery in deliveries:
            of_group.release(delivery.message, delivery.tries, 0, delivery.mature_ms)
        self._limits.took(group, -len(deliveries))
        states = [TriesRecord(group, each.message.seq, 1, each.tries, 0) for each in deliveries if each.tries]
        if states:
            self._write_queue.record_redeliveries(states)
        self._wakeups.wake(group)
