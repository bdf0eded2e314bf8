"""Restores the state of a queue from its log, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable

from curbstone.core.disk import file_bytes
from curbstone.core.engine.facts.kinds import KINDS, decode_rank, decode_seq
from curbstone.core.engine.index.copies import CopyBatch
from curbstone.core.engine.index.runs import Run
from curbstone.core.engine.log.commit import ASIDE_SUFFIX, RESERVE_NAME, SEGMENT_SUFFIX, Segment, reserve_path
from curbstone.core.engine.log.format import (
    Flag,
    Note,
    TriesRecord,
    decode_levels,
    decode_log_start,
    decode_notes,
    decode_settled,
    decode_tries,
    time_of,
)
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.log.stored_batch import StoredBatch
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.recovery.chain import Chain, find_chain
from curbstone.core.message import Message
from curbstone.core.values import UNNAMED

ALWAYS = 1 << 62
"""A segment number above every start of the log, for damage that is always reported."""


class Replay:
    """Replays one queue's log. Blocking; to be done before the queue is used."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._state = parts.state
        self._log = parts.log
        self._index = parts.index
        self._facts = parts.facts
        self._delivered: dict[tuple[str, int], int] = {}
        """By group and level, up to which seq messages may have been delivered."""
        self._log_start = 1
        self._damage: list[tuple[int, str]] = []

    def run(self) -> int | None:
        """Recover the queue from its directory; return the number to begin its log with if none can be read."""
        log = self._log
        chain = find_chain(log.disk, log.directory, log.uid)
        self._damage += chain.damage
        self._report_asides(chain)
        if not chain.segments:
            self._sort_out(chain)
            self._state.next_seq += chain.hidden
            self._remove(chain.trash)
            self._set_aside(chain)
            self._report_damage()
            self._state.report(f"{log.directory}: there is no log that can be read; it begins anew")
            return chain.newest_number + 1
        last_batch = 0
        for segment, header in chain.segments:
            if header is None:
                segment.damaged = True
                self._note_damage(segment, [f"{segment.path}: its header does not check, none of it can be read"])
                continue
            self._state.next_seq = max(self._state.next_seq, header.next_seq)
            log.tx = max(log.tx, header.tx)
            last_batch = max(last_batch, header.next_batch - 1)
            self._log_start = max(self._log_start, header.log_start)
            last_batch = self._replay_segment(segment, last_batch, segment is chain.segments[-1][0])
        self._sort_out(chain)
        self._state.next_seq += chain.hidden
        log.next_batch = max([last_batch + 1, *self._state.meta.since.values()])
        self._finish(chain)
        return None

    def _sort_out(self, chain: Chain) -> None:
        """Decide about strays, and take no seq again that files outside of the log have."""
        self._damage += [(ALWAYS, text) for text in chain.sort_out(self._log_start)]
        self._state.next_seq = max(self._state.next_seq, chain.next_seq)

    def _replay_segment(self, segment: Segment, last_batch: int, is_active: bool) -> int:
        scan = Scan(self._log.disk, segment, last_batch, is_active=is_active)
        for batch in scan.batches():
            self._apply(batch, segment)
        if is_active:
            segment.end = scan.end
            if scan.torn_bytes:
                self._state.report(
                    f"{segment.path}: its last commit, {scan.torn_bytes} bytes, does not check and is not taken:"
                    " torn by a crash before it was confirmed, or damaged"
                )
        self._note_damage(segment, scan.damage)
        return scan.last_batch

    def _finish(self, chain: Chain) -> None:
        """Bring files and memory to where the log says they are, now that its start is known."""
        log, start = self._log, self._log_start
        gone = [segment for segment, _ in chain.segments if segment.number < start]
        segments = [segment for segment, _ in chain.segments if segment.number >= start]
        missing = [number for number in chain.missing if number >= start]
        self._damage += [(number, f"{log.directory}: segment {number} is missing") for number in missing]
        self._report_damage()
        for segment in gone:
            self._forget_segment(segment)
        self._cut(segments[:-1])
        log.log_start = start
        self._set_aside(chain)
        if not self._state.shared.is_synced:
            reserve = [reserve_path(log.directory)] if RESERVE_NAME in chain.names else []
            self._sync([*(segment.path for segment in segments), *reserve])
        log.recovered(segments, chain.newest_number)
        if log.is_above_cap:
            self._cut(segments[-1:])
        # Not before the log is synced: until then these may have the only durable copy of messages that it holds.
        self._remove([*chain.trash, *(segment.path for segment in gone)])
        self._finish_groups()

    def _forget_segment(self, segment: Segment) -> None:
        """Take out what was read from a segment that was dropped, and that a crash has brought back."""
        for run in self._index.runs.in_segment(segment):
            self._drop(run)
        for group in self._index.groups.values():
            group.lose_records(segment)

    def _sync(self, paths: list[str]) -> None:
        """Make what a killed process has written durable, because it counts from here on.

        Its batches may be in the system's memory alone. It may also have cut older segments and the reserve, even if
        that returned an error, and a power cut would undo it.
        """
        for path in paths:
            file = self._log.disk.open(path)
            file.sync()
            file.close()
        self._log.disk.sync_dir(self._log.directory)

    def _finish_groups(self) -> None:
        """Count what is pending in each group. While batches were applied, nothing was counted."""
        for (name, number), delivered in self._delivered.items():
            group = self._index.replayed(name)
            if not number or number in self._index.runs.levels:
                level = group.level_numbered(number)
                level.recovered = level.delivered = level.delivered_logged = delivered
        for name in self._state.meta.groups:
            # After a crash the log may have the note of a loss without all settles that belong to it. These are made up
            # for here: messages that returned below the loss would have gaps that are reported to no reader.
            self._settle(name, 1, self._facts.loss(name).floor - 1)
        for group in self._index.groups.values():
            self._forget_settled(group.name)
            group.recount()
        self._index.dynamic_groups.sweep()
        if self._parts.tallies is not None:
            self._parts.tallies.recovered(self._index.pending_unnamed, self._log_start)

    def _set_aside(self, chain: Chain) -> None:
        """Keep files that can't be read, under names that are no part of the log, and count all such files."""
        disk, log = self._log.disk, self._log
        kept = {f"{log.directory}/{name}" for name in chain.names if name.endswith(ASIDE_SUFFIX)}
        for path in chain.aside:
            aside = path.removesuffix(SEGMENT_SUFFIX) + ASIDE_SUFFIX
            while aside in kept:  # something was set aside under this name before
                aside = aside.removesuffix(ASIDE_SUFFIX) + "x" + ASIDE_SUFFIX
            disk.rename(path, aside)
            kept.add(aside)
        if chain.aside:
            disk.sync_dir(log.directory)
        log.room.set_aside(sum([file_bytes(disk, path) for path in sorted(kept)]))
        if RESERVE_NAME in chain.names:
            log.reserve = file_bytes(disk, reserve_path(log.directory))

    def _report_asides(self, chain: Chain) -> None:
        for name in chain.names:
            if name.endswith(ASIDE_SUFFIX):
                self._damage.append((ALWAYS, f"{self._log.directory}/{name}: a damaged segment, kept for repair"))

    def _forget_settled(self, name: str) -> None:
        group = self._index.groups[name]
        for seq in list(group.tracked):
            if not self._index.is_pending(name, seq):
                group.forget(seq)

    def _remove(self, paths: list[str]) -> None:
        """Remove files durably, because their room is used next."""
        for path in paths:
            self._log.disk.remove(path)
        if paths:
            self._log.disk.sync_dir(self._log.directory)

    def _cut(self, segments: list[Segment]) -> None:
        """Cut segments to their contents. A crash may have undone the cut of sealed ones."""
        for segment in segments:
            if segment.size > segment.end and not segment.damaged:
                file = self._log.disk.open(segment.path)
                file.truncate(segment.end)
                file.sync()
                file.close()
                segment.size = segment.end

    def _note_damage(self, segment: Segment, texts: list[str]) -> None:
        self._damage += [(segment.number, text) for text in texts]

    def _report_damage(self) -> None:
        """Report what is damaged, except in segments that were dropped and that a crash has brought back."""
        for number, text in self._damage:
            if number >= self._log_start:
                self._state.damaged.append(text)
                self._state.report(f"damaged: {text}")

    # --- one batch

    def _apply(self, batch: StoredBatch, segment: Segment) -> None:
        header = batch.header
        if header.flags & Flag.COPY:
            self._apply_copy(batch, segment)
        elif header.messages:
            self._apply_messages(batch, segment)
        earlier = {name for name, number in self._state.meta.since.items() if header.number < number}
        for name, first, count, tries, due_ms in decode_tries(batch.data, batch.releases_at, batch.settles_at):
            if name in earlier:
                continue
            group = self._index.replayed(name)
            for seq in range(first, first + count):
                group.recover(seq, tries, due_ms)
            group.stored(TriesRecord(name, first, count, tries, due_ms), segment)
        if header.flags & Flag.BATCHED or (header.flags & Flag.COPY and self._parts.tallies is not None):
            self._parts.count_batches().recover_messages(batch.messages())
        for name, _reason, first, count in decode_settled(batch.data, batch.settles_at, batch.notes_at):
            if name not in earlier:
                self._settle(name, first, count)
        for note, payload in decode_notes(batch.data, batch.notes_at, batch.end_at):
            if note == Note.LOG_START:
                self._log_start = max(self._log_start, decode_log_start(payload))
                continue
            if note == Note.DELIVERED:
                name = payload[KINDS[note].key].decode()
                if name in earlier:
                    continue
                self._mark(name, 0, decode_seq(payload))
            elif note == Note.RANK:
                name, level, seq = decode_rank(payload)
                if name in earlier:
                    continue
                self._mark(name, level, seq)
            elif note in (Note.BATCH, Note.BATCH_SETTLED):
                self._parts.count_batches().recover(note, payload)
            self._facts.recover(note, payload, segment.number, earlier)
        self._mark(UNNAMED, 0, header.delivered)
        self._log.tx = max(self._log.tx, header.tx)

    def _mark(self, name: str, level: int, seq: int) -> None:
        self._delivered[name, level] = max(self._delivered.get((name, level), 0), seq)

    def _apply_copy(self, batch: StoredBatch, segment: Segment) -> None:
        """Move copied messages to where they lie now.

        Messages of a run that were not copied had been settled when the copy was made, but the log has no record of it
        so far; they stay pending. A copy is pending in all its groups, until the settles in the same batch remove those
        that have settled it.
        """
        copies = batch.messages()
        self._state.next_seq = max(self._state.next_seq, copies[-1].seq + 1)
        names = {message.seq: self._index.entitled(message) for message in copies}
        for name in {name for entitled in names.values() for name in entitled}:
            self._index.replayed(name)
        self._index.insert_copies(copies, names, CopyBatch(segment, batch.offset, batch.offset + batch.header.length))

    def _apply_messages(self, batch: StoredBatch, segment: Segment) -> None:
        header = batch.header
        first, count = header.first_seq, header.messages
        if self._index.runs.at_or_after(first) is not None:  # happens only if damage hid what was settled
            self._note_damage(segment, [f"{segment.path}: batch {header.number} repeats messages from {first} on"])
            return
        bits = (1 << count) - 1
        end = batch.offset + header.length
        run, is_new = self._index.runs.append(first, bits, segment, batch.offset, end, header.messages_bytes)
        if is_new:
            run.time_ms = time_of(batch.data, batch.messages_at)
        self._state.next_seq = max(self._state.next_seq, first + count)
        if header.flags & Flag.LEVELS:
            self._index.rank(run, first, decode_levels(batch.data, batch.messages_at, count))
        if not header.flags & Flag.EXTRAS:
            self._entitle(run, bits << (first - run.first), self._default_groups(first))
            return
        for message in batch.messages():
            self._admit(run, message)

    def _admit(self, run: Run, message: Message) -> None:
        bit = 1 << (message.seq - run.first)
        run.naming |= bit if message.groups else 0
        self._entitle(run, bit, self._index.entitled(message))
        if message.expires_ms:
            self._index.expiries.note(run, message.expires_ms)

    def _default_groups(self, seq: int) -> list[str]:
        return [UNNAMED, *(name for name, start in self._state.meta.groups.items() if seq >= start)]

    def _entitle(self, run: Run, bits: int, names: Iterable[str]) -> None:
        for name in names:
            self._index.replayed(name)
            run.set_pending(name, run.pending(name) | bits)

    def _settle(self, name: str, first: int, count: int) -> None:
        runs = self._index.runs
        for run in runs.between(first, first + count):
            before = run.live().bit_count()
            run.set_pending(name, run.pending(name) & ~run.part(first, first + count))
            after = run.live().bit_count()
            if before:
                runs.shrink(run, run.bytes_live * (before - after) // before)
            if not after:
                self._drop(run)

    def _drop(self, run: Run) -> None:
        if run.is_indexed:
            self._index.runs.drop(run)
