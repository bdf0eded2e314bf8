"""The states that simulated histories must reach, and which of them they did reach.

A bug that needs a state which no history reaches is not found, however many histories there are. So this is a list of
states that matter: in which bugs were, or in which two rare things meet. Most are seen in the engine's objects, after
each step and at each crash; others are what a fault met, or what a power cut or a start did to files.

A counter has in how many histories each state was reached. Those that enough have reached are not looked for any more,
so that looking costs next to nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeVar

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.broker import Broker
from curbstone.core.engine.compaction.cleaner import PassState
from curbstone.core.engine.directories import Removal
from curbstone.core.engine.log.format import Reason
from curbstone.core.wal.sync_group import FILES_MAX
from tests.kit.simulated import Crash
from tests.sim.fairness import OF_KEYS
from tests.sim.recording_disk import BACK, CRASH, DOUBT, FAILED_SYNC, FULL, LOST, TORN, UNDONE, Effect

if TYPE_CHECKING:
    from tests.sim.run import Run

T = TypeVar("T")
ENOUGH = 5


def _lacks_room(queue: LocalQueue) -> bool:
    return queue.cleaner.for_settles._is_short


def _copies(queue: LocalQueue) -> bool:
    batch = queue.writer.under_way
    return batch is not None and batch.source is queue.cleaner.relocation


def _replaces(queue: LocalQueue) -> object:
    batch = queue.writer.under_way
    return batch is not None and batch.publishes.names is not None and batch.publishes.names._aside


def _commit_of(queue: LocalQueue, what: str) -> object:
    commit = queue.log._under_way
    return commit is not None and getattr(commit, what)


def _oldest_has_only_tries(queue: LocalQueue) -> object:
    oldest = queue.log.segments[0]
    return len(queue.log.segments) > 1 and not oldest.runs and oldest.tries_records


def _is_skipping(queue: LocalQueue, *, drops: bool) -> bool:
    batch = queue.writer.under_way
    ranges = [*queue.write_queue.ranges, *(batch.records.settled if batch is not None and batch.records else ())]
    return any(reason is Reason.SKIPPED for _, reason in ranges) and queue.options.drops_oldest is drops


def _has_both_sizes(queue: LocalQueue) -> bool:
    room = queue.log.room
    return (
        room.segment_bytes == room.small_bytes
        and queue.log.room.sealed_end_max > 2 * room.small_bytes < room.ample_bytes
    )


def _ends_now(queue: LocalQueue) -> bool:
    due_ms = queue.leases.next_due_ms
    return queue.wakeups.is_due and due_ms is not None and due_ms <= queue.host.now_ms()


QUEUES: dict[str, Callable[[LocalQueue], object]] = {
    # The cleaner and the cap
    "a publish waits for the cleaner": lambda q: q.cleaner._publish.state is PassState.CLEANING,
    "a whole pass has made no room for a publish": lambda q: q.cleaner._publish.state is PassState.SPENT,
    "the log is cleaned for settles": lambda q: q.cleaner.for_settles.state is PassState.CLEANING,
    "a whole pass has made no room for settles": lambda q: q.cleaner.for_settles.state is PassState.SPENT,
    "the log is cleaned because it is above its cap": lambda q: q.cleaner._cap.state is PassState.CLEANING,
    "a whole pass has not brought the log below its cap": lambda q: q.cleaner._cap.state is PassState.SPENT,
    "a purge waits for its bytes to be erased": lambda q: q.cleaner._erased,
    "an erase and a publish want the same segments gone": lambda q: (
        q.cleaner._erased and q.cleaner._publish.state is PassState.CLEANING
    ),
    "the cleaner copies a segment": _copies,
    "the cleaner copies a part of a large run": lambda q: q.cleaner.relocation._part,
    "the cleaner waits for a read": lambda q: (
        q.cleaner.is_cleaning and any(q.index.reader.is_loading(run) for run in q.cleaner.relocation._asked)
    ),
    "the oldest segment has nothing but records of tries": _oldest_has_only_tries,
    "settles find no room": lambda q: q.write_queue.has_settles and _lacks_room(q),
    "releases find no room": lambda q: q.write_queue.releases and _lacks_room(q),
    "segments of both sizes": _has_both_sizes,
    "a raised cap is not in force yet": lambda q: q.meta_writer.cap < q.options.cap,
    "a cap was lowered below what the log needs": lambda q: q.log.room.excess > 0,
    "the log is above its cap, and the disk is full": lambda q: q.log.room.excess > 0 and q.writer.disk_is_full,
    "two changes of options are written as one": lambda q: len(q.meta_writer._storing) > 1,
    "a skipping group gives up messages": lambda q: _is_skipping(q, drops=False),
    "a queue drops its oldest messages": lambda q: _is_skipping(q, drops=True),
    "a queue drops its oldest messages while others are in flight": lambda q: (
        _is_skipping(q, drops=True) and q.index.unnamed.in_flight
    ),
    "a message is set aside, because one that replaces it is on its way": _replaces,
    # Files
    "a commit begins a segment": lambda q: _commit_of(q, "rolled"),
    "a commit begins a segment in the file of a dropped one": lambda q: _commit_of(q, "taken"),
    "a commit drops a segment": lambda q: _commit_of(q, "dropped"),
    "a commit drops a segment and begins one": lambda q: _commit_of(q, "dropped") and _commit_of(q, "rolled"),
    "a commit waits for earlier removals to be durable": lambda q: _commit_of(q, "_syncs_names"),
    "a commit that erases drops a segment": lambda q: _commit_of(q, "erases") and _commit_of(q, "dropped"),
    "a left-over file is removed by the next commit": lambda q: q.log._leftover and q.log._under_way,
    "a power cut would bring removed files back": lambda q: q.log._undurable_bytes,
    "there is a spare file and a reserve": lambda q: q.log._spare and q.log.reserve,
    "a read waits for a commit that drops segments": lambda q: q.log._after_drop,
    "nothing more is written to the active segment": lambda q: q.log.fenced,
    "nothing more is written to the active segment, and a settle waits": lambda q: (
        q.log.fenced and q.write_queue.has_settles
    ),
    "nothing can be written": lambda q: q.state.write_failure,
    "the disk is full, and settles wait": lambda q: q.writer.disk_is_full and q.write_queue.has_settles,
    "the disk is full while the cleaner is needed": lambda q: q.writer.disk_is_full and q.cleaner.is_cleaning,
    "the disk is full, and a commit takes the reserve": lambda q: (
        q.writer.disk_is_full and _commit_of(q, "taken") and _commit_of(q, "rolled")
    ),
    "the disk is full, and a promised publish waits": lambda q: (
        q.writer.disk_is_full and any(publish.must_not_fail for publish in q.write_queue.publishes)
    ),
    # Delivery
    "a lease ends in the turn of its ack": _ends_now,
    "a lease and a consumer have messages of a group": lambda q: len(q.leases) and q.dispatcher.attached,
    "a dead letter waits for room": lambda q: q.dispatcher._dead_letters._condemned,
    "dead letters wait for the transaction of others": lambda q: q.dispatcher._dead_letters._waiting,
    "dead letters are tried in halves": lambda q: q.dispatcher._dead_letters._most < 3,
    **OF_KEYS,
    "messages of several priorities are pending": lambda q: sum(lv.pending > 0 for lv in q.index.unnamed.levels) > 1,
    "a message of a higher priority is given back than the next one": lambda q: any(
        high.returned and low.pending for high, low in pairwise(q.index.unnamed.levels)
    ),
    "too many messages are held back for their keys": lambda q: any(
        level.stuck_at >= 0 for g in q.index.groups.values() for level in g.levels
    ),
    "a callback waits for settles and not for releases": lambda q: q.write_queue.after_settles,
    "a redelivery is noted behind a release that waits": lambda q: (
        q.write_queue.redelivery_records and q.write_queue.releases
    ),
    "an undo waits for its copies while publishes wait": lambda q: q.writer.copy_source and q.write_queue.publishes,
    "an undo and the cleaner want to copy": lambda q: q.writer.copy_source and q.cleaner.is_cleaning,
    "a part of a transaction keeps its place before other publishes": lambda q: (
        len(q.write_queue.publishes) > 1 and getattr(q.write_queue.publishes[0], "has_room", False)
    ),
}
"""States of one queue."""


def _redo_files(broker: Broker) -> int:
    syncer = broker.syncer
    return len(syncer._resting) + len(syncer._retiring) + (syncer._active is not None)


def _removals(broker: Broker) -> Iterable[Removal]:
    return chain.from_iterable(broker._directories._removals.values())


SERVER: dict[str, Callable[[Broker], object]] = {
    "a second redo file": lambda b: _redo_files(b) >= 2,
    "both redo files are full": lambda b: len(b.syncer._retiring) >= FILES_MAX,
    "a redo file is full, and commits in it are not reported": lambda b: b.syncer._ends and b.syncer._retiring,
    "a redo file is in its second life": lambda b: b.syncer._lives > b.syncer.files_made,
    "a redo file is not written to any more, because a record failed": lambda b: any(
        redo.has_failed for redo in b.syncer._retiring
    ),
    "a redo file can't be made for a while": lambda b: b.syncer._make_after_ms > b.host.now_ms(),
    "the redo files are kept for the next start": lambda b: b.syncer._kept,
    "a commit waits for the next record of a redo file": lambda b: b.syncer._waiting and b.syncer._under_way,
    "a turn is deferred, and a commit is not reported": lambda b: b.syncer._deferred and b.syncer._ends,
    "three segments lack what a redo file has": lambda b: len(b.syncer._disk.late) > 2,
    "the journal may have a transaction that was refused": lambda b: b.tx_log._doubtful,
    "the journal could not be replaced": lambda b: b.tx_log._rests,
    "the journal must be replaced, and a transaction waits": lambda b: b.tx_log._must_replace and b.tx_log._waiting,
    "a transaction is in one log and not in the other": lambda b: any(len(p) == 1 for p in b.tx_log._needed.values()),
    "two transactions are not in the logs": lambda b: len(b.tx_log._needed) > 1,
    "a missing part of a transaction waits for a full disk": lambda b: (
        b.missing_parts._left and any(q.writer.disk_is_full for q in b.queues())
    ),
    "a deletion failed, and is tried again": lambda b: any(not each.is_working for each in _removals(b)),
    "a queue waits for the deletion of the last one of its name": lambda b: any(each.blocked for each in _removals(b)),
    "two queues find the disk full": lambda b: sum(q.writer.disk_is_full for q in b.queues()) > 1,
    "the cleaners of two queues run": lambda b: sum(_copies(q) for q in b.queues()) > 1,
    "a probe finds out whether the disk works": lambda b: b.alarms._probes,
}
"""States of the whole server."""


def _last_commit(effect: str) -> Callable[[LocalQueue, set[Effect]], bool]:
    def is_in(queue: LocalQueue, effects: set[Effect]) -> bool:
        commit = queue.log._under_way
        return (effect, (queue.log.active if commit is None else commit.segment).path) in effects

    return is_in


_is_torn, _is_undone = _last_commit(TORN), _last_commit(UNDONE)


def _new_segment(queue: LocalQueue) -> str:
    commit = queue.log._under_way
    return commit.segment.path if commit is not None and commit.rolled else ""


POWER: dict[str, Callable[[LocalQueue, set[Effect]], object]] = {
    "the last commit is torn": _is_torn,
    "the last commit is torn while the cleaner copies": lambda q, e: _is_torn(q, e) and _copies(q),
    "the last commit is torn, and it drops a segment": lambda q, e: _is_torn(q, e) and _commit_of(q, "dropped"),
    "the last commit is torn while the cleaner is needed and the disk is full": lambda q, e: (
        _is_torn(q, e) and q.cleaner.is_cleaning and q.writer.disk_is_full
    ),
    "the last commit is torn, with a part of a transaction": lambda q, e: (
        _is_torn(q, e) and q.writer.under_way is not None and q.writer.under_way.publishes.tx
    ),
    "a new segment is torn": lambda q, e: (TORN, _new_segment(q)) in e,
    "a new segment is lost": lambda q, e: (LOST, _new_segment(q)) in e or (UNDONE, _new_segment(q)) in e,
    "a deferred commit is only in a redo file": lambda q, e: (
        q.log.active.redo and (_is_undone(q, e) or q.log.active.path in q.log.disk.late)
    ),
    "a dropped segment is back while another commit is under way": lambda q, e: (
        q.log._under_way and any(effect == BACK and path.startswith(f"{q.log.directory}/") for effect, path in e)
    ),
}
"""What a power cut does to a queue in some state."""

SEGMENT, REDO, META, JOURNAL, RESERVE = r"\.seg$", r"^redo\.\d+$", "/meta$", "^journal$", "/reserve$"

EFFECTS: dict[str, tuple[str, str]] = {
    "a power cut tears a redo file": (TORN, REDO),
    "a power cut undoes all of a record of a redo file": (UNDONE, REDO),
    "a power cut loses a redo file": (LOST, REDO),
    "a power cut brings a redo file back": (BACK, REDO),
    "a power cut tears the journal": (TORN, JOURNAL),
    "a power cut loses the journal": (LOST, JOURNAL),
    "a power cut brings the journal back": (BACK, JOURNAL),
    "a power cut loses the first meta of a queue": (LOST, META),
    "a power cut leaves a meta that was not named yet": (BACK, r"/meta\.new$"),
    "a power cut brings a dropped segment back": (BACK, SEGMENT),
    "a power cut loses a segment": (LOST, SEGMENT),
    "a power cut tears the reserve": (TORN, RESERVE),
    "a power cut brings a deleted queue back": (BACK, r"\.gone/"),
}
"""What a power cut does to a file, by its name."""

PLACES: dict[str, tuple[str, ...]] = {
    "a crash while redo files are replayed": (CRASH, "replay_redo"),
    "a crash while a start removes left-overs": (CRASH, "Replay._remove"),
    "a crash while a start cuts a segment": (CRASH, "Replay._cut"),
    "a crash while a start makes the first segment": (CRASH, "Broker._recover_queue", "Log.create"),
    "a crash while a start reads the journal": (CRASH, "TxLog.recover"),
    "a crash while a queue is created": (CRASH, "Broker._create.<locals>.job"),
    "a crash while a queue is renamed to be removed": (CRASH, "Directories._rename.<locals>.job"),
    "a crash while a removed queue is emptied": (CRASH, "Directories._empty.<locals>.job"),
    "a crash while meta is replaced": (CRASH, "store_meta"),
    "a crash while a redo file is made": (CRASH, "RedoFile._make"),
    "a crash while a redo file begins another life": (CRASH, "RedoFile._write_headers"),
    "a crash while a redo file is removed": (CRASH, "RedoFile.remove"),
    "a crash while the segments of a full redo file are synced": (CRASH, "sync_segments.<locals>.job"),
    "a crash while the journal is written": (CRASH, "TxLog._append.<locals>.job"),
    "a crash while the journal is replaced": (CRASH, "TxLog._replace.<locals>.job"),
    "a crash while deferred commits are written": (CRASH, "WriteBehindDisk.catch_up"),
    "a crash while a segment is begun": (CRASH, "Commit._open_new"),
    "a crash while the segment before is cut": (CRASH, "Commit._cut"),
    "a crash while a commit is undone": (CRASH, "Commit._undo"),
    "a crash while names are synced": (CRASH, "Commit._sync_names"),
    "a crash while dropped segments are removed": (CRASH, "Commit._tidy"),
    "a crash while the reserve grows": (CRASH, "Commit._write_reserve"),
    "a commit fails to sync": (FAILED_SYNC, "Commit.sync"),
    "a commit that the host makes fails to sync, and so does the job": (FAILED_SYNC, "SimWrite.run"),
    "the names of a commit fail to sync": (FAILED_SYNC, "Commit._sync_names"),
    "the segment before a new one fails to sync": (FAILED_SYNC, "Commit._cut"),
    "a commit can't be undone": (FAILED_SYNC, "Commit._undo"),
    "a record of a redo file fails to sync": (FAILED_SYNC, "RedoFile.append"),
    "a redo file fails to sync when it is made": (FAILED_SYNC, "RedoFile._make"),
    "a redo file fails to sync when it begins another life": (FAILED_SYNC, "RedoFile._write_headers"),
    "a redo file's removal fails to sync": (FAILED_SYNC, "RedoFile.remove"),
    "a segment of a full redo file fails to sync": (FAILED_SYNC, "sync_segments.<locals>.job"),
    "the journal fails to sync": (FAILED_SYNC, "TxLog._append.<locals>.job"),
    "the journal fails to sync when it is replaced": (FAILED_SYNC, "TxLog._replace.<locals>.job"),
    "meta fails to sync": (FAILED_SYNC, "store_meta"),
    "a queue fails to sync when it is created": (FAILED_SYNC, "Broker._create.<locals>.job"),
    "a deletion fails to sync": (FAILED_SYNC, "Directories._rename.<locals>.job"),
    "the name of a new segment is in doubt": (DOUBT, "Commit._open_new"),
    "the removal of a dropped segment is in doubt": (DOUBT, "Commit._tidy"),
    "a cut is in doubt": (DOUBT, "Commit._cut"),
    "the end of a commit that is undone is in doubt": (DOUBT, "Commit._undo"),
    "the name of meta is in doubt": (DOUBT, "store_meta"),
    "the name of a replaced journal is in doubt": (DOUBT, "TxLog._replace.<locals>.job"),
    "the name of a redo file is in doubt": (DOUBT, "RedoFile._make"),
    "the name of a new queue is in doubt": (DOUBT, "Broker._create.<locals>.job"),
    "a deletion is in doubt": (DOUBT, "Directories._rename.<locals>.job"),
    "the disk is full for a commit": (FULL, "Commit.write"),
    "the disk is full for zeros ahead of a commit": (FULL, "Commit._write_padded"),
    "the disk is full for the reserve": (FULL, "Commit._write_reserve"),
    "the disk is full for a redo file": (FULL, "RedoFile._make"),
    "the disk is full for the journal": (FULL, "TxLog._append.<locals>.job"),
    "the disk is full for meta": (FULL, "store_meta"),
    "the disk is full for a new queue": (FULL, "Broker._create.<locals>.job"),
}
"""The functions, all of them on the stack, in which a fault takes effect."""

Files = Mapping[str, int]

STARTS: dict[str, Callable[[Broker, Files, Files], object]] = {
    "a start writes missing parts of transactions": lambda b, _before, _after: b.missing_parts._left,
    "a start finds two redo files": lambda _b, before, _after: sum(bool(re.search(REDO, path)) for path in before) > 1,
    "a start finds a redo file that was being made": lambda _b, before, _after: any(
        re.search(r"^redo\.\d+\.new$", path) for path in before
    ),
    "a start finds a queue whose removal was not finished": lambda _b, before, _after: any(
        ".gone/" in p for p in before
    ),
    "a start removes a queue whose creation was not finished": lambda _b, before, after: any(
        ".gone/" not in path and not any(there.startswith(path.rpartition("/")[0]) for there in after)
        for path in before
        if path.startswith("queues/")
    ),
    "a start makes the first segment of a queue": lambda _b, before, after: any(
        path.endswith(".seg") for path in after.keys() - before.keys()
    ),
    "a start removes a segment": lambda _b, before, after: any(
        path.endswith(".seg") and ".gone/" not in path for path in before.keys() - after.keys()
    ),
    "a start cuts a segment": lambda _b, before, after: any(
        path.endswith(".seg") and after.get(path, size) < size for path, size in before.items()
    ),
    "a start finds a log above its cap": lambda b, _before, _after: any(q.log.room.excess for q in b.queues()),
    "a start finds messages that were handed out": lambda b, _before, _after: any(
        level.recovered and level.pending for q in b.queues() for level in q.index.unnamed.levels
    ),
}
"""What a start finds or does: the server, and the sizes of files before and after it."""

EVENTS = (
    "a batch has ended",
    "a batch has ended after a crash",
    "a crash in a start, after a crash in a start",
    "a message is left out after a crash",
    "a message is left out because of one that is on its way",
)
"""What is said of `States.saw`."""

RARE = frozenset(
    {
        "a crash while a commit is undone",
        "a crash while a redo file begins another life",
        "a crash while a redo file is removed",
        "a crash while a start cuts a segment",
        "a crash while a start makes the first segment",
        "a crash while a start reads the journal",
        "a crash while a start removes left-overs",
        "a crash while deferred commits are written",
        "a crash while redo files are replayed",
        "a crash while the segments of a full redo file are synced",
        "a missing part of a transaction waits for a full disk",
        "a new segment is torn",
        "a power cut brings a deleted queue back",
        "a power cut brings a redo file back",
        "a power cut brings the journal back",
        "a power cut loses a redo file",
        "a power cut loses the first meta of a queue",
        "a power cut loses the journal",
        "a power cut tears a redo file",
        "a power cut tears the journal",
        "a power cut undoes all of a record of a redo file",
        "a read waits for a commit that drops segments",
        "a record of a redo file fails to sync",
        "a redo file fails to sync when it begins another life",
        "a redo file fails to sync when it is made",
        "a redo file is full, and commits in it are not reported",
        "a redo file is not written to any more, because a record failed",
        "a redo file's removal fails to sync",
        "a segment of a full redo file fails to sync",
        "a skipping group gives up messages",
        "a start finds a redo file that was being made",
        "a start makes the first segment of a queue",
        "an erase and a publish want the same segments gone",
        "an undo and the cleaner want to copy",
        "both redo files are full",
        "releases find no room",
        "the disk is full for a redo file",
        "the disk is full, and a commit takes the reserve",
        "the disk is full, and a promised publish waits",
        "the end of a commit that is undone is in doubt",
        "the journal must be replaced, and a transaction waits",
        "the last commit is torn while the cleaner copies",
        "the last commit is torn while the cleaner is needed and the disk is full",
        "the last commit is torn, and it drops a segment",
        "the last commit is torn, with a part of a transaction",
        "the log is above its cap, and the disk is full",
        "the name of a redo file is in doubt",
        "the name of a replaced journal is in doubt",
        "the removal of a dropped segment is in doubt",
        "two transactions are not in the logs",
    }
)
"""Not reached, or hardly, by the histories of `make test`."""

STATES = frozenset(chain(QUEUES, SERVER, POWER, EFFECTS, PLACES, STARTS, EVENTS))


class States:
    """What one history reaches."""

    def __init__(self, run: Run, reached: Counter[str] | None) -> None:
        """`reached` counts the histories that have reached each state; without it nothing is looked for."""
        self._run = run
        self._reached = reached
        self._seen: set[str] = set()
        self._queues, self._server = self._wanted(QUEUES), self._wanted(SERVER)
        self._power, self._starts = self._wanted(POWER), self._wanted(STARTS)
        self._found: Files | None = None
        """The files that the start under way has found; None while none is under way."""
        self._crashes_in_start = 0

    def _wanted(self, states: dict[str, T]) -> dict[str, T]:
        reached = self._reached
        return {name: state for name, state in states.items() if reached[name] < ENOUGH} if reached is not None else {}

    def saw(self, state: str) -> None:
        """Note that a state is reached."""
        self._seen.add(state)

    def _look(self, states: dict[str, Callable[..., object]], *at: object) -> None:
        """Note which of these states are reached, and look for them no more."""
        for name in [name for name, is_reached in states.items() if is_reached(*at)]:
            del states[name]
            self.saw(name)

    def _open_queues(self) -> list[LocalQueue]:
        return [queue for queue in self._run.broker.queues() if queue.meta_writer.is_open]

    @property
    def is_delicate(self) -> bool:
        """Whether a crash may find more than usual."""
        return any(_copies(queue) for queue in self._open_queues())

    def stepped(self) -> None:
        """Look at the engine between two steps, or at a crash."""
        for queue in self._open_queues():
            self._look(self._queues, queue)
        self._look(self._server, self._run.broker)

    def starting(self) -> None:
        self._found = self._sizes()

    def started(self) -> None:
        assert self._found is not None
        self._look(self._starts, self._run.broker, self._found, self._sizes())
        self._found = None
        self._crashes_in_start = 0

    def _sizes(self) -> Files:
        return {path: len(inode.cache) for path, inode in self._run.disk.names.items()} if self._starts else {}

    def crashed(self, crash: Crash | None) -> None:
        """The process has ended; the disk is as it has left it."""
        if crash is not None:
            self._run.disk.crashed(crash.__traceback__)
        if self._found is None:
            self.stepped()
            return
        self._crashes_in_start += 1
        if self._crashes_in_start > 1:
            self.saw("a crash in a start, after a crash in a start")

    def lost_power(self) -> None:
        """The disk has forgotten what was not synced."""
        effects = self._run.disk.effects
        self._seen |= {
            name
            for name, (what, pattern) in EFFECTS.items()
            if name not in self._seen and any(what == effect and re.search(pattern, path) for effect, path in effects)
        }
        for queue in self._open_queues() if self._found is None else []:
            self._look(self._power, queue, effects)

    def ended(self) -> None:
        """The history has ended well: count what it has reached."""
        self._seen |= {
            name
            for name, (fault, *functions) in self._wanted(PLACES).items()
            if any(fault == met and names.issuperset(functions) for met, names in self._run.disk.stacks)
        }
        if self._reached is not None:
            self._reached.update(self._seen)
