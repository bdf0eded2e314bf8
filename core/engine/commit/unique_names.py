"""The unique names of one batch: which messages have them, in the log or in the batch, and which are replaced.

A unique name is a fact with the seq of the message that has it, and is valid while that message is pending. So nothing
is written when the message is settled, and no name outlives its message. Names are checked when the batch is made, in
the order of the log. A batch is on disk whole or not at all, so a message that is left out because of another one of
the same batch has the outcome of that one.

A message that replaces another is in the same batch as the settle of the other, so they are never both gone and never
both pending. Until the batch is on disk, the replaced message is set aside. A message in flight is not replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from curbstone.core.batches import batch_of
from curbstone.core.engine.commit.records import Records
from curbstone.core.engine.facts.facts import Changes
from curbstone.core.engine.facts.kinds import KINDS, encode_named, is_until_delivered, seq_of, since_of
from curbstone.core.engine.facts.tallies import TALLY_BYTES
from curbstone.core.engine.log.format import Note, Reason, settled_bytes
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.write_queue import AtomicWrite, Publish
from curbstone.core.errors import QueueFull
from curbstone.core.message import Message
from curbstone.core.orders import Name, asked_name, changed

NAME_BYTES = KINDS[Note.NAME].room
"""The size of the note of a name."""
GROUP_BYTES_MAX = 64
"""The most bytes of a group's name."""
SETTLED_BYTES = settled_bytes("x" * GROUP_BYTES_MAX, 1)
"""The most bytes that a batch says about one message that is settled in a group."""
FEW = 16
LOOKED_AT = 2
"""How many names are checked, and forgotten if they have ended, for each new one, while there are more than two names
for each message. So at most half of the names, and a `FEW`, have ended."""
WEEDED_MAX = 1000
"""How many names are checked in the same way when a publish finds no room."""


