"""The simulator finds bugs: each of these plants one in the engine, and some history must end in a broken promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from heapq import heappush
from typing import Any

import pytest

from curbstone.core.admin import undo
from curbstone.core.engine.commit import batch
from curbstone.core.engine.commit.meta_writer import MetaWriter
from curbstone.core.engine.commit.producer_sequences import Found, SequenceCheck
from curbstone.core.engine.commit.publishes import Publishes
from curbstone.core.engine.commit.unique_names import UniqueNames
from curbstone.core.engine.delivery.batch_reports import BatchReports
from curbstone.core.engine.directories import Directories
from curbstone.core.engine.facts.facts import Facts
from curbstone.core.engine.facts.kinds import seq_of
from curbstone.core.engine.facts.tallies import Tallies
from curbstone.core.engine.index import copies
from curbstone.core.engine.index import group as group_module
from curbstone.core.engine.index import runs as index_runs
from curbstone.core.engine.index.backlogs import Backlog, Scheduler
from curbstone.core.engine.index.due import Expiries
from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.index import Index
from curbstone.core.engine.index.keys import Keys
from curbstone.core.engine.index.level import IsDead, Level, Taken
from curbstone.core.engine.index.runs import Page, Runs
from curbstone.core.engine.log import meta
from curbstone.core.engine.log.commit import Commit
from curbstone.core.engine.log.format import Note, Reason
from curbstone.core.engine.log.log import Log
from curbstone.core.engine.log.room import Room
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.queue import Queue
from curbstone.core.engine.write_queue import Publish, WriteQueue
from curbstone.core.errors import CurbstoneError
from curbstone.core.events import events
from curbstone.core.events.events import Fanout
from curbstone.core.filters import Filter, filter_of
from curbstone.core.host import Job
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.transactions import two_phase
from curbstone.core.transactions.records import encode_part
from curbstone.core.transactions.tx_log import TxLog
from curbstone.core.values import Done, Numbered, ignore
from tests.kit.simulated import SimFile
from tests.sim.history import Violation
from tests.sim.run import Run

pytestmark = [pytest.mark.source, pytest.mark.usefixtures("quiet")]


def ignore_facts(monkeypatch: pytest.MonkeyPatch, method: str, note: Note) -> None:
    """Let a method of `Facts` do nothing for facts of one kind."""
    original = getattr(Facts, method)

    def but_this_kind(self: Facts, number: int, *rest: object) -> None:
        if number != note:
            original(self, number, *rest)

    monkeypatch.setattr(Facts, method, but_this_kind)


def finds_something(seeds: range, *, faults: bool = False, focus: str = "") -> bool:
    """Return whether some seed ends in a broken promise.

    Where the first seeds find nothing for seconds, `seeds` begins with the first that does.
    """
    for seed in seeds:
        try:
            Run(seed, faults=faults, focus=focus).run()
        except Violation:
            return True
    return False


def test_simulator_detects_a_lying_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "sync", lambda self: None)
    assert finds_something(range(10))


def test_simulator_detects_a_duplicate_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Level.take_returned

    def take(self: Level, group: Group, taken: Taken, is_dead: IsDead) -> bool:
        before = len(taken.deliveries)
        may_go_on = original(self, group, taken, is_dead)
        if len(taken.deliveries) > before:
            heappush(self.returned, taken.deliveries[-1].message.seq)
        return may_go_on

    monkeypatch.setattr(Level, "take_returned", take)
    assert finds_something(range(20))


def test_simulator_detects_a_broken_ordering_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keys, "admit", lambda self, level, name, seq: 1)
    assert finds_something(range(10), focus="keys")


def test_simulator_detects_unwritten_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteQueue, "settled", lambda self, group, reason, seqs: self._wakeups.schedule())
    assert finds_something(range(10))


def test_simulator_detects_producer_numbers_lost_in_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_facts(monkeypatch, "recover", Note.PRODUCER)
    assert finds_something(range(20), focus="numbers")


def test_simulator_detects_producer_numbers_checked_out_of_log_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SequenceCheck, "taken", lambda self, publish, now_ms: None)
    assert finds_something(range(20), focus="numbers")


def test_simulator_detects_an_overtaken_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = SequenceCheck.look

    def look(self: SequenceCheck, numbered: Numbered, count: int) -> Found:
        known = self.coming.get(numbered.producer) or self._facts.last_number(numbered.producer)
        return original(self, numbered, count) if known else Found(0, None, is_certain=True)

    monkeypatch.setattr(SequenceCheck, "look", look)
    assert finds_something(range(140, 220), faults=True, focus="numbers")


def test_simulator_detects_an_answer_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeat is confirmed at once, though nothing of what was published before it is on disk."""
    original = Publishes._answer

    def say(self: Publishes, publish: Publish, count: int, error: CurbstoneError | None, first_seq: int) -> None:
        taken, self.taken = self.taken, []
        original(self, publish, count, error, first_seq)
        self.taken = taken

    monkeypatch.setattr(Publishes, "_answer", say)
    assert finds_something(range(40), focus="numbers")


