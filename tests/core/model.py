"""One queue in plain Python: what the engine's must look like after the same calls.

It knows no disk and no log. A message has a place in every group entitled to it; the place is rdy,
wip or delayed, and gone when settled. What is handed out is, of the ready ones of the highest priority, the first by
seq, and each time after `oldest_every` - 1 others, the first by seq of all. Of messages with the same key at most
`key_limit` are wip. If that is 1, only the first that is there is ready, and after another one of it was settled not in
the same go.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

UNNAMED = ""


@dataclass
class GroupEntry:
    """A message in one group."""

    tries: int = 0
    due_ms: int = 0
    is_wip: bool = False
    is_unsure: bool = False
    """Whether it may count as tried once though nobody had it: there was a restart, and it has an ordering key."""

    @property
    def possible_tries(self) -> set[int]:
        """What may be told of it."""
        return {self.tries, 1} if self.is_unsure else {self.tries}

    @property
    def state(self) -> str:
        if self.is_wip:
            return "wip"
        return "delayed" if self.due_ms else "rdy"


@dataclass
class Held:
    """A message that was published and is not settled in every group."""

    body: bytes
    expires_ms: int
    key: str = ""
    priority: int = 4
    places: dict[str, GroupEntry] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class Dead:
    """What is expected of a dead letter."""

    body: bytes
    seq: int
    reason: str
    tries: int
    error: str


class Model:
    """See the module's docstring."""

    def __init__(self, *, declared: tuple[str, ...], max_tries: int, nack_delay_ms: int, dead_letter: bool) -> None:
        self.declared = declared
        self.max_tries = max_tries
        self.nack_delay_ms = nack_delay_ms
        self.dead_letter = dead_letter
        self.oldest_every = 0
        self.in_flight = 0
        self.key_limit = 1
        self.handed: dict[str, int] = {}
        """By group, how many were handed out since the start."""
        self.now_ms = 0
        self.next_seq = 1
        self.messages: dict[int, Held] = {}
        self.latest: dict[str, int] = {}
        """By name, the message that got it last."""
        self.dead: list[Dead] = []
        self.passed: set[tuple[str, str]] = set()
        """Groups and keys of which a message was settled: the next one comes when that is on disk."""
        self.unsure: set[int] = set()
        """What died without having been handed out since a restart: see `GroupEntry.is_unsure`."""

    # --- looking

    def unsettled(self, group: str) -> dict[int, GroupEntry]:
        """Return what is unsettled in a group, in the order of seq."""
        held = sorted(self.messages.items())
        return {seq: message.places[group] for seq, message in held if group in message.places}

    def ready(self, group: str) -> list[int]:
        """Return what may be handed out, by seq."""
        ready: list[int] = []
        if self.key_limit != 1:
            places = self.unsettled(group)
            wip = Counter(self.messages[seq].key for seq, place in places.items() if place.is_wip)
            most = self.key_limit or len(places)
            return [
                seq
                for seq, place in places.items()
                if place.state == "rdy" and (not (key := self.messages[seq].key) or wip[key] < most)
            ]
        keys = {key for name, key in self.passed if name == group}
        for seq, place in self.unsettled(group).items():
            key = self.messages[seq].key
            if key not in keys and place.state == "rdy":
                ready.append(seq)
            if key:
                keys.add(key)
        return ready

    def next(self, group: str) -> int:
        """Return what is handed out next, or 0."""
        ready = self.ready(group)
        if self.oldest_every and self.handed.get(group, 0) % self.oldest_every == self.oldest_every - 1:
            return min(ready, default=0)
        return min(ready, key=lambda seq: (-self.messages[seq].priority, seq), default=0)

    def has_capacity(self, group: str) -> bool:
        """Return whether one more may be handed out."""
        return not self.in_flight or self.counts(group)[1] < self.in_flight

    def counts(self, group: str) -> tuple[int, int, int]:
        """Return how many are rdy, wip and delayed."""
        states = [place.state for place in self.unsettled(group).values()]
        return states.count("rdy"), states.count("wip"), states.count("delayed")

    def by_priority(self, group: str) -> dict[int, int]:
        """Return how many are unsettled, by priority; nothing if all have 4."""
        counts = Counter(self.messages[seq].priority for seq in self.unsettled(group))
        return {} if set(counts) <= {4} else dict(counts)

    @property
    def bytes_held(self) -> int:
        """Bytes of all bodies that are unsettled somewhere."""
        return sum(len(message.body) for message in self.messages.values())

    def next_event_ms(self) -> int | None:
        """Return when something happens by itself, leases apart."""
        dues = [place.due_ms for message in self.messages.values() for place in message.places.values()]
        expiries = [message.expires_ms for message in self.messages.values()]
        return min((ms for ms in dues + expiries if ms), default=None)

    # --- what is done to it

    def publish(
        self,
        bodies: list[bytes],
        *,
        delay_ms: int,
        ttl_ms: int,
        groups: tuple[str, ...],
        keys: list[str],
        priorities: list[int],
    ) -> list[int]:
        seqs = list(range(self.next_seq, self.next_seq + len(bodies)))
        self.next_seq += len(bodies)
        due_ms = self.now_ms + delay_ms if delay_ms else 0
        for seq, body, key, priority in zip(seqs, bodies, keys, priorities, strict=True):
            expires_ms = self.now_ms + ttl_ms if ttl_ms else 0
            held = self.messages[seq] = Held(body, expires_ms, key, 4 if key and self.key_limit == 1 else priority)
            for group in groups or (UNNAMED, *self.declared):
                held.places[group] = GroupEntry(due_ms=due_ms)
        return seqs

    def publish_named(self, name: str, body: bytes, *, key: str, delay_ms: int, groups: tuple[str, ...]) -> int:
        """Take a message with a name; return its seq or, as a negative number, that of the one it is left out for.

        The name begins with how it counts: until the message with it is `settled`, until it is `delivered`, or it
        `replaces` that one.
        """
        holder = self.latest.get(name, 0)
        places = self.messages[holder].places if holder in self.messages else {}
        waiting = [group for group, place in places.items() if not place.is_wip]
        if name.startswith("replaces"):
            for group in waiting:
                self.settle(group, holder)
        elif places if name.startswith("settled") else [group for group in waiting if not places[group].tries]:
            return -holder
        more = {"delay_ms": delay_ms, "ttl_ms": 0, "groups": groups}
        (seq,) = self.publish([body], keys=[key], priorities=[4], **more)  # type: ignore[arg-type]
        self.latest[name] = seq
        return seq

    def deliver(self, group: str, room: int) -> list[int]:
        """Hand out what is ready up to `room`, and then what has its turn because of that."""
        taken = self.deliver_once(group, room)
        while len(taken) < room and any(name == group for name, _ in self.passed):
            self.passed = {passed for passed in self.passed if passed[0] != group}
            taken += self.deliver_once(group, room - len(taken))
        return taken

    def deliver_instead(self, group: str, expected: list[int], given: list[int]) -> None:
        """Where others had room, and what has its turn now was there sooner: as many, and each might have come."""
        self.undo_delivery(group, [*set(expected) - set(given)])
        self.passed.clear()
        for seq in sorted(set(given) - set(expected)):
            assert seq in self.ready(group), f"given in {group!r}: {sorted(given)}, but {seq} has to wait"
            self.messages[seq].places[group].is_wip = True
            self.handed[group] = self.handed.get(group, 0) + 1

    def deliver_once(self, group: str, room: int) -> list[int]:
        """Hand out what is ready, up to `room`; what was tried too often dies on the way."""
        taken: list[int] = []
        while len(taken) < room and self.has_capacity(group) and (seq := self.next(group)):
            place = self.messages[seq].places[group]
            if self.max_tries and place.tries >= self.max_tries:
                self.die(group, seq, "max_tries", place.tries, "")
            else:
                place.is_wip = True
                taken.append(seq)
                self.handed[group] = self.handed.get(group, 0) + 1
        return taken

    def undo_delivery(self, group: str, seqs: list[int]) -> None:
        """These were not handed out after all."""
        for seq in seqs:
            self.messages[seq].places[group].is_wip = False
        self.handed[group] = self.handed.get(group, 0) - len(seqs)

    def settle(self, group: str, seq: int) -> None:
        """It is done with in a group."""
        held = self.messages[seq]
        if held.key and self.key_limit == 1:
            self.passed.add((group, held.key))
        if held.places[group].is_unsure:
            self.unsure.add(seq)
        del held.places[group]
        if not held.places:
            del self.messages[seq]

    def die(self, group: str, seq: int, reason: str, tries: int, error: str) -> None:
        """It goes to the dead-letter queue if there is one."""
        if self.dead_letter:
            self.dead.append(Dead(self.messages[seq].body, seq, reason, tries, error))
        self.settle(group, seq)

    def reject(self, group: str, seq: int, error: str) -> None:
        self.die(group, seq, "rejected", self.messages[seq].places[group].tries + 1, error)

    def release(self, group: str, seq: int, delay_ms: int, error: str) -> None:
        """Back to its place, one try older."""
        place = self.messages[seq].places[group]
        place.is_wip = False
        place.tries += 1
        place.due_ms = self.now_ms + delay_ms if delay_ms else 0
        if self.max_tries and place.tries >= self.max_tries:
            self.die(group, seq, "max_tries", place.tries, error)

    def purge(self) -> int:
        """Remove what nobody holds; return how many messages left."""
        before = len(self.messages)
        for seq, held in list(self.messages.items()):
            for group, place in list(held.places.items()):
                if not place.is_wip:
                    self.settle(group, seq)
        return before - len(self.messages)

    def time(self, now_ms: int) -> None:
        """It is later: what is due becomes ready, what has expired leaves."""
        self.now_ms = now_ms
        for seq, held in list(self.messages.items()):
            for group, place in list(held.places.items()):
                if place.due_ms and place.due_ms <= now_ms:
                    place.due_ms = 0
                if held.expires_ms and held.expires_ms <= now_ms and not place.is_wip:
                    if self.dead_letter:
                        self.dead.append(Dead(held.body, seq, "expired", place.tries, ""))
                    self.settle(group, seq)

    def restart(self) -> None:
        """Nobody holds anything any more; what was held has been tried once more."""
        self.handed.clear()
        for message in self.messages.values():
            for place in message.places.values():
                place.is_unsure = bool(message.key) and self.key_limit == 1 and not place.is_wip and not place.tries
                place.tries += place.is_wip
                place.is_wip = False
