"""The records of one batch: which messages are settled, by which group, and how often each was tried.

Settles, pops and releases are taken from the write queue as far as there is room for them. They never use the room that
the cleaner needs to copy any one segment. Publishes, such as transactions, and copies may have records of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from curbstone.core.engine.facts.tallies import SETTLED_NOTE_BYTES
from curbstone.core.engine.log.format import (
    Reason,
    TriesRecord,
    encode_settled,
    encode_tries,
    runs_of,
    settled_bytes,
    tries_bytes_of,
)
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.write_queue import SETTLE_BYTES, Pop

RUN_BYTES = 12
"""The bytes of one run of settled messages."""


class Records:
    __slots__ = ("_parts", "_releases", "_settles", "bytes", "handed", "pops", "released", "settled", "tries")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.settled: dict[tuple[str, Reason], list[tuple[int, int]]] = {}
        """By group and reason, the settles that were taken from the write queue, as (first, count)."""
        self.pops: list[Pop] = []
        self.released: list[TriesRecord] = []
        self.handed: list[TriesRecord] = []
        self.tries: list[TriesRecord] = []
        """All records of tries in the batch, in order; a later one of the same message replaces an earlier one."""
        self.bytes = 0
        """Bytes of all records."""
        self._settles: list[bytes] = []
        self._releases: list[bytes] = []

    # --- what waits in the write queue

    def take(self) -> None:
        """Take the settles, pops and records of tries that wait, as far as there is room for them."""
        write_queue, room = self._parts.write_queue, self._parts.log.room
        limit = max(0, min(room.slack_bytes // 2, room.records_left - room.kept))
        # Room is kept for settles and first releases, so they may use it if hardly any other room is left.
        settles_limit = limit if limit >= SETTLE_BYTES else max(0, min(room.slack_bytes // 2, room.records_left))
        if write_queue.settles:
            for key, seqs in write_queue.settles.items():
                write_queue.ranges.setdefault(key, []).extend(runs_of(seqs))
            write_queue.settles = {}
        if write_queue.ranges:
            self._take_settles(settles_limit)
        if write_queue.pops:
            self._take_pops(settles_limit)
        if write_queue.releases:
            self.released, write_queue.releases = self._affordable(write_queue.releases, limit, settles_limit)
            self.add_tries(self.released)
        if write_queue.redelivery_records and not write_queue.releases and not self._is_needed_for_publishes:
            # Only if no release was left over: these must follow earlier releases of the same messages.
            self.handed, rest = self._affordable(list(write_queue.redelivery_records.values()), limit, 0)
            write_queue.redelivery_records = {(item.group, item.first): item for item in rest}
            self.add_tries(self.handed, state=True)

    def put_back(self) -> None:
        """Return what was taken to the write queue, except for pops: the commit has failed."""
        write_queue = self._parts.write_queue
        for key, runs in self.settled.items():
            write_queue.ranges.setdefault(key, []).extend(runs)
        since = {(item.group, item.first + index) for item in write_queue.releases for index in range(item.span)}
        handed = {(item.group, item.first): item for item in self.handed}
        write_queue.redelivery_records = {
            key: item for key, item in handed.items() if key not in since
        } | write_queue.redelivery_records
        write_queue.releases = self.released + write_queue.releases

    @property
    def _is_needed_for_publishes(self) -> bool:
        """Whether publishes wait and need the little room that is left: records that no caller waits for wait, too."""
        room = self._parts.log.room
        return bool(self._parts.write_queue.publishes) and room.budget < room.segment_bytes

    def _most_runs(self, group: str, limit: int) -> int:
        """Return how many more runs of settled messages a group may have in this batch."""
        tallies = self._parts.tallies
        is_counted = tallies is not None and not group and bool(tallies.open)
        run_bytes = RUN_BYTES + SETTLED_NOTE_BYTES if is_counted else RUN_BYTES
        return max((limit - self.bytes - settled_bytes(group, 0)) // run_bytes, 0)

    def _fitting(self, group: str, reason: Reason, runs: list[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
        """Return as many of these runs as fit, together with notes about batches; the last one may be shortened."""
        tallies = self._parts.tallies
        if group or tallies is None:
            return runs
        return tallies.affordable(reason, runs, limit - self.bytes - settled_bytes(group, len(runs)))

    def _take_settles(self, limit: int) -> None:
        waiting = self._parts.write_queue.ranges
        for key in list(waiting):
            runs = waiting.pop(key)
            most = self._most_runs(key[0], limit)
            taken = runs if len(runs) <= most else runs[:most]
            if self._parts.tallies is not None:
                taken = self._fitting(*key, taken, limit)
            rest = runs[len(taken) :]
            if taken and taken[-1] != runs[len(taken) - 1]:
                (first, count), asked = taken[-1], runs[len(taken) - 1][1]
                rest.insert(0, (first + count, asked - count))
            if rest:
                waiting[key] = rest
            if not taken:
                break
            self.settled[key] = taken
            self._add_settled(*key, taken)

    def _take_pops(self, limit: int) -> None:
        """Take the settles of pops; after the commit the callers get the messages, or the messages are requeued."""
        by_group: dict[str, list[Pop]] = {}
        for pop in self._parts.write_queue.pops:
            by_group.setdefault(pop.group, []).append(pop)
        for group, pops in by_group.items():
            taken = pops[: self._most_runs(group, limit)]
            self.settle(group, Reason.ACK, [pop.delivery.message.seq for pop in taken])
            self.pops += taken
        for pop in self.pops:
            del self._parts.write_queue.pops[pop]

    def _affordable(
        self, waiting: list[TriesRecord], limit: int, kept: int
    ) -> tuple[list[TriesRecord], list[TriesRecord]]:
        """Split releases into those that this batch takes and those that continue to wait.

        The first record of a message uses the room that was kept for it, up to `kept` bytes in all. All other records
        must fit into `limit`.
        """
        groups = self._parts.index.groups
        spent = size = self.bytes
        most = min(len(waiting), max(self._parts.log.records_span - spent, 0) // RELEASE_BYTES)
        for index in range(most):
            item = waiting[index]
            group = groups.get(item.group)
            known = group.tracked.get(item.first) if group is not None else None
            is_first = bool(kept) and known is not None and not known.is_record_head
            if index == 0 or item.group != waiting[index - 1].group:
                size += tries_bytes_of(item.group, 0)
            size += RELEASE_BYTES
            spent += 0 if is_first else RELEASE_BYTES
            if spent > max(limit, self.bytes) or size > max(limit, kept):
                most = index
                break
        return waiting[:most], waiting[most:]

    # --- what others bring

    def settle(self, group: str, reason: Reason, seqs: list[int]) -> None:
        """Write that messages are settled; `seqs` is sorted in place."""
        if seqs:
            self._add_settled(group, reason, runs_of(seqs))

    def add_tries(self, released: list[TriesRecord], *, state: bool = False) -> None:
        """Add records of tries. With `state` they are the current state of messages, and not new events."""
        if released:
            data = encode_tries(released, state=state)
            self.tries += released
            self._releases.append(data)
            self.bytes += len(data)

    def repeat_tries(self, states: list[TriesRecord]) -> None:
        """Repeat records of a segment to be dropped, before all others of this batch, which are newer."""
        if states:
            data = encode_tries(states, state=True)
            self.tries = states + self.tries
            self._releases.insert(0, data)
            self.bytes += len(data)

    def _add_settled(self, group: str, reason: Reason, runs: Sequence[tuple[int, int]]) -> None:
        data = encode_settled(group, reason, runs)
        self._settles.append(data)
        self.bytes += len(data)
        if not group and (tallies := self._parts.tallies) is not None:
            self.bytes += tallies.settle(reason, runs)

    # --- as bytes

    @property
    def sections(self) -> tuple[bytes, bytes]:
        return b"".join(self._releases), b"".join(self._settles)