class UniqueNames:
    __slots__ = ("bytes_each", "_aside", "_coming", "_latest", "_left", "_now_ms", "_outdated", "_parts", "replaced")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._coming: dict[bytes, bytes] = {}
        """By hash, the facts of the names that messages of this batch get."""
        self.bytes_each = named_bytes(parts)
        self._now_ms = parts.state.host.now_ms()
        self._left = parts.facts.most(Note.NAME) - parts.facts.count(Note.NAME)
        """How many more names the queue may have."""
        self._aside: list[tuple[str, int, int]] = []
        """The messages that this batch replaces, as (group, seq, due_ms). They are not delivered meanwhile."""
        self._latest: dict[bytes, Message] = {}
        """By hash of the name, the last message of this batch that replaces others."""
        self._outdated: list[Message] = []
        """The messages of this batch that later messages of it replace."""
        self.replaced = 0
        """How many messages this batch replaces."""

    def holder(self, hashed: bytes, ended: Sequence[tuple[str, int]] = ()) -> int:
        """Return the seq of the message that has a name, 0 if none has it; `ended` are settled in the same write."""
        coming = self._coming.get(hashed)
        if coming is not None:
            return seq_of(coming)
        value = self._parts.facts.get(Note.NAME, hashed)
        if value is None or is_over(self._parts, value):
            return 0
        seq = seq_of(value)
        groups = {group for group, each in ended if each == seq}
        return 0 if groups.issuperset(self._parts.index.pending_in(seq)) else seq

    def any_must_wait(self, asked: list[Name | None]) -> bool:
        wanted = [hashed for hashed, _, replaces, _ in filter(None, asked) if not replaces]
        return any([self.must_wait(hashed) for hashed in wanted if not self.holder(hashed)])

    def without_duplicates(self, asked: list[Name | None], write: AtomicWrite, seq: int) -> list[Message]:
        """Return those messages of a write whose names are free, and take these names; their seqs start at `seq`.

        `asked` are the names of the messages that are not done with. The names of messages that the write settles are
        free.
        """
        kept: list[Message] = []
        ended = [(settle.group, each.message.seq) for settle in write.settles for each in settle.deliveries]
        for message, name in zip(write.messages[write.next :], asked, strict=True):
            if name is not None:
                hashed, _, replaces, _ = name
                if not replaces and (holder := self.holder(hashed, ended)):
                    mark_duplicate(message, holder)
                    continue
                self.take([message], [name], seq + len(kept))
            kept.append(message)
        return kept

    def must_wait(self, hashed: bytes) -> bool:
        """Return whether a name is free in memory, but a crash might bring back the message that had it."""
        parts = self._parts
        return parts.write_queue.has_settles and parts.facts.get(Note.NAME, hashed) is not None

    def refusal(self, asked: Sequence[Name | None]) -> QueueFull | None:
        """Return an error if the queue has too many names for all of these, else None."""
        wanted = {hashed for hashed, *_ in filter(None, asked) if not self.holder(hashed)}
        if self._left < len(wanted):
            self._left += self.weed() // NAME_BYTES
        if self._left >= len(wanted):
            return None
        most = self._parts.facts.most(Note.NAME)
        return QueueFull(f"queue {self._parts.state.name} has {most} messages with unique names, which is the most")

    def take_all(self, messages: list[Message], asked: list[Name | None], seq: int) -> bool:
        """Give messages, whose seqs start at `seq`, the names that they ask for.

        Return False, and do nothing, if some names may be taken.
        """
        hashes = [name[0] for name in asked if name is not None]
        wanted = set(hashes)
        if len(wanted) < len(hashes) or len(wanted) > self._left:
            return False
        if not self._coming.keys().isdisjoint(wanted) or self._parts.facts.has_any(Note.NAME, wanted):
            return False
        self.take(messages, asked, seq)
        return True

    def take(self, messages: list[Message], asked: list[Name | None], seq: int) -> None:
        """Give messages of this batch, from `seq` on, the names that they ask for; these may replace others."""
        coming, now_ms = self._coming, self._now_ms
        before = len(coming)
        for at, name in enumerate(asked):
            if name is not None:
                hashed, until_delivered, replaces, most_ms = name
                since_ms = self._replace(hashed, most_ms, messages[at]) if replaces else now_ms
                coming[hashed] = encode_named(seq + at, until_delivered, since_ms, hashed)
        self._left -= len(coming) - before

    # --- replacing

    def _replace(self, hashed: bytes, most_ms: int, message: Message) -> int:
        """Let a message replace the one with its name; return when the first of these messages was published.

        If that is more than `most_ms` ago, the message replaces none, and its own time counts.
        """
        since_ms = self._now_ms
        before = self._coming.get(hashed) or self._parts.facts.get(Note.NAME, hashed)
        if before is not None and (not most_ms or since_ms < since_of(before) + most_ms):
            if hashed in self._coming:
                self._outdated.append(self._latest[hashed])
                self.replaced += 1
                since_ms = since_of(before)
            elif self._set_aside(seq_of(before)):
                since_ms = since_of(before)
        if most_ms and message.delay_ms > (left_ms := since_ms + most_ms - self._now_ms):
            message.orders = changed(message.orders, delay_ms=left_ms)
        self._latest[hashed] = message
        return since_ms

    def _set_aside(self, seq: int) -> bool:
        """Withdraw a message from the groups in which it waits; return whether there were any."""
        index = self._parts.index
        groups = [index.groups[name] for name in index.pending_in(seq)]
        waiting = [group for group in groups if seq not in group.in_flight]
        self._aside += [(group.name, seq, group.seize(seq)) for group in waiting]
        self.replaced += bool(waiting)
        return bool(waiting)

    def add_records(self, records: Records) -> None:
        """Add the settles of the replaced messages to the records of the batch."""
        by_group: dict[str, list[int]] = {}
        for name, seq, _due_ms in self._aside:
            by_group.setdefault(name, []).append(seq)
        for message in self._outdated:
            for name in self._parts.index.entitled(message):
                by_group.setdefault(name, []).append(message.seq)
        for name, seqs in by_group.items():
            records.settle(name, Reason.REPLACED, seqs)

    def settle(self) -> None:
        """Forget the replaced messages: the batch is on disk, and its messages are in the index."""
        index = self._parts.index
        for name, seq, _due_ms in self._aside:
            index.clear_seq(name, seq)
        for message in self._outdated:
            for name in index.entitled(message):
                index.clear(name, [message])
        self._parts.state.stats.replaced += self.replaced

    def set_back(self) -> None:
        """Return the messages that the batch would have replaced: its commit has failed."""
        for name, seq, due_ms in self._aside:
            if (group := self._parts.index.groups.get(name)) is not None:
                group.set_back(seq, due_ms)

    def add_facts(self, facts: Changes) -> None:
        """Add the facts that are valid once the batch is on disk."""
        if self._coming:
            facts[Note.NAME] = self._coming
        table, pending = self._parts.facts, self._parts.log.room.pending
        if table.count(Note.NAME) > 2 * pending + FEW:
            table.weed(Note.NAME, partial(is_over, self._parts), LOOKED_AT * len(self._coming))

    def weed(self) -> int:
        """Forget names whose messages are gone; return how many bytes of the cap that frees."""
        return NAME_BYTES * self._parts.facts.weed(Note.NAME, partial(is_over, self._parts), WEEDED_MAX)


