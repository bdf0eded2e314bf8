"""The local engine: all queues of a data directory, from start to stop. Adapters see it as `core.port.Broker`."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.batches import NOT_TO_EVENTS
from curbstone.core.disk import OF_ONE_FILE, Disk
from curbstone.core.engine.directories import GONE_SUFFIX, QUEUES, TWIN_SUFFIX, Directories
from curbstone.core.engine.disk_alarms import AlarmingHost
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.log import Log, Salt, random_salt
from curbstone.core.engine.log.meta import Meta, load_meta, meta_reserve, store_meta
from curbstone.core.engine.queue import BrokerCalls, Queue
from curbstone.core.engine.recovery.chain import holds_something, last_commit_ms
from curbstone.core.engine.recovery.replay import Replay
from curbstone.core.engine.shared import Shared
from curbstone.core.engine.turns import Turns
from curbstone.core.errors import (
    BadRequest,
    Conflict,
    CurbstoneError,
    DataDirectoryError,
    MetaDamaged,
    NoSuchQueue,
    QueueFull,
    Unavailable,
    client_text,
    shutting_down,
)
from curbstone.core.events.events import Bindings, Fanout, Fanouts, Filters, binding_of, filters_of, unknown_filters
from curbstone.core.host import Host
from curbstone.core.message import Message
from curbstone.core.names import DEFAULT_PROJECT, QueueName, event_name
from curbstone.core.options import CAP_BYTES_MAX, QueueOptions, SyncMode
from curbstone.core.schemas import Schemas
from curbstone.core.staging.staging import BYTES_MAX, TTL_MS, Staging
from curbstone.core.stats import Stats
from curbstone.core.transactions.recovery import MissingParts, replay_transactions
from curbstone.core.transactions.transaction import Transaction, TransactionMover
from curbstone.core.transactions.tx_log import TxLog
from curbstone.core.values import Capability, Deleted, Done, EngineInfo, Health, Published
from curbstone.core.wal.kept import KeptFiles, recover_redo
from curbstone.core.wal.sync_group import SyncGroup
from curbstone.core.write_behind import WriteBehindDisk

CLOSE_POLL_MS = 5
_QUEUE_DIR = re.compile(r"[0-9a-f]{12}(\.gone|\.twin)?")

logger = logging.getLogger("curbstone.core")


class Broker:
    """See the module's docstring. All methods are called on the host's thread."""

    def __init__(
        self,
        host: Host,
        disk: Disk,
        defaults: QueueOptions,
        sync: SyncMode,
        salt: Salt,
        max_staged: int = BYTES_MAX,
        staged_ttl_ms: int = TTL_MS,
        max_cap: int = CAP_BYTES_MAX,
    ) -> None:
        self.engine = EngineInfo("local")
        self.capabilities = frozenset(Capability)
        self.shares_queues = False  # no other server uses the data directory
        self.host = host
        disk = self.disk = WriteBehindDisk(disk)
        self._unsynced_disk = disk.unsynced()
        self.defaults = defaults
        self.sync = sync
        self.max_cap = max(max_cap, defaults.cap)
        """The largest cap that a queue may be given. A queue that already has a larger one keeps it."""
        self.shared = Shared(host, disk, sync)
        self.alarms = self.shared.alarms
        self.commits = self.shared.commits
        self.leased = self.shared.leased
        self.tx_log = TxLog(AlarmingHost(host, self.alarms, "the journal"), disk)
        self.missing_parts = MissingParts()
        self.past = Stats()
        """Counts of what has happened, since the start, in queues that are gone."""
        self.kept_redo = KeptFiles()
        self._salt = salt
        self._queues: dict[QueueName, LocalQueue] = {}
        self._bindings = Bindings()
        self._fanouts = Fanouts(host)
        self.syncer = self.shared.syncer = SyncGroup(host, disk, salt, self.alarms, self.commits)
        self._turns = Turns(host, self.syncer)
        self._calls = BrokerCalls(
            mover_of=partial(TransactionMover, self),
            schedule=self._turns.add,
            delete=self._end_later,
            erasing=self._erasing,
            find=self.get,
        )
        self._directories = Directories(self.shared)
        self.left: dict[str, str] = {}
        """The directories of queues that can't be served, with the reasons."""
        self.staging = Staging(self.shared, self, salt, max_staged, staged_ttl_ms)

    @classmethod
    def open(
        cls,
        host: Host,
        disk: Disk,
        *,
        defaults: QueueOptions,
        sync: SyncMode,
        salt: Salt = random_salt,
        max_staged: int = BYTES_MAX,
        staged_ttl_ms: int = TTL_MS,
        max_cap: int = CAP_BYTES_MAX,
    ) -> Broker:
        """Recover all queues of a data directory. Blocking; raise DataDirectoryError if it can't be used."""
        broker = cls(host, disk, defaults, sync, salt, max_staged, staged_ttl_ms, max_cap)
        try:
            with suppress(FileExistsError):
                disk.make_dir(QUEUES)
                disk.sync_dir("")
            broker.shared.is_synced = disk.sync_all(QUEUES)
            disk.sync_dir(QUEUES)  # a process that was killed may not have done so
            broker.kept_redo = recover_redo(disk, broker.commits)
            broker.syncer.files_made = broker.kept_redo.highest
            for entry in sorted(disk.list_dir(QUEUES)):
                broker._recover(entry)
            broker.missing_parts = replay_transactions(broker.tx_log, broker._queues.values(), broker.left)
            broker.commits.journal_damage = len(broker.tx_log.damage)
            broker.staging.recover()
            for queue in broker.queues():
                if queue.log.is_above_cap:
                    queue.log.exceed()
                    queue.state.report(f"it {queue.log.fullness}; it takes no messages until enough are settled")
        except OSError as error:
            raise DataDirectoryError(f"the data directory can't be read: {error}") from error
        return broker

    def _recover(self, entry: str) -> None:
        """Take in one directory. If it can't be read, only its queue is not served, and nothing in it is touched."""
        directory = f"{QUEUES}/{entry}"
        if not _QUEUE_DIR.fullmatch(entry):
            logger.warning("%s is not the directory of a queue, and is left alone", directory)
            return
        try:
            if entry.endswith(TWIN_SUFFIX):
                self._leave(entry, f"{directory} was set aside, as another directory holds its queue")
            elif entry.endswith(GONE_SUFFIX):
                self.disk.remove_tree(directory)
            elif entry in self.kept_redo.lacking:
                self._leave(entry, self.kept_redo.lacking[entry])
            else:
                self._recover_queue(entry, directory)
        except MetaDamaged as error:
            self._leave(entry, str(error))
        except OSError as error:
            if error.errno not in OF_ONE_FILE:
                raise
            self._leave(entry, f"{directory} can't be read: {error.strerror}")

    def _recover_queue(self, entry: str, directory: str) -> None:
        self.disk.list_dir(directory)  # raises if this is a link
        meta = load_meta(self.disk, directory, self.defaults)
        if meta is None and holds_something(self.disk, directory, int(entry, 16)):
            raise MetaDamaged(f"{directory}/meta is missing, and there are commits in the log beside it")
        if meta is None:  # its creation was not finished
            self.disk.remove_tree(directory)
            return
        if meta.uid != entry:
            raise MetaDamaged(f"{directory}/meta is that of another directory, {meta.uid}")
        if meta.is_left_over:
            self.disk.rename(directory, directory + GONE_SUFFIX)
            self.disk.sync_dir(QUEUES)
            self.disk.remove_tree(directory + GONE_SUFFIX)
            return
        queue = self._make(meta)
        if meta.unknown_names:
            names = ", ".join(meta.unknown_names)
            queue.state.report(f"{names} in its meta is of a newer version: it is kept, and has no effect here")
        for event, text in unknown_filters(meta.bindings).items():
            queue.damaged.append(
                f"it gets all messages to {event}, as the filter of its binding is not understood: {text}"
            )
        first_number = Replay(queue.parts).run()
        if first_number is not None:  # for example because a crash came during the creation
            queue.log.recovered([queue.log.create(queue.state.next_seq, first_number)], first_number)
            self.disk.sync_dir(directory)
        earlier = self._queues.get(meta.name)
        if earlier is None or self._resolve_twin(queue, earlier):
            self._add(queue)

    def _leave(self, entry: str, text: str) -> None:
        """Note that a directory's queue is not served. Its name is not known for sure, and nothing in it is touched."""
        self.left[entry[:12]] = text
        logger.error("damaged: %s; the queue is not served, see curbstone repair", text)

    def _resolve_twin(self, queue: LocalQueue, other: LocalQueue) -> bool:
        """Decide between two directories of one queue, which earlier versions could leave; return whether `queue` wins.

        If one of them was never written to, it is removed. Otherwise the one that was written to last is served, and
        the other is set aside.
        """
        unused = next((one for one in (other, queue) if one.log.next_batch == 1 and not one.damaged), None)
        loser = unused or min(queue, other, key=lambda q: last_commit_ms(self.disk, q.log.directory, q.log.uid))
        loser.state.is_closed = True
        loser.log.close()
        if loser is other:
            self._forget(other)
        directory = loser.log.directory
        if unused is not None:
            self.disk.remove_tree(directory)
            return loser is other
        self._leave(
            loser.uid, f"{directory} holds queue {queue.name}, and so does another that is newer; it is set aside"
        )
        try:  # the new name keeps it from taking the place of the other when that is deleted
            self.disk.rename(directory, directory + TWIN_SUFFIX)
            self.disk.sync_dir(QUEUES)
        except OSError as error:
            logger.error("%s can't be set aside: %s", directory, error)
        return loser is other

    def _make(self, meta: Meta) -> LocalQueue:
        directory = f"{QUEUES}/{meta.uid}"
        disk = self.disk
        if meta.name.is_private:  # the next start removes it unread, like a directory whose removal was not finished
            directory += GONE_SUFFIX
            disk = self._unsynced_disk
        uid, cap = int(meta.uid, 16), meta.options.cap
        log = Log(disk, directory, uid, cap=cap, meta_bytes=meta_reserve(cap), salt=self._salt)
        return LocalQueue(self.shared, meta, log, self._calls)

    def _add(self, queue: LocalQueue) -> None:
        """Begin to serve a queue that was recovered."""
        self._know(queue)
        queue.opened()

    def _know(self, queue: LocalQueue) -> None:
        self._queues[queue.name] = queue
        self._bindings.change(queue.name, {}, queue.meta.bindings)

    # --- queues

    def catch_up(self, on_done: Done) -> None:
        """Call back in the next turn, because there are no other servers."""
        self.host.call_soon(partial(on_done, None))

    def queues(self) -> list[LocalQueue]:
        return [queue for queue in self._queues.values() if not queue.name.is_private]

    def private_queues(self) -> list[LocalQueue]:
        return [queue for queue in self._queues.values() if queue.name.is_private]

    def get(self, name: QueueName) -> LocalQueue:
        queue = self._queues.get(name)
        if queue is None:
            raise NoSuchQueue(f"no such queue: {name}")
        return _unbroken(queue)

    def ensure(self, name: QueueName) -> LocalQueue:
        """See `core.port.Broker.ensure`. A queue that has broken down is returned, too, and refuses everything."""
        return self._queues.get(name) or self._create(name, {})

    def _create(self, name: QueueName, changes: Mapping[str, object]) -> LocalQueue:
        meta = Meta(secrets.token_hex(6) if self._salt is random_salt else f"{self._salt():012x}", name, self.defaults)
        meta = meta.with_options(changes, 1)
        queue = self._make(meta)
        self._know(queue)
        directory = queue.log.directory
        is_begun = False
        first: Segment | None = None

        def job() -> None:
            nonlocal is_begun, first
            is_begun = self._queues.get(name) is queue
            if is_begun:  # otherwise it was deleted before this job began
                self.disk.make_dir(directory)
                first = queue.log.create(1)
                if not name.is_private:
                    store_meta(self.disk, directory, meta.encode())
                    self.disk.sync_dir(QUEUES)

        def done(error: BaseException | None) -> None:
            if error is None:
                if first is not None:
                    queue.log.recovered([first], 1)
                    queue.opened()
                else:
                    queue.meta_writer.failed(NoSuchQueue(f"no such queue: {name}"))
                return
            logger.error("queue %s can't be created: %s", name, error)
            if self._queues.get(name) is queue:
                self._forget(queue)
            if is_begun:  # part of it may be on disk, and must not return
                self._directories.remove(name, directory, lambda fn: fn(), queue.log.close, lambda _error: None)
            queue.fail_to_open(Unavailable(f"queue {name} can't be created: {client_text(error)}"))

        self._directories.create(name, directory, job, done)
        return queue

    def declare(self, name: QueueName, changes: Mapping[str, object], on_done: Done) -> None:
        if self.shared.is_stopping:
            raise shutting_down()
        queue = self._queues.get(name)
        if queue is None:
            _check_options(name, self.defaults.merged(changes, name.project), None, self.max_cap, self.shared.schemas)
            self._create(name, changes).meta_writer.when_open(on_done)
            return
        meta = _unbroken(queue).meta.with_options(changes, queue.state.next_seq)
        _check_options(name, meta.options, queue, self.max_cap, self.shared.schemas)
        if meta == queue.meta and not queue.meta_writer.is_behind:
            queue.meta_writer.when_open(on_done)
        else:
            queue.store(meta, on_done)

    def delete(self, name: QueueName, on_done: Deleted, reason: CurbstoneError | None = None) -> None:
        """Delete a queue with all its messages; its consumers get the `reason`.

        `on_done` gets whether there was a queue, when none of it is on disk any more. From then on no power cut
        brings anything of it back, except files of a private queue, which the next start removes.

        After an error, the queue or its files may be there again after a restart. Removing its directory is then tried
        until it succeeds, and another call of `delete` waits for that. What the journal or a redo file has of the queue
        goes when that file is used again.
        """
        queue = self._queues.get(name)
        if name.is_private and self.shared.is_stopping:  # the next start removes it
            self.host.call_soon(partial(on_done, False))
        elif queue is not None:
            self._forget(queue)
            queue.close(reason or NoSuchQueue(f"no such queue: {name}"))
            self._remove(queue, lambda error: on_done(error or True))
        elif not self._directories.when_removed(name, lambda error: on_done(error or True)):
            self.host.call_soon(partial(on_done, False))

    def leave_out(self, queue: Queue, error: CurbstoneError) -> bool:
        """Return whether a queue just does not get a message that it refused with this error.

        A private queue that is full is deleted for that.
        """
        if queue.name.is_private and isinstance(error, QueueFull):
            self._end_later(queue, error)
            return True
        return isinstance(error, NoSuchQueue)

    def _end_later(self, queue: Queue, reason: CurbstoneError) -> None:
        """Delete a queue in a later turn, if it is still there then."""

        def end() -> None:
            if self._queues.get(queue.name) is queue:
                self.delete(queue.name, lambda _outcome: None, reason)

        self.host.call_soon(end)

    def _remove(self, queue: LocalQueue, on_done: Done) -> None:
        """Remove a queue's directory as soon as no job works in it."""
        log = queue.log
        on_done = on_done if queue.name.is_private else self._erasing(log.uid, on_done, is_deleted=True)
        self._directories.remove(queue.name, log.directory, queue.when_idle, log.close, on_done)

    def _erasing(self, uid: int, on_done: Done, *, is_deleted: bool = False) -> Done:
        """Return what to call when a queue's own files are erased.

        That erases what redo files and the journal have of the queue, too, and then calls `on_done`.
        """
        on_done = _unless_failed(partial(self.tx_log.erase, uid, is_deleted=is_deleted), on_done)
        return _unless_failed(partial(self.syncer.erase, uid), on_done)

    def _forget(self, queue: LocalQueue) -> None:
        del self._queues[queue.name]
        self.alarms.over(queue.state.label)
        if not queue.name.is_private:
            self.past.add(queue.stats)
        self._bindings.change(queue.name, queue.meta.bindings, {})

    # --- events

    def bind(
        self, event: str, name: QueueName, on_done: Done, project: str = DEFAULT_PROJECT, filter_text: str = ""
    ) -> None:
        """See `core.port.Broker.bind`. `on_done` is called when the binding is on disk."""
        binding = binding_of(name, event, project)
        filters_of(filter_text)
        meta = self.ensure(name).meta
        self._bind(name, replace(meta, bindings={**meta.bindings, binding: filter_text}), on_done)

    def unbind(self, event: str, name: QueueName, on_done: Done, project: str = DEFAULT_PROJECT) -> None:
        meta = self.get(name).meta
        binding = binding_of(name, event, project)
        others = {each: text for each, text in meta.bindings.items() if each != binding}
        self._bind(name, replace(meta, bindings=others), on_done)

    def rebind(self, name: QueueName, events: frozenset[str], on_done: Done) -> None:
        meta = self.ensure(name).meta
        self._bind(name, replace(meta, bindings=_only(meta.bindings, events)), on_done)

    def occupy(self, name: QueueName, events: frozenset[str], unused_s: float | None, on_done: Done) -> None:
        """See `core.port.Broker.occupy`.

        The engine only keeps the number of seconds, also across a restart. The caller deletes the queue.
        """
        meta = self.ensure(name).meta
        self._bind(name, replace(meta, bindings=_only(meta.bindings, events), unused_s=unused_s), on_done)

    def _bind(self, name: QueueName, meta: Meta, on_done: Done) -> None:
        queue = self._queues[name]
        meta = replace(meta, doubt="")
        before = queue.meta.bindings
        if meta == queue.meta and not queue.meta_writer.is_behind:
            queue.meta_writer.when_open(on_done)
            return
        queue.store(meta, on_done)
        self._bindings.change(name, before, meta.bindings)

    def bindings(self, name: QueueName) -> Mapping[str, str]:
        return self.get(name).meta.bindings

    def unused_s(self, name: QueueName) -> float | None:
        return self.get(name).meta.unused_s

    @property
    def events_bound(self) -> int:
        return len(self._bindings)

    def bound(self, event: str, project: str) -> list[tuple[LocalQueue, Filters]]:
        """Return the queues that are bound to an event, each with its filters; a message has to pass one of them."""
        targets = self._bindings.targets(event, project)
        return [(self._queues[name], filters) for name, filters in targets.items()]

    def behind_events(self, fn: Callable[[], object]) -> None:
        """Call `fn` when everything that was published to events so far is handed to the queues; at once if it is."""
        self._fanouts.behind(fn)

    def publish_event(
        self, event: str, messages: list[Message], on_done: Published, project: str = DEFAULT_PROJECT
    ) -> None:
        """See `core.port.Broker.publish_event`. `core.events.events.LeaveOut` says which refusals are no errors."""
        targets = self.bound(event, project)
        if any([message.orders is not None and message.orders.batched for message in messages]):
            self.host.call_soon(partial(on_done, BadRequest(NOT_TO_EVENTS), 0, len(messages)))
        elif not targets or not messages:
            self.host.call_soon(partial(on_done, None, 0, len(messages)))
        else:
            self._fanouts.begin(Fanout(self.host, targets, messages, self.leave_out, on_done))

    def reply(self, name: QueueName, messages: list[Message], on_done: Published) -> bool:
        queue = self._queues.get(name)
        if queue is None:
            return False

        def done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            on_done(None if error is not None and self.leave_out(queue, error) else error, first_seq, count)

        queue.publish(messages, done)
        return True

    # --- the whole

    def transaction(self) -> Transaction:
        return Transaction(self)

    def health(self) -> Health:
        reasons = ["shutting down"] if self.shared.is_stopping else []
        reasons += self.alarms.reasons
        reasons += [f"damaged: {text}" for text in [*self.kept_redo.texts, *self.tx_log.damage]]
        reasons += [f"a queue is not served: {text}" for text in self.left.values()]
        for queue in self._queues.values():
            label = "a private queue" if queue.name.is_private else f"queue {queue.name}"
            doubt = [queue.meta.doubt] if queue.meta.doubt else []
            reasons += [f"{label} is damaged: {text}" for text in [*queue.damaged, *doubt]]
            reasons += [f"{label} {queue.log.fullness}"] if queue.meta_writer.is_open and queue.log.is_above_cap else []
        reasons += self.staging.reasons
        is_serving = not self.shared.is_stopping
        return Health(is_serving and not self.alarms, reasons, str(self.sync), is_serving)

    def shutdown(self, on_done: Callable[[], None]) -> None:
        self._fanouts.finish()
        self.shared.is_stopping = True
        self.alarms.is_stopping = True
        self.staging.stop()
        self._shutdown(on_done)

    def _shutdown(self, on_done: Callable[[], None]) -> None:
        working = [q for q in self._queues.values() if q.is_working or not (q.writer.owes_nothing or q.state.failure)]
        others = (self._directories, self.staging, self.tx_log)
        if working or self._turns or any(each.is_working for each in others) or not self.syncer.clear():
            self.host.call_later(CLOSE_POLL_MS, lambda: self._shutdown(on_done))
            return
        for queue in list(self._queues.values()):
            queue.close(shutting_down())
            queue.log.close()
        self.tx_log.close()
        self.staging.close()
        self.disk.close()
        self.host.call_soon(on_done)


