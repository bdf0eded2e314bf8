"""The notes in one queue's log: facts beside messages and how they end, repeated when their segment is dropped.

A batch asks once for the notes that it has to hold, and says so when they are on disk. Recovery hands over the notes
that it reads.
"""

from __future__ import annotations

from typing import NamedTuple

from curbstone.core.engine.facts.acks import Acks
from curbstone.core.engine.facts.dedup_keys import Keys, Known
from curbstone.core.engine.facts.losses import Loss, Losses
from curbstone.core.engine.facts.producers import Producers
from curbstone.core.engine.facts.staged_marks import StagedMarks
from curbstone.core.engine.log.format import Note, decode_acked, decode_loss, encode_acked, encode_loss
from curbstone.core.engine.log.publish import WholePublish
from curbstone.core.engine.log.room import Room
from curbstone.core.engine.state import QueueState
from curbstone.core.values import LastNumber


class Said(NamedTuple):
    """The notes of one batch, by kind, and as bytes."""

    data: bytes
    losses: dict[str, Loss]
    acks: dict[str, int]
    keys: dict[bytes, Known]
    staged: dict[int, int]
    numbers: dict[bytes, LastNumber]


SILENCE = Said(b"", {}, {}, {}, {}, {})


class Notes:
    """See the module's docstring."""

    __slots__ = ("_keys", "_producers", "_room", "_state", "acks", "losses", "staged")

    def __init__(self, state: QueueState, room: Room) -> None:
        self.losses = Losses(state)
        self.acks = Acks(state)
        self._keys: Keys | None = None
        """None until a publish has a key: most queues never see one."""
        self._state = state
        self._room = room
        self.staged = StagedMarks(room)
        self._producers: Producers | None = None
        """None while nobody has asked for one."""

    @property
    def keys(self) -> Keys:
        """The idempotency keys."""
        self._keys = self._keys or Keys(self._state, self._room)
        return self._keys

    @property
    def producers(self) -> Producers:
        """The numbered producers."""
        self._producers = self._producers or Producers(self._state, self._room)
        return self._producers

    def to_say(self, whole: WholePublish | None, first_seq: int, floor: int, numbers: dict[bytes, LastNumber]) -> Said:
        """Return the notes for a batch with which the segments below `floor` are dropped; with 0 none is.

        `whole` is the atomic publish in the batch, if there is one. `numbers` has, by producer, the last number that is
        stored once the batch is on disk.
        """
        losses = self.losses.to_log(floor) if self.losses.is_used else {}
        acks = self.acks.to_log(floor) if self.acks.is_used else {}
        says_more = floor or whole is not None
        keys = self._keys.to_log(whole, first_seq, floor) if says_more and self._keys else {}
        staged = self.staged.to_log(whole, floor) if says_more else {}
        numbers = self._producers.to_log(numbers, floor) if floor and self._producers else numbers
        if not (losses or acks or keys or staged or numbers):
            return SILENCE
        data = [encode_loss(name, *loss) for name, loss in losses.items()]
        data += [encode_acked(name, seq) for name, seq in acks.items()]
        data += [self.keys.encode(hashed, known) for hashed, known in keys.items()]
        data += [self.staged.encode(number, count) for number, count in staged.items()]
        data += [self.producers.encode(producer, last) for producer, last in numbers.items()]
        return Said(b"".join(data), losses, acks, keys, staged, numbers)

    def said(self, said: Said, segment: int) -> None:
        """Take in that the notes of a batch are on disk, in that segment."""
        if said.losses:
            self.losses.logged(said.losses, segment)
        if said.acks:
            self.acks.logged(said.acks, segment)
        for hashed, known in said.keys.items():
            self.keys.add(hashed, known._replace(segment=segment))
        for number, count in said.staged.items():
            self.staged.add(number, count, segment)
        for producer, last in said.numbers.items():
            self.producers.add(producer, last, segment)

    def recover(self, kind: int, payload: bytes, segment: int, earlier: set[str]) -> None:
        """Take in a note that recovery has read.

        `earlier` are the groups of which the log still speaks of an earlier group of the same name. A note of that is
        known to be in the log, but it does not count for the group that is declared now.
        """
        if kind == Note.LOSS:
            name, *loss = decode_loss(payload)
            self.losses.recover(name, Loss(*loss), segment, is_earlier=name in earlier)
        elif kind == Note.ACKED:
            name, seq = decode_acked(payload)
            self.acks.recover(name, seq, segment, is_earlier=name in earlier)
        elif kind == Note.KEY:
            self.keys.recover(payload, segment)
        elif kind == Note.STAGED:
            self.staged.recover(payload, segment)
        elif kind == Note.PRODUCER:
            self.producers.recover(payload, segment)

    def forget_group(self, name: str) -> None:
        """Forget a group that is no longer declared."""
        self.losses.forget(name)
        self.acks.forget(name)