def is_over(parts: Parts, value: bytes) -> bool:
    """Return whether the message that has a name is gone, or has lost it because it was delivered."""
    seq = seq_of(value)
    if is_until_delivered(value):
        return not parts.index.is_untried(seq)
    return not parts.index.is_live(seq)


def forget_before(parts: Parts, log_start: int) -> None:
    """Forget names without messages whose notes are dropped, unless a crash could bring the messages back."""
    if not parts.write_queue.has_settles:
        parts.facts.weed_below(Note.NAME, partial(is_over, parts), log_start)


def give_names_back(parts: Parts, messages: list[Message]) -> None:
    """Return their names to messages that become pending again, unless other messages have them now.

    To be called when the batch with them is made. If its commit fails, they stay settled, and the names are free.
    """
    names, now_ms = UniqueNames(parts), parts.state.host.now_ms()
    for message, name in zip(messages, _names_in(messages), strict=True):
        if name is None:
            continue
        hashed, until_delivered, _, _ = name
        if not names.holder(hashed):
            parts.facts.set(Note.NAME, encode_named(message.seq, until_delivered, now_ms, hashed))


def named_bytes(parts: Parts) -> int:
    """Return the most bytes of the cap that the name of a message takes, with the settles of what it replaces."""
    return 2 * NAME_BYTES + SETTLED_BYTES * (1 + len(parts.state.meta.groups))


def names_bytes(parts: Parts, messages: list[Message]) -> int:
    """Return the most bytes of the cap that the names of messages take."""
    return named_bytes(parts) * sum([message.orders is not None and message.orders.named for message in messages])


def facts_bytes(parts: Parts, messages: list[Message]) -> int:
    """Return the most bytes of the cap that the names and the batches of messages take."""
    batched = [message for message in messages if message.orders is not None and message.orders.batched]
    batches = {batch_of(message.headers).key for message in batched}
    return names_bytes(parts, messages) + 2 * TALLY_BYTES * len(batches)


def names_of(publish: Publish) -> list[Name | None]:
    """Return the names that the messages of a publish ask for, from the first one that is not done with."""
    if publish.names is None:
        publish.names = _names_in(publish.messages)
    return publish.names[publish.next :]


def _names_in(messages: list[Message]) -> list[Name | None]:
    return [
        asked_name(message.headers) if message.orders is not None and message.orders.named else None
        for message in messages
    ]


def mark_duplicate(message: Message, holder: int) -> None:
    """Mark a message as not stored, and note which one has its name; see `Message.is_duplicate`."""
    message.seq, message.timestamp_ms = holder, 0