def _unless_failed(step: Callable[[Done], None], on_done: Done) -> Done:
    """Return a callback that runs `step` if there is no error, and otherwise calls `on_done` with the error."""
    return lambda error: step(on_done) if error is None else on_done(error)


def _only(bindings: Mapping[str, str], events: frozenset[str]) -> dict[str, str]:
    """Return bindings to these events. Those that were there keep their filters."""
    return {event_name(event): bindings.get(event, "") for event in sorted(events)}


def _unbroken(queue: LocalQueue) -> LocalQueue:
    """Return the queue; raise Unavailable if it has broken down."""
    if queue.state.broken:
        raise Unavailable(queue.state.broken)
    return queue


def _check_options(
    name: QueueName, options: QueueOptions, queue: LocalQueue | None, max_cap: int, schemas: Schemas
) -> None:
    """Raise BadRequest or Conflict if a queue, or a new one, can't have these options."""
    if options.dead_letter == str(name):
        raise BadRequest("bad option dead_letter: a queue can't be its own")
    if options.schema and (queue is None or options.schema != queue.options.schema):
        schemas.rule(options.schema)
    had = queue.options.cap if queue is not None else 0
    if options.cap > max(max_cap, had) and not name.is_private:
        raise BadRequest(f"bad option cap: {options.cap} is more than the server's --max-cap of {max_cap}")
    if queue is None or not queue.meta_writer.is_open or options.cap >= had:
        return
    needed = queue.log.needed_under(options.cap, meta_reserve(options.cap))
    if options.cap < needed:
        held = f"the queue holds {queue.log.bytes} bytes and needs {needed}"
        raise Conflict(f"{held} to settle and clean them, more than a cap of {options.cap}")