def test_simulator_detects_an_exceeded_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("publish_left", "budget"):
        monkeypatch.setattr(Room, name, property(lambda self: 1 << 40))
    assert finds_something(range(20))


def test_simulator_detects_an_ignored_failed_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SimFile.sync

    def sync(self: SimFile) -> None:
        with suppress(OSError):
            original(self)

    monkeypatch.setattr(SimFile, "sync", sync)
    assert finds_something(range(100), faults=True)


def test_simulator_detects_a_return_of_refused_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Commit, "_undo", lambda self: True)
    assert finds_something(range(218, 258), faults=True)


def test_simulator_detects_unwritten_cumulative_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteQueue, "settled_ranges", lambda self, group, reason, ranges: self._wakeups.schedule())
    assert finds_something(range(20))


def test_simulator_detects_a_wrong_overflow_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Index.clear_not_in_flight

    def clear(self: Index, group: Group, seq: int) -> tuple[int, list[tuple[int, int]]]:
        oldest = group.first_pending(seq)
        if oldest in group.in_flight:
            return original(self, group, seq)
        group.in_flight[oldest] = None
        cleared = original(self, group, seq)
        del group.in_flight[oldest]
        return cleared

    monkeypatch.setattr(Index, "clear_not_in_flight", clear)
    assert finds_something(range(20), focus="overflow")


def test_simulator_detects_an_undo_of_a_dead_lettered_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "_UNDONE", tuple(Reason))
    assert finds_something(range(30, 90), focus="undo")


def test_simulator_detects_an_undo_that_ignores_other_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Index, "settled_of", lambda self, copies: {})
    assert finds_something(range(36, 56), focus="undo")


def test_simulator_detects_an_unreported_group_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_facts(monkeypatch, "set", Note.LOSS)
    assert finds_something(range(30))


# --- transactions


def test_simulator_detects_half_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the journal has is not written again after a crash."""
    original = TxLog.recover
    monkeypatch.setattr(TxLog, "recover", lambda self, highest: original(self, highest)[:0])
    assert finds_something(range(353, 413))


# --- directories


def test_simulator_detects_a_name_reused_before_its_deletion_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both directories could be there after a crash."""

    def create(
        self: Directories, _name: QueueName, _path: str, job: Job, on_done: Callable[[BaseException | None], None]
    ) -> None:
        self._host.submit(job, lambda _result, error: on_done(error))

    monkeypatch.setattr(Directories, "create", create)
    assert finds_something(range(31, 91), focus="remake")


def test_simulator_detects_a_creation_that_waits_for_its_own_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waited for the other."""
    original = Directories.create

    def create(
        self: Directories, name: QueueName, _path: str, job: Job, on_done: Callable[[BaseException | None], None]
    ) -> None:
        original(self, name, "", job, on_done)

    monkeypatch.setattr(Directories, "create", create)
    assert finds_something(range(60), focus="remake")


def test_simulator_detects_a_deletion_confirmed_before_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Directories.remove

    def remove(self: Directories, name: QueueName, directory: str, when_idle: Any, close: Any, on_done: Done) -> None:
        original(self, name, directory, when_idle, close, ignore)
        on_done(None)

    monkeypatch.setattr(Directories, "remove", remove)
    assert finds_something(range(60), focus="remake")


def test_simulator_detects_a_raised_cap_applied_before_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetaWriter, "cap", property(lambda self: self._parts.state.options.cap))
    assert finds_something(range(60), focus="recap")


def test_simulator_detects_a_queue_that_stays_above_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "lower_excess", lambda self: None)
    assert finds_something(range(6, 66), focus="fill")


def test_simulator_detects_a_queue_above_its_cap_that_cannot_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    def records_left(self: Room) -> int:
        return -1 if self.held + self.meta_bytes > self.cap else self.left

    monkeypatch.setattr(Log, "_needed", lambda self, room, doubtful=False: room.cap)
    monkeypatch.setattr(Room, "records_left", property(records_left))
    assert finds_something(range(3, 103), focus="fill")


# --- filters


def test_simulator_detects_a_filter_that_treats_unknown_as_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message without the header of a NOT was copied to the queue."""

    def taking(text: str) -> Filter:
        found = filter_of(text)
        return Filter(text, lambda fields: found.test(fields) is not False, found.weight)

    monkeypatch.setattr(events, "filter_of", taking)
    assert finds_something(range(20), focus="durable")


def test_simulator_detects_a_filter_lost_at_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta, "bindings_of", lambda facts: dict.fromkeys(facts["bindings"], ""))
    assert finds_something(range(20), focus="durable")


