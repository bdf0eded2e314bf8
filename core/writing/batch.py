"""One batch in the making: what of the waiting publishes, settles and releases goes into the next commit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from curbstone.core.breakdown import QueueHost
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.log.commit import Commit
from curbstone.core.log.format import (
    BATCH_BYTES,
    SEGMENT_BYTES,
    BatchHeader,
    Flag,
    Reason,
    Released,
    encode_batch,
    encode_delivered,
    encode_entries,
    encode_floor,
    encode_released,
    encode_settled,
    entry_bytes,
    released_bytes,
    runs_of,
    settled_bytes,
)
from curbstone.core.log.publish import Publish
from curbstone.core.log.room import RELEASE_BYTES
from curbstone.core.message import Message
from curbstone.core.notes.notes import SILENCE
from curbstone.core.pending.group import Group
from curbstone.core.values import Done
from curbstone.core.writing.cleaner import Copy
from curbstone.core.writing.numbering import Numbering, Verdict
from curbstone.core.writing.outbox import Pop
from curbstone.core.writing.sources import Sources

BATCH_BYTES_MAX = 512 * 1024


class Taken(NamedTuple):
    """A part of a Publish that is in the commit under way."""

    publish: Publish
    first: int
    span: int


class Batch:
    """Composes one batch."""

    def __init__(self, sources: Sources, *, disk_is_full: bool, missed: int) -> None:
        self._state = sources.state
        self._log = sources.log
        self._pending = sources.pending
        self._notes = sources.notes
        self._outbox = sources.outbox
        self._cleaner = sources.cleaner
        self._room_of = sources.room
        self._drop_unwanted_pops = sources.drop_unwanted_pops
        self._make_room = sources.make_room
        self._disk_is_full = disk_is_full
        self._missed = missed
        self.taken: list[Taken] = []
        self.messages: list[Message] = []
        self.copies: list[Message] = []
        self.settled: dict[tuple[str, Reason], list[int]] = {}
        self.ranges: dict[tuple[str, Reason], list[tuple[int, int]]] = {}
        self.released: list[Released] = []
        self.handed: list[Released] = []
        self.states: list[Released] = []
        self.delays: list[Released] = []
        self.given_back: list[Released] = []
        self.callbacks: list[Done] = []
        self.pops: list[Pop] = []
        self.start = 0
        self.end = 0
        self.marks: dict[str, int] = {}
        self.said = SILENCE
        self.must_go_on = False
        """Whether something waits for the next batch though there is room for it."""
        self._numbering = Numbering(sources.state, sources.notes.producers, sources.outbox)
        self._settled_parts: list[bytes] = []
        self._released_part = b""
        self._records_bytes = 0
        self.messages_bytes = 0
        """Bytes of the entries."""
        self._state_bytes = 0
        self.tx = 0
        self._coming: set[str] = set()
        """Groups that nobody declared and that begin to exist with this batch."""

    # --- settles and releases

    def take_records(self) -> None:
        """Take settles and releases, as many as the room kept for them allows in one commit.

        What the cleaner needs to copy any one segment is never touched.
        """
        if self._outbox.pops:
            self._drop_unwanted_pops()
        if not self._outbox.has_records:
            self.callbacks, self._outbox.callbacks = self._outbox.callbacks, []
            self._cleaner.recorded(False, False)
            return
        log = self._log
        room = log.room
        limit = max(0, min(room.slack_bytes // 2, room.records_left - room.kept))
        # Where only what is kept for releases is left settles may have it, for they make room; and first releases.
        settles_limit = limit or max(0, min(room.slack_bytes // 2, room.records_left))
        waiting = self._outbox.settles
        for key in list(waiting):
            group, reason = key
            seqs = waiting[key]
            runs = runs_of(seqs)
            most = (settles_limit - self._records_bytes - settled_bytes(group, 0)) // 12
            if most <= 0:
                break
            if len(runs) > most:
                cut = sum(count for _, count in runs[:most])
                waiting[key] = seqs[cut:]
                seqs, runs = seqs[:cut], runs[:most]
            else:
                del waiting[key]
            self.settled[key] = seqs
            self._settled_parts.append(encode_settled(group, reason, runs))
            self._records_bytes += len(self._settled_parts[-1])
        for key in list(self._outbox.ranges):
            ranges = self._outbox.ranges[key]
            most = (settles_limit - self._records_bytes - settled_bytes(key[0], 0)) // 12
            if most <= 0:
                break
            taken, self._outbox.ranges[key] = ranges[:most], ranges[most:]
            if not self._outbox.ranges[key]:
                del self._outbox.ranges[key]
            self.ranges[key] = taken
            self._settled_parts.append(encode_settled(*key, taken))
            self._records_bytes += len(self._settled_parts[-1])
        if self._outbox.pops:
            self._take_pops(settles_limit)
        self.released, self._outbox.releases = self._affordable(self._outbox.releases, limit, settles_limit)
        self._released_part = encode_released(self.released)
        self._records_bytes += len(self._released_part)
        if self._outbox.hand_outs and not self._outbox.releases:  # they come behind the releases of before
            self.handed, rest = self._affordable(list(self._outbox.hand_outs.values()), limit, 0)
            self._outbox.hand_outs = {(item.group, item.first): item for item in rest}
            handed_part = encode_released(self.handed, state=True)
            self._released_part += handed_part
            self._records_bytes += len(handed_part)
        if not waiting and not self._outbox.ranges and not self._outbox.releases:
            self.callbacks, self._outbox.callbacks = self._outbox.callbacks, []
        left = bool(
            waiting or self._outbox.ranges or self._outbox.pops or self._outbox.releases or self._outbox.hand_outs
        )
        self._cleaner.recorded(self._records_bytes > 0, left)

    def _take_pops(self, limit: int) -> None:
        """Take the settles of pops; their messages are given away after the commit, or go back."""
        by_group: dict[str, list[Pop]] = {}
        for pop in self._outbox.pops:
            by_group.setdefault(pop.group, []).append(pop)
        for group, pops in by_group.items():
            most = max((limit - self._records_bytes - settled_bytes(group, 0)) // 12, 0)
            taken = pops[:most]
            if taken:
                runs = runs_of([pop.delivery.message.seq for pop in taken])
                self._settled_parts.append(encode_settled(group, Reason.ACK, runs))
                self._records_bytes += len(self._settled_parts[-1])
                self.pops += taken
        for pop in self.pops:
            del self._outbox.pops[pop]

    def _affordable(self, waiting: list[Released], limit: int, kept: int) -> tuple[list[Released], list[Released]]:
        """Split releases into those that go into this batch and those that wait.

        The first record of a message uses the room that was kept for it, of which `kept` bytes may be used; a
        further one has to fit `limit`.
        """
        groups = self._pending.groups
        spent = size = self._records_bytes
        most = min(len(waiting), max(self._log.records_span - spent, 0) // RELEASE_BYTES)
        for index in range(most):
            item = waiting[index]
            group = groups.get(item.group)
            retry = group.retries.get(item.first) if group is not None else None
            is_first = bool(kept) and retry is not None and not retry.leads
            if index == 0 or item.group != waiting[index - 1].group:
                size += released_bytes(item.group, 0)
            size += RELEASE_BYTES
            spent += 0 if is_first else RELEASE_BYTES
            if spent > max(limit, self._records_bytes) or size > max(limit, kept):
                most = index
                break
        return waiting[:most], waiting[most:]

    # --- messages

    def take_copy(self, copy: Copy) -> None:
        """Take what the cleaner copies forward: messages with what groups have settled, and what is known of tries."""
        self.copies = copy.messages
        self.messages_bytes = sum(map(entry_bytes, copy.messages))
        for group, seqs in self._pending.settled_of(copy.messages).items():
            self._settled_parts.append(encode_settled(group, Reason.STATE, runs_of(seqs)))
        self.states = copy.states
        # What happened in this very batch comes behind it, and counts.
        self._released_part = encode_released(copy.states, state=True) + self._released_part
        self._records_bytes = len(self._released_part) + sum(map(len, self._settled_parts))

    def take_publishes(self) -> None:
        """Take what fits: into the active segment, or into a new one; and under the cap."""
        log = self._log
        inbox = self._outbox.publishes
        overhead = BATCH_BYTES + self._records_bytes + 64
        room = log.room_in_active - overhead
        if inbox and room < self._first_bytes(inbox[0]):
            room = log.room.segment_bytes - SEGMENT_BYTES - overhead
        room = min(room, BATCH_BYTES_MAX)
        budget = log.room.publish_left - overhead - log.room.promised
        while inbox:
            publish = inbox[0]
            if publish.numbered is not None and publish.refusal is None:
                verdict = self._numbering.look(publish, publish.numbered, is_first=not self.taken)
                if verdict is Verdict.LATER:
                    self.must_go_on = True
                    break
                if verdict is Verdict.ANSWERED:
                    continue
                noted = self._numbering.note_bytes(publish.numbered)
                room, budget = room - noted, budget - 2 * noted  # it will be said again one day
            if publish.refusal is not None:
                self._take_refusal(publish, publish.refusal)
            elif publish.on_room is not None:
                if not self._keep_room(publish, publish.on_room, budget):
                    break
            elif publish.atomic_bytes or publish.settles or publish.is_promised:
                if not self._take_whole(publish, room, budget):
                    break
            elif not self._take_some(publish, room, budget):
                break
        if self.messages or not inbox:  # the next one that has to wait gets a whole turn of the cleaner, too
            self._cleaner.unblocked()

    def _take_refusal(self, publish: Publish, refusal: CurbstoneError) -> None:
        """Refuse the first that waits in its turn: at once, or when those before it, of this batch, are answered."""
        self._outbox.publishes.popleft()
        if self.taken:
            self.taken.append(Taken(publish, 0, 0))
        else:
            refuse(self._state.host, publish, refusal)

    def _first_bytes(self, publish: Publish) -> int:
        return publish.atomic_bytes or entry_bytes(publish.messages[publish.next]) if publish.messages else 0

    def _take_whole(self, publish: Publish, room: int, budget: int) -> bool:
        """Take an atomic publish; False where it has to wait. Only one goes into a batch."""
        size = publish.atomic_bytes
        if self.messages or self.tx:
            return False
        if publish.mark is not None:
            if not self._has_room_at_last(size):
                return False
        elif not publish.tx:
            error = self._crowded(publish.messages)
            if error is not None:
                return self._refused(publish, error)
            if not self._has_room(size, budget):
                return self._blocked(publish, size)
            most = settled_bytes("x" * 64, 1) * sum(len(end.deliveries) for end in publish.ends)
            if most > self._log.room.slack_bytes:
                return self._refused(
                    publish, QueueFull("the transaction settles more than the queue's cap has room to log")
                )
        self._outbox.publishes.popleft()
        self.tx = publish.tx
        records = [(s.group, s.reason, [d.message.seq for d in s.deliveries]) for s in publish.settles]
        for group, reason, seqs in records + publish.records:
            if seqs:
                self._settled_parts.append(encode_settled(group, reason, runs_of(seqs)))
                self._records_bytes += len(self._settled_parts[-1])
        self.given_back = [record for release in publish.releases for record in release.records] + publish.released
        released_part = encode_released(self.given_back)
        self._released_part += released_part
        self._records_bytes += len(released_part)
        self._take_messages(publish, publish.next, publish.messages[publish.next :])
        return False

    def _keep_room(self, publish: Publish, on_room: Callable[[], None], budget: int) -> bool:
        """Keep room for a transaction that waits in its place; True where it was refused."""
        size = publish.atomic_bytes
        if self.messages or publish.has_room:
            return False
        error = self._crowded(publish.messages)
        if error is not None:
            return self._refused(publish, error)
        if publish.messages and not self._has_room(size, budget):
            return self._blocked(publish, size)
        if publish.messages:
            publish.reserved = size
            self._log.room.grant_known(size)
        publish.has_room = True
        self._cleaner.unblocked()
        self._state.host.call_soon(partial(self._state.host.contain, on_room))
        return False

    def _take_some(self, publish: Publish, room: int, budget: int) -> bool:
        """Take as many messages of a publish as fit; True when it is done with."""
        first = publish.next
        total, state = self.messages_bytes, self._state_bytes
        messages = publish.messages
        index = first
        for index in range(first, len(messages)):
            if messages[index].groups and (error := self._crowded(messages[index : index + 1])):
                return self._refuse_one(publish, messages[first:index], error)
            size = entry_bytes(messages[index]) + 8  # an expiry may come in
            state += RELEASE_BYTES * self._pending.entitled_count(messages[index])
            if not self._has_room(total + size + state, budget):
                self._take_messages(publish, first, messages[first:index])
                return self._blocked(publish, size + state) if not self.messages else False
            if total + size > room and total:
                self._take_messages(publish, first, messages[first:index])
                return False
            total += size
            self._state_bytes = state
        self._take_messages(publish, first, messages[first:])
        self._outbox.publishes.popleft()
        return True

    def _has_room(self, size: int, budget: int) -> bool:
        """Return whether `size` bytes, of messages and later of their tries, leave the reserve free.

        Their own copy forward included.
        """
        room = self._log.room
        if size <= room.segment_bytes:
            return size <= budget
        return room.admits(size + BATCH_BYTES + SEGMENT_BYTES + self._records_bytes)

    def _has_room_at_last(self, size: int) -> bool:
        """Return whether there is room for what was promised: settles and releases may have used what was kept.

        Then it waits for the cleaner, to whom nothing but what is live counts, and that leaves the room.
        """
        room = self._log.room
        if room.fits(size) or self._disk_is_full:
            return True
        return not self._cleaner.can_make_room(size) and room.free - size > room.segment_bytes

    def _blocked(self, publish: Publish, size: int) -> bool:
        """Let the cleaner make room, or refuse; True where the publish is done with."""
        size += 2 * self._numbering.note_bytes(publish.numbered) if publish.numbered is not None else 0
        if not self._disk_is_full and self._make_room(size + self._log.room.reserved):
            return False
        return self._refused(publish, QueueFull(f"queue {self._state.name} {self._log.fullness}"))

    def _refused(self, publish: Publish, error: CurbstoneError) -> bool:
        """Refuse the first that waits: it is done with."""
        self._outbox.publishes.popleft()
        refuse(self._state.host, publish, error)
        return True

    def _refuse_one(self, publish: Publish, before: list[Message], error: CurbstoneError) -> bool:
        """Refuse the message behind those `before`, when they are on disk; True if the inbox may be looked at again."""
        self._take_messages(publish, publish.next, before)
        if self.messages:  # it is its turn in the next batch
            return False
        publish.next += 1
        if publish.next == len(publish.messages):
            self._outbox.publishes.popleft()
        self._state.host.tell(publish.on_done, error, 0, 1)
        return True

    def _crowded(self, messages: list[Message]) -> CurbstoneError | None:
        """Return why the groups that messages name can't all be, or None."""
        if not any([message.groups for message in messages]):
            return None
        return self._pending.undeclared.refusal_of(messages, self._coming)

    def _take_messages(self, publish: Publish, first: int, messages: list[Message]) -> None:
        """Put messages into the batch: from here on they have a seq and a timestamp."""
        seq = self._state.next_seq + len(self.messages)
        timestamp_ms = self._state.host.wall_ms()
        total = 0
        default_ttl_ms = int(self._state.options.ttl * 1000)
        for message in messages:
            message.seq = seq
            message.timestamp_ms = timestamp_ms
            ttl_ms = message.ttl_ms or default_ttl_ms
            if ttl_ms:
                message.expires_ms = self._state.host.now_ms() + ttl_ms
            seq += 1
            total += entry_bytes(message)
        self.messages_bytes += total
        self.messages += messages
        publish.next = first + len(messages)
        if publish.numbered is not None and messages:
            self._numbering.taken(publish, publish.numbered, seq - 1)
        if messages or publish.ends or publish.tx:
            self.taken.append(Taken(publish, first, len(messages)))

    # --- the batch

    def commit(self) -> Commit | None:
        """Return the commit to run, or None where there is nothing to write."""
        log = self._log
        drops = self._cleaner.droppable()
        has_records = bool(self._settled_parts or self._released_part)
        roll = self._cleaner.wants_roll()
        asked = self.messages or self.copies or has_records or self.tx
        if not (asked or drops or roll or self._outbox.must_write or self._marks_due()):
            return None
        self._outbox.must_write = False
        self._add_delays()
        notes = self._to_note(drops)
        releases, settles = self._released_part, b"".join(self._settled_parts)
        first_seq = self.copies[0].seq if self.copies else self._state.next_seq
        entries: list[bytes] = []
        extras = encode_entries(self.copies or self.messages, first_seq, entries)
        length = BATCH_BYTES + self.messages_bytes + len(releases) + len(settles) + len(notes)
        is_full = self._disk_is_full
        if is_full:
            roll |= log.has_file_for(length)
        elif length > log.room_in_active and log.active.end > SEGMENT_BYTES:
            roll = True
        commit = log.begin(
            sync=self._state.shared.syncs_always,
            roll=roll,
            next_seq=self._state.next_seq,
            recycle=self._cleaner.recycles,
            is_full=is_full,
        )
        flags = (Flag.EXTRAS if extras else 0) | (Flag.COPY if self.copies else 0)
        count = len(self.copies) or len(self.messages)
        time_ms, delivered = self._state.host.wall_ms(), self.marks.get("", self._pending.unnamed.delivered_logged)
        sections = (len(releases), len(settles), len(notes))
        header = BatchHeader(
            length, flags, log.next_batch, time_ms, first_seq, delivered, self.tx or log.tx, count, *sections
        )
        log.next_batch += 1
        buffers = encode_batch(commit.segment.salt, header, [*entries, releases, settles, notes])
        self.start, self.end = commit.add(buffers)
        self._state.next_seq += len(self.messages)
        groups = self._pending.groups.values()
        pending = sum([group.pending for group in groups]) + len(self.messages) * len(groups)
        log.finish(commit, drops, None if is_full else pending, self._missed)
        return commit

    def _marks_due(self) -> bool:
        """Whether to say, though nothing else is to be written, how far messages were handed out."""
        can_mark = self._log.room.records_left > 0 and not self._disk_is_full
        return can_mark and self._pending.has_unlogged_marks

    def _add_delays(self) -> None:
        """A message that is published with a delay is released at once, with a due time."""
        delayed = [message for message in self.messages if message.delay_ms]
        if not delayed:
            return
        now_ms = self._state.host.now_ms()
        released = [
            Released(group, message.seq, 1, 0, now_ms + message.delay_ms)
            for message in delayed
            for group in self._pending.entitled(message)
        ]
        self.delays = sorted(released, key=lambda item: item.group)
        self._released_part += encode_released(self.delays, state=True)

    def _to_note(self, drops: int) -> bytes:
        floor = self._log.segments[drops].number if drops else 0
        notes = encode_floor(floor) if floor else b""
        for group in self._pending.groups.values():
            mark = max(group.delivered, self._delivered_soon(group))
            if mark > group.delivered_logged or (group.name and mark and group.marked_at < floor):
                self.marks[group.name] = mark
                if group.name:  # the unnamed one's is in the head of every batch
                    notes += encode_delivered(group.name, mark)
        self.said = self._notes.to_say(
            [part.publish for part in self.taken], self._state.next_seq, floor, self._numbering.coming
        )
        return notes + self.said.data

    def _delivered_soon(self, group: Group) -> int:
        """Return up to which seq messages of this very batch will be handed out as soon as it is on disk.

        Said beforehand, a crash right after that finds them marked as delivered.
        """
        if not self.messages or group.rdy:
            return 0
        room = self._room_of(group.name)
        if not room:
            return 0
        return self._state.next_seq + min(room, len(self.messages)) - 1


def refuse(host: QueueHost, publish: Publish, error: CurbstoneError) -> None:
    """Refuse what of a publish is not done; what it would have ended is as before."""
    for end in publish.ends:
        end.undo(end.deliveries)
    host.tell(publish.on_done, error, 0, len(publish.messages) - publish.next)
