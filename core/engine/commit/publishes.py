"""Takes publishes into one batch: as many of those that wait as its segment and the cap have room for.

Publishes are taken in order, and all publishes behind one that has to wait also wait. Some are answered without a
write, because they are refused or already stored. Their answers keep the order: if the batch has taken a publish before
them, they are sent after its answer, otherwise at once. So clients can match answers to publishes by their order.

A batch is on disk whole or not at all, so atomic writes share it with each other and with other publishes if all
certainly fit. A write that must not fail has its own batch, because it may use room that others may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import NamedTuple

from curbstone.core.batches import Membership, batch_of
from curbstone.core.engine.commit.producer_sequences import SequenceCheck
from curbstone.core.engine.commit.schema_check import check_schema
from curbstone.core.engine.commit.unique_names import SETTLED_BYTES, UniqueNames, mark_duplicate, names_of
from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.engine.facts.kinds import KINDS
from curbstone.core.engine.index.index import DELAYS, EXPIRIES, GROUPS, LEVELS
from curbstone.core.engine.log.format import BATCH_BYTES, ENTRY_BYTES, LEVEL_BITS, SEGMENT_BYTES, Note, entry_bytes
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.write_queue import EXPIRY_BYTES, AtomicWrite, Publish, Reservation
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.headers import key_of
from curbstone.core.message import Message
from curbstone.core.orders import BATCHED, FACTS, NOTHING, changed
from curbstone.core.schemas import BodyRule
from curbstone.core.values import Numbered

BATCH_BYTES_MAX = 2 * 1024 * 1024
"""The most bytes of a batch. In a growing file, a sync costs about the same for a few large messages as for many. With
larger batches, a client would have sent all that it may before the first are confirmed, and would wait for the disk."""
BATCH_MESSAGES_MAX = 4096
"""After so many messages no further publish is taken, so that a batch of many small ones does not delay the rest."""
NOTES_BYTES = 64
"""The bytes of the usual notes of a batch: the oldest segment that must exist, and the last delivered seq."""
KEY_BYTES = KINDS[Note.KEY].room
"""The size of the note of an idempotency key."""


class Step(Enum):
    """What to do next with the first publish that waits."""

    TAKE = "take it, or its next message"
    NEXT = "look at the new first publish"
    STOP = "this batch takes no more"


TAKE, NEXT, STOP = Step


class Taken(NamedTuple):
    """The next `span` messages of a publish, which are answered when the commit under way has ended."""

    publish: Publish
    first: int
    span: int
    answer: tuple[CurbstoneError | None, int] | None = None
    """Their answer, error and first seq, if none of them is written; it does not depend on how the commit ends."""


class Publishes:
    __slots__ = (
        "_budget", "_cleaner", "_coming_groups", "_keys", "_parts", "_records_bytes", "_room", "_space", "_state",
        "_tries_bytes", "atomic", "bytes", "ended", "lasts", "left_out", "levels", "messages", "names", "numbering",
        "taken", "traits", "tx",
    )  # fmt: skip

    def __init__(self, parts: Parts, cleaner: Cleaner) -> None:
        self._parts = parts
        self._cleaner = cleaner
        self._state = parts.state
        self._room = parts.log.room
        self._records_bytes = 0
        """Bytes of the records that the batch has already taken."""
        self.taken: list[Taken] = []
        """The parts of publishes that are answered, in order, when the commit has ended."""
        self.messages: list[Message] = []
        self.bytes = 0
        """Bytes of the entries of these messages."""
        self.traits = 0
        """The traits that at least one of the messages has; see `Index.add`."""
        self.levels = b""
        """The level of each message, once all are taken; empty if all have the default level."""
        self.lasts: dict[int, int] = {}
        """The last seq of each of these levels."""
        self.tx = 0
        """If the batch is a part of a transaction over several queues: its number in the broker's journal, else 0."""
        self.atomic: list[AtomicWrite] = []
        """The atomic writes among them."""
        self.ended = 0
        """How many deliveries the atomic writes settle and requeue."""
        self._keys: set[bytes] | None = None
        """The idempotency keys of the atomic writes; None if there are none."""
        self._tries_bytes = 0
        """Bytes that the first records of tries of these messages may take later."""
        self._space = 0
        """Bytes that the segment has for entries."""
        self._budget = 0
        """Bytes that the cap has for entries and for their later records."""
        self.numbering: SequenceCheck | None = None
        """The check of numbered publishes; None while there is none in this batch."""
        self.names: UniqueNames | None = None
        """The unique names of these messages; None while none of them asks for one."""
        self.left_out = 0
        """How many messages are not stored because others have their names."""
        self._coming_groups: set[str] | None = None
        """Undeclared groups that this batch makes; None while none of its messages names a group."""

    def take(self, records_bytes: int) -> None:
        """Take the publishes that fit into the segment (the active one, or a new one) and under the cap.

        `records_bytes` is the size of the records that are already in the batch.
        """
        self._records_bytes = records_bytes
        inbox = self._parts.write_queue.publishes
        if inbox:
            self._measure(inbox[0])
            while inbox and len(self.messages) < BATCH_MESSAGES_MAX and self._take_next(inbox[0]) is NEXT:
                if self.left_out >= BATCH_MESSAGES_MAX:
                    self._parts.wakeups.schedule()  # nothing may be written, so that no commit ends
                    break
        if not inbox or (self.messages and not isinstance(inbox[-1], Reservation)):
            self._cleaner.unblocked()  # so that the next publish that waits gets a whole pass of the cleaner

    def _measure(self, first: Publish) -> None:
        """Set how many bytes this batch may take: `_space` in its segment, and `_budget` under the cap."""
        log = self._parts.log
        overhead = BATCH_BYTES + self._records_bytes + NOTES_BYTES
        space = log.room_in_active - overhead
        if space < BATCH_BYTES_MAX:
            if isinstance(first, AtomicWrite):
                wanted = first.atomic_bytes
            else:
                wanted = entry_bytes(first.messages[first.next]) if first.messages else 0
            if space < wanted:  # it will begin a new segment
                space = self._room.segment_bytes - SEGMENT_BYTES - overhead
        self._space = min(space, BATCH_BYTES_MAX)
        self._budget = self._room.budget - overhead

    def _take_next(self, publish: Publish) -> Step:
        """Take, answer or refuse the first publish that waits; return NEXT or STOP."""
        if publish.latch is not None and not publish.latch.is_open:
            return STOP
        if publish.refusal is not None:
            return self._refuse(publish, publish.refusal)
        if publish.numbered is not None:
            step = self._look_up(publish, publish.numbered)
            if step is not TAKE:
                return step
        if self._state.body_rule is not None and not publish.must_not_fail:
            step = self._check_schema(publish, self._state.body_rule)
            if step is not TAKE:
                return step
        else:
            publish.schema_check = None
        return self._take_whole(publish) if isinstance(publish, AtomicWrite) else self._take_some(publish)

    def _check_schema(self, publish: Publish, rule: BodyRule) -> Step:
        """Check messages of the first publish against the queue's schema, and refuse those that break it."""
        found = check_schema(self._parts, rule, publish)
        is_whole = isinstance(publish, AtomicWrite)
        error = found.refusal
        if error is not None and is_whole:
            return self._refuse(publish, error)
        if error is not None and found.fit == publish.next:
            found.refusal = None
            found.fit += 1
            self._answer(publish, 1, error, 0)
            return NEXT
        is_known = found.fit == len(publish.messages) if is_whole else found.fit > publish.next
        return TAKE if is_known else STOP

    # --- answers, at once or in turn

    def _answer(self, publish: Publish, count: int, error: CurbstoneError | None, first_seq: int) -> None:
        """Answer, in order, the next `count` messages of the first publish, none of which is written."""
        first = publish.next
        publish.next += count
        if publish.next == len(publish.messages):
            self._parts.write_queue.publishes.popleft()
        if self.taken:
            self.taken.append(Taken(publish, first, count, (error, first_seq)))
        else:
            self._state.host.notify(publish.on_done, error, first_seq, count)

    def _refuse(self, publish: Publish, error: CurbstoneError) -> Step:
        """Refuse the rest of the first publish. Deliveries that it would have settled stay unsettled."""
        publish.abort()
        self._state.refused(error, len(publish.messages) - publish.next)
        self._answer(publish, len(publish.messages) - publish.next, error, 0)
        return NEXT

    def _look_up(self, publish: Publish, numbered: Numbered) -> Step:
        """Answer the messages of a numbered publish that are already stored, and refuse all after a gap."""
        numbering = self.numbering = self.numbering or SequenceCheck(self._parts.facts)
        found = numbering.look(numbered.behind(publish.next), len(publish.messages) - publish.next)
        if (found.repeats or found.gap) and not found.is_certain:
            return STOP  # this depends on messages in the same batch, whose commit may fail: wait for its end
        if found.gap:
            return self._refuse(publish, found.gap)
        if found.repeats:
            self._answer(publish, found.repeats, None, 0)
            if publish.next == len(publish.messages):
                return NEXT
        noted = numbering.note_bytes(numbered)
        self._space -= noted
        self._budget -= 2 * noted  # the note is written once more when its segment is dropped
        return TAKE

    # --- all or nothing

    def _take_whole(self, publish: AtomicWrite) -> Step:
        """Take an atomic write unless it has to wait."""
        if isinstance(publish, Reservation):
            return self._reserve(publish)
        if publish.key is not None:
            if self._keys and (publish.key.hashed in self._keys or self._has_most_keys):
                return STOP  # this depends on keys in the same batch, whose commit may fail: wait for its end
            known = self._parts.facts.published_under(publish.key)
            if isinstance(known, CurbstoneError):
                return self._refuse(publish, known)
            if known is not None:
                self._answer(publish, len(publish.messages), None, known)
                return NEXT
        if publish.on_room is not None:
            return self._keep_room(publish, publish.on_room)
        size = publish.atomic_bytes
        is_first = not self.messages and not self.atomic
        if publish.must_not_fail and not is_first:
            return STOP
        if publish.mark is not None:
            # It was promised, so it is never refused. Settles and releases may have used the room that was granted to
            # it: then it waits as long as the cleaner may help, and after that takes the room that is kept for copies.
            if not self._room.fits(size) and (
                self._cleaner.clean_for(size) or self._room.free - size <= self._room.copy_bytes
            ):
                return STOP
        elif not publish.tx:
            if not is_first and not self._fits_beside(publish):
                return STOP
            error = self._refusal_of(publish)
            if error is not None:
                return self._refuse(publish, error)
            if is_first and not self._has_room(size):
                return self._blocked(publish, size)
            if publish.ended * SETTLED_BYTES > self._room.slack_bytes:
                text = "the transaction settles more than the queue's cap has room to log"
                return self._refuse(publish, QueueFull(text))
        messages = publish.messages[publish.next :]
        if publish.flags & FACTS:
            names, asked = self._unique_names(), names_of(publish)
            if names.any_must_wait(asked):
                return STOP
            seq = self._state.next_seq + len(self.messages)
            messages = names.without_duplicates(asked, publish, seq)
            self._space -= names.bytes_each * len(messages)
            self._count(publish.messages[publish.next :], {each: seq + place for place, each in enumerate(messages)})
        self._parts.write_queue.publishes.popleft()
        self.atomic.append(publish)
        self.tx = publish.tx
        self.ended += publish.ended
        before = self.bytes
        left_out = len(publish.messages) - publish.next - len(messages)
        self.left_out += left_out
        self._put_in(publish, messages, left_out=left_out)
        self._tries_bytes += max(size - (self.bytes - before), 0)
        if publish.key is not None:
            if self._keys is None:
                self._keys = set()
            self._keys.add(publish.key.hashed)
            self._space -= KEY_BYTES
            self._budget -= 2 * KEY_BYTES  # the note is written once more when its segment is dropped
        return STOP if publish.must_not_fail else NEXT

    def _count(self, messages: list[Message], seqs: Mapping[Message, int]) -> None:
        """Count messages in their batches; `seqs` has those that are stored."""
        found: dict[Membership, list[int]] = {}
        for message in messages:
            if message.orders is not None and message.orders.batched:
                found.setdefault(batch_of(message.headers), []).append(seqs.get(message, 0))
        for wanted, stored in found.items():
            tallies = self._parts.count_batches()
            self._space -= tallies.note_bytes(wanted)
            tallies.store(wanted, stored)

    def _unique_names(self) -> UniqueNames:
        if self.names is None:
            self.names = UniqueNames(self._parts)
        return self.names

    def _refusal_of(self, publish: AtomicWrite) -> CurbstoneError | None:
        """Return an error if a publish has too many groups, unique names or batches for the queue, else None."""
        error = self._crowded(publish.messages)
        if error is None and publish.flags & FACTS:
            error = self._unique_names().refusal(names_of(publish))
            batched = [each for each in publish.messages if each.orders is not None and each.orders.batched]
            if error is None and batched:
                error = self._parts.count_batches().refusal(batched)
        return error

    @property
    def _has_most_keys(self) -> bool:
        """Whether this batch brings the queue to its limit of idempotency keys."""
        facts = self._parts.facts
        return facts.count(Note.KEY) + len(self._keys or ()) >= facts.most(Note.KEY)

    def _fits_beside(self, publish: AtomicWrite) -> bool:
        """Return whether an atomic write certainly also fits into the batch."""
        size = self.bytes + publish.atomic_bytes + (self.ended + publish.ended) * SETTLED_BYTES
        size += 2 * KEY_BYTES * (publish.key is not None)
        return (
            size <= self._space
            and size + self._tries_bytes <= min(self._budget, self._room.segment_bytes)
            and (self.ended + publish.ended) * SETTLED_BYTES <= self._room.slack_bytes // 2
        )

    def _reserve(self, wanted: Reservation) -> Step:
        """Grant room to later publishes."""
        size = wanted.atomic_bytes
        if self.messages or self.atomic:  # they are not in the room's sums yet
            return STOP
        if self._room.grant(size, wanted.largest):
            self._answer(wanted, 0, None, 0)
            return NEXT
        if self._cleaner.make_room(size + self._room.reserved, wanted.largest):
            # What fits is taken first: room for a transaction as large as the log may need a pass over all of it.
            is_new = wanted.tried_in is not self
            wanted.tried_in = self
            self._parts.write_queue.publishes.rotate(-1)
            return NEXT if is_new else STOP
        cap = self._state.options.cap
        return self._refuse(
            wanted, QueueFull(f"queue {self._state.name} has no room for {size} bytes under its cap of {cap} bytes")
        )

    def _keep_room(self, publish: AtomicWrite, on_room: Callable[[], None]) -> Step:
        """Grant room to a part of a transaction over several queues; it keeps its place, and all behind it wait."""
        size = publish.atomic_bytes
        if self.messages or self.atomic or publish.has_room:
            return STOP
        error = self._refusal_of(publish)
        if error is not None:
            return self._refuse(publish, error)
        if publish.messages and not self._has_room(size):
            return self._blocked(publish, size)
        if publish.messages:
            publish.reserved = size
            self._room.grant_known(size)
        publish.has_room = True
        self._cleaner.unblocked()
        self._state.host.call_soon(partial(self._state.host.contain, on_room))
        return STOP

    # --- one by one

    def _take_some(self, publish: Publish) -> Step:
        """Take as many messages of a publish as fit."""
        messages, size = publish.messages, publish.bytes
        if publish.schema_check is not None:
            messages, size = messages[publish.next : publish.schema_check.fit], 0
        elif publish.next:
            messages, size = messages[publish.next :], 0
        names = self._unique_names() if publish.flags & FACTS else None
        if names is not None and (publish.flags & BATCHED or self.left_out):
            return self._take_each(publish, messages)
        more = names.bytes_each if names is not None else 0
        tries = self._tries_bytes
        if self._fit_at_once(messages, size, more):
            seq = self._state.next_seq + len(self.messages)
            if names is None or names.take_all(messages, names_of(publish)[: len(messages)], seq):
                self._space -= more * len(messages)
                self._put_in(publish, messages, size)
                if publish.next == len(publish.messages):
                    self._parts.write_queue.publishes.popleft()
                return NEXT
            self._tries_bytes = tries
        return self._take_each(publish, messages)

    def _take_each(self, publish: Publish, messages: list[Message]) -> Step:
        """Take messages of a publish one by one."""
        total, tries = self.bytes, self._tries_bytes
        seq = self._state.next_seq + len(self.messages)
        asked = names_of(publish) if publish.flags & FACTS else []
        for index, message in enumerate(messages):
            error = self._crowded([message]) if message.orders is not None and message.orders.groups else None
            size = entry_bytes(message) + EXPIRY_BYTES
            tries += RELEASE_BYTES * self._parts.index.entitled_count(message)
            name = asked[index] if asked else None
            tallies = None
            if message.orders is not None and message.orders.batched:
                tallies = self._parts.count_batches()
                error = error or tallies.refusal([message])
                noted = tallies.note_bytes(batch_of(message.headers))
                tries += noted
                self._space -= noted
            if name is not None and error is None:
                names, (hashed, _, replaces, _) = self._unique_names(), name
                holder = 0 if replaces else names.holder(hashed)
                if holder and ((publish.numbered is None and tallies is None) or self._has_room(total + tries)):
                    self._put_in(publish, messages[:index])
                    if tallies is not None:
                        self._tries_bytes = tries
                    return self._leave_out(publish, holder)
                if not holder and not replaces and names.must_wait(hashed):
                    self._put_in(publish, messages[:index])
                    return STOP
                error = names.refusal([name])
                tries += names.bytes_each
                self._space -= names.bytes_each
            is_next = total and total + size > self._space
            if error is None and not is_next and self._has_room(total + size + tries):
                total += size
                self._tries_bytes = tries
                if name is not None and self.names is not None:
                    self.names.take([message], [name], seq + index)
                if tallies is not None:
                    tallies.store(batch_of(message.headers), [seq + index])
                continue
            self._put_in(publish, messages[:index])
            if self.messages:  # it is its turn in the next batch
                return STOP
            if error is None:
                return self._blocked(publish, size + tries)
            self._answer(publish, 1, error, 0)
            return NEXT
        self._put_in(publish, messages)
        if publish.next == len(publish.messages):
            self._parts.write_queue.publishes.popleft()
        return NEXT

    def _leave_out(self, publish: Publish, holder: int) -> Step:
        """Leave out the next message of a publish, because another one has its name."""
        message = publish.messages[publish.next]
        mark_duplicate(message, holder)
        if message.orders is not None and message.orders.batched:
            self._parts.count_batches().store(batch_of(message.headers), [0])
        self.left_out += 1
        self.taken.append(Taken(publish, publish.next, 1))
        publish.next += 1
        if self.numbering is not None:
            self.numbering.taken(publish, self._state.host.now_ms())
        if publish.next == len(publish.messages):
            self._parts.write_queue.publishes.popleft()
        return NEXT

    def _fit_at_once(self, messages: list[Message], size: int, more: int) -> bool:
        """Return whether all of these certainly fit, which is the usual case; False if one names groups.

        `size` is the size of their entries if they are plain and it is known, else 0. Each takes `more` bytes on top.
        """
        count = len(messages)
        if not size:
            for message in messages:
                if message.orders is not None and message.orders.groups:
                    return False
                size += ENTRY_BYTES + len(message.headers) + len(message.body)
        size += self.bytes + EXPIRY_BYTES * count
        tries = self._tries_bytes + count * (RELEASE_BYTES * (1 + len(self._state.meta.groups)) + more)
        with_tries = size + tries
        if size + more * count > self._space or with_tries > self._budget or with_tries > self._room.segment_bytes:
            return False
        self._tries_bytes = tries
        return True

    def _put_in(self, publish: Publish, messages: list[Message], plain_bytes: int = 0, left_out: int = 0) -> None:
        """Put messages into the batch, which gives them their seqs and timestamps.

        `plain_bytes` is the size of their entries if they are plain and it is known, else 0. `left_out` is how many
        other messages of the publish are left out.
        """
        state = self._state
        seq = state.next_seq + len(self.messages)
        timestamp_ms = state.host.wall_ms()
        default_ttl_ms = int(state.options.ttl * 1000)
        if plain_bytes and not default_ttl_ms:
            for message in messages:
                message.seq = seq
                message.timestamp_ms = timestamp_ms
                seq += 1
            self.bytes += plain_bytes
            if publish.flags & LEVEL_BITS:
                self._take_levels(messages)
        else:
            for message in messages:
                message.seq = seq
                message.timestamp_ms = timestamp_ms
                seq += 1
                if message.orders is None and not default_ttl_ms and not message.expires_ms:
                    self.bytes += ENTRY_BYTES + len(message.headers) + len(message.body)
                else:
                    self.bytes += self._put_in_with_orders(message, default_ttl_ms)
        self.messages += messages
        if messages or isinstance(publish, AtomicWrite):
            span = len(messages) + left_out
            self.taken.append(Taken(publish, publish.next, span))
            publish.next += span
            if self.numbering is not None and span:
                self.numbering.taken(publish, state.host.now_ms())

    def note_levels(self) -> None:
        """Note the levels of the messages, some of which are not the default, once all messages are taken."""
        levels = bytes([each.orders.level if each.orders is not None else 0 for each in self.messages])
        self.levels = levels
        self.lasts = {level: self._state.next_seq + levels.rfind(level) for level in {*levels}}

    def _put_in_with_orders(self, message: Message, default_ttl_ms: int) -> int:
        """Note the traits of a message that is not plain; return the size of its entry."""
        orders = message.orders or NOTHING
        if orders.level:
            self._take_levels([message])
        ttl_ms = orders.ttl_ms or default_ttl_ms
        if ttl_ms:
            message.expires_ms = self._state.host.now_ms() + ttl_ms
        if message.expires_ms:
            self.traits |= EXPIRIES
        if orders.delay_ms:
            self.traits |= DELAYS
        if orders.groups:
            self.traits |= GROUPS
        return entry_bytes(message)

    def _take_levels(self, messages: list[Message]) -> None:
        """Note which messages have a level. With keys in order, messages with keys lose it: the order would change."""
        in_order = self._state.options.key_limit == 1
        any_left = False
        for message in messages:
            orders = message.orders
            if orders is not None and orders.level:
                if in_order and key_of(message.headers):
                    message.orders = changed(orders, level=0)
                else:
                    any_left = True
        if any_left:
            self.traits |= LEVELS

    # --- room

    def _has_room(self, size: int) -> bool:
        """Return whether the cap has room for `size` bytes of messages and, later, of records of their tries.

        That includes room to copy these messages later: if they are many, theirs is the largest segment.
        """
        if size <= self._room.segment_bytes:
            return size <= self._budget
        return self._room.admits(size + BATCH_BYTES + SEGMENT_BYTES + self._records_bytes)

    def _blocked(self, publish: Publish, size: int) -> Step:
        """Make room for the first publish, or refuse it if that can't help."""
        if self.numbering is not None and publish.numbered is not None:
            size += 2 * self.numbering.note_bytes(publish.numbered)
        if self._parts.facts.count(Note.NAME) and (freed := UniqueNames(self._parts).weed()):
            self._budget += freed
            return NEXT
        if self._cleaner.make_room(size + self._room.reserved):
            return STOP
        return self._refuse(publish, QueueFull(f"queue {self._state.name} {self._parts.log.fullness}"))

    def _crowded(self, messages: list[Message]) -> CurbstoneError | None:
        """Return an error if groups that messages name can't be made, else None."""
        names = [name for message in messages for name in message.groups]
        if not names:
            return None
        if self._coming_groups is None:
            self._coming_groups = set()
        return self._parts.index.dynamic_groups.refusal(names, self._coming_groups)