def test_simulator_detects_wrong_copy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue got the first messages of a list, and not those that pass its filter."""
    original = Fanout._chosen

    def chosen(self: Fanout, queue: Queue) -> list[Message]:
        return self._messages[: len(original(self, queue))]

    monkeypatch.setattr(Fanout, "_chosen", chosen)
    assert finds_something(range(20), focus="durable")


# --- keys that share a queue


def test_simulator_detects_an_ignored_key_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keys, "_check_limits", lambda self, key: True)
    assert finds_something(range(20), focus="fair")


def test_simulator_detects_slots_freed_while_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Keys.take_place

    def take_place(self: Keys, backlog: Backlog) -> None:
        key = backlog.key
        original(self, backlog)
        key.places_taken -= self._limit > 1

    monkeypatch.setattr(Keys, "take_place", take_place)
    assert finds_something(range(20), focus="fair")


def test_simulator_detects_an_unfair_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def most(self: Scheduler) -> Backlog | None:
        return next(iter(self._by_count[max(self._by_count)])) if self._by_count else None

    monkeypatch.setattr(Scheduler, "next", most)
    assert finds_something(range(20), focus="fair")


# --- priorities


def test_simulator_detects_copies_that_lose_their_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    original = copies._put_copy

    def put(runs: Runs, expiries: Expiries, run: index_runs.Run, message: Message, names: Iterable[str]) -> None:
        original(runs, expiries, run, message, names)
        run.levels, run.ranked = None, 0

    monkeypatch.setattr(copies, "_put_copy", put)
    assert finds_something(range(20), focus="priority")


def test_simulator_detects_default_priority_behind_lower_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "_rank", lambda level: level.number)
    assert finds_something(range(10), focus="priority")


def test_simulator_detects_a_page_taken_for_its_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run got after its page was read was skipped."""
    original = Level._loaded

    def loaded(self: Level, group: Group, run: index_runs.Run, page: Page | None) -> None:
        original(self, group, run, page)
        if page is not None and page.messages is not None:
            page.messages += [None] * 10_000
            page.bits = -1

    monkeypatch.setattr(Level, "_loaded", loaded)
    assert finds_something(range(40), focus="priority")


# --- unique names


def test_simulator_detects_names_lost_at_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_facts(monkeypatch, "recover", Note.NAME)
    assert finds_something(range(20), focus="unique")


def test_simulator_detects_names_lost_with_their_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(parts: Parts, log_start: int) -> None:
        parts.facts.weed_below(Note.NAME, lambda _value: True, log_start)

    monkeypatch.setattr(batch, "forget_before", forget)
    assert finds_something(range(40), focus="unique")


def test_simulator_detects_two_equal_names_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UniqueNames, "take", lambda self, messages, asked, seq: None)
    assert finds_something(range(20), focus="unique")


def test_simulator_detects_a_name_that_outlives_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def holder(self: UniqueNames, hashed: bytes, ended: object = ()) -> int:
        value = self._parts.facts.get(Note.NAME, hashed)
        return seq_of(value) if value is not None else 0

    monkeypatch.setattr(UniqueNames, "holder", holder)
    assert finds_something(range(20), focus="unique")


def test_simulator_detects_a_replaced_message_restored_by_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UniqueNames, "add_records", lambda self, records: None)
    assert finds_something(range(20), focus="unique")


def test_simulator_detects_a_message_lost_by_a_failed_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UniqueNames, "set_back", lambda self: None)
    assert finds_something(range(60), faults=True, focus="unique")


# --- batches


def test_simulator_detects_a_tally_lost_with_its_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fact is repeated as it was noted, without what has ended since."""
    original = Tallies.notes
    monkeypatch.setattr(Tallies, "notes", lambda self, facts, _log_start: original(self, facts, 0))
    assert finds_something(range(9, 49), focus="batch")


def test_simulator_detects_unlogged_batch_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tallies, "recover", _but_settles(Tallies.recover))
    assert finds_something(range(8, 28), focus="batch")


def _but_settles(original: Callable[[Tallies, int, bytes], None]) -> Callable[[Tallies, int, bytes], None]:
    def recover(self: Tallies, note: int, value: bytes) -> None:
        if note != Note.BATCH_SETTLED:
            original(self, note, value)

    return recover


def test_simulator_detects_a_batch_that_ends_without_its_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch ends before its report is on disk."""
    original = BatchReports.send

    def send(self: BatchReports, keys: Iterable[bytes]) -> None:
        keys = list(keys)
        original(self, keys)
        for key in keys:
            if self._parts.tallies is not None and key in self._parts.tallies.open:
                self._parts.tallies.drop(key)

    monkeypatch.setattr(BatchReports, "send", send)
    assert finds_something(range(60, 360), focus="batch")


def test_simulator_detects_a_report_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal does not say that the batch has ended."""
    monkeypatch.setattr(two_phase, "encode_part", lambda uid, *members: encode_part(uid, *members[:3]))
    assert finds_something(range(12, 92), focus="batch")


def test_simulator_detects_counted_messages_of_a_failed_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tallies, "failed", Tallies.committed)
    assert finds_something(range(9, 69), faults=True, focus="batch")
