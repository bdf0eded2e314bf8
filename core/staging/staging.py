"""Staged transactions: messages that are put on disk in parts, and published all at once by a commit.

A client stages parts under an id of its own and commits them, all or nothing, over any queues of a project. The id is
remembered for a week, so a repeated commit changes nothing. A transaction without a commit is dropped when no client
has called for a while. ::

    staging/committed, committed.copy   the ids that were committed (see `core.staging.committed`)
    staging/<hash of the id>/           the parts and the marker of a transaction (see `core.staging.files`)
    staging/gone-<n>/                   a transaction that is being removed

`core.staging.transaction` has a table of the states of a transaction.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from curbstone.core.engine.facts.kinds import staged_key
from curbstone.core.engine.log.format import Note
from curbstone.core.engine.queue import Queue
from curbstone.core.engine.shared import Shared
from curbstone.core.errors import (
    AlreadyCommitted,
    BadRequest,
    Conflict,
    CurbstoneError,
    NoSuchTransaction,
    QueueFull,
    Unavailable,
    shutting_down,
)
from curbstone.core.names import QueueName, queue_name
from curbstone.core.staging.apply import Application, Target, resumed_targets
from curbstone.core.staging.commit import StagedCommit
from curbstone.core.staging.committed import CommittedIds
from curbstone.core.staging.files import MARKER, ROOT, Marker, decode_marker, disk_error, find_parts, read_file
from curbstone.core.staging.frames import FrameCheck
from curbstone.core.staging.identity import DOTS, Hash, identity_of
from curbstone.core.staging.transaction import CommitDone, StagedBy, StagedTransaction, StagingArea, stager_of
from curbstone.core.staging.upload import Upload
from curbstone.core.values import NOBODY, TTL_MS_MAX, Done, StagedStatus, State, ignore

BYTES_MAX = 1024 * 1024 * 1024
TTL_MS = 3_600_000
RETRY_MS = 1000
PARTS_MAX = 10_000
Check = Callable[[QueueName], None]
"""Raises if a queue must not be published to."""

_PART = re.compile(r"[A-Za-z0-9._:-]{1,100}")

logger = logging.getLogger("curbstone.core")


class Queues(Protocol):
    """The queues of the server."""

    left: dict[str, str]
    """The directories of queues that can't be served, with the reasons."""

    def get(self, name: QueueName) -> Queue:
        """Return a queue; raise NoSuchQueue."""

    def queues(self) -> Sequence[Queue]:
        """Return all queues except the private ones."""


class Staging:
    """All staged transactions of a broker. Implements `core.port_staging.Staging`."""

    def __init__(self, shared: Shared, queues: Queues, salt: Callable[[], int], bytes_max: int, ttl_ms: int) -> None:
        self.area = StagingArea(shared, bytes_max)
        self.host = self.area.host
        self.disk = shared.disk
        self._queues = queues
        self._queue = queues.get
        self.committed = CommittedIds(shared)
        self._ttl_ms = ttl_ms
        self._salt = salt
        self._transactions: dict[bytes, StagedTransaction] = {}
        self._applications: set[Application] = set()
        self._gone = 0
        self._timer_is_set = False

    def __len__(self) -> int:
        return len(self._transactions)

    @property
    def bytes(self) -> int:
        return self.area.bytes

    @property
    def bytes_max(self) -> int:
        return self.area.bytes_max

    # --- requests

    def upload(
        self,
        project: str,
        identifier: str,
        part: str,
        message_bytes_max: int,
        *,
        ttl_ms_max: int = TTL_MS_MAX,
        owner: str = NOBODY,
        check: Check | None = None,
    ) -> Upload:
        """See the port. Raise AlreadyCommitted, Conflict, BadRequest, QueueFull or Unavailable."""
        hashed, label, series = identity_of(project, identifier, owner)
        if not _PART.fullmatch(part) or part in DOTS:
            raise BadRequest(f"bad part {part[:80]!r}: 1 to 100 of A-Z a-z 0-9 . _ : -")
        self._check_running()
        transaction = self._transactions.get(hashed)
        if transaction is None:
            if self.committed.messages_of(hashed, series) is not None:
                raise AlreadyCommitted(f"transaction {label} has been committed")
            transaction = self._transactions[hashed] = StagedTransaction(
                self.area, hashed, label, StagedBy(owner, project), self._forget_empty
            )
            self._arm()
        transaction.check_open()
        if len(transaction.parts) >= PARTS_MAX and part not in transaction.parts:
            raise QueueFull(f"transaction {label} has {PARTS_MAX} parts, the most there can be")
        transaction.uploads += 1
        transaction.version += 1
        transaction.touch()

        def body_bytes_max(name: str) -> int:
            target = queue_name(name, project)
            if check is not None:
                check(target)
            return min(self._queue(target).options.max_message_size, message_bytes_max)

        return Upload(transaction, part, transaction.version, FrameCheck(body_bytes_max, ttl_ms_max))

    def commit(
        self,
        project: str,
        identifier: str,
        parts: Sequence[str] | None,
        on_done: CommitDone,
        *,
        content: str = "",
        owner: str = NOBODY,
        check: Check | None = None,
    ) -> None:
        """See the port. With a `content`, a commit in a series is a repetition only if it was the last one and had it.

        Raise NoSuchTransaction, BadRequest, Conflict, StagedDamaged or Unavailable.
        """
        hashed, label, series = identity_of(project, identifier, owner)
        self._check_running()
        transaction = self._transactions.get(hashed)
        if transaction is not None and transaction.state is State.COMMITTING:
            if transaction.trouble:
                raise transaction.stuck_error()
            transaction.waiting.append(on_done)
            return
        messages = self.committed.messages_of(hashed, series)
        if content and series is not None:
            series = series.about(content)
        if messages is not None:
            if content and series is not None and self.committed.is_other(series):
                raise Conflict(f"transaction {label} was committed before, with other content")
            if transaction is not None and transaction.state is State.STAGED and transaction.parts:
                raise Conflict(f"transaction {label} is too late: a later one of its series has been committed")
            self.host.call_soon(lambda: on_done(None, True, messages))
            return
        if transaction is None or transaction.state is not State.STAGED or not transaction.parts:
            raise NoSuchTransaction(f"nothing is staged under {label}")
        chosen = transaction.chosen(parts)
        if check is not None:
            for name in {name for part in chosen for name in part.shares}:
                check(queue_name(name, project))
        transaction.state, transaction.series = State.COMMITTING, series
        transaction.messages = sum(part.messages for part in chosen)
        transaction.waiting.append(on_done)
        files = [part.frames for part in chosen]
        marker = Marker(self._salt() << 32 | self._salt(), project, identifier, 0, files, {}, series)
        StagedCommit(transaction, marker, chosen, self._queue, self._apply).begin()

    def drop(self, project: str, identifier: str, on_done: Done, *, owner: str = NOBODY) -> None:
        hashed, label, series = identity_of(project, identifier, owner)
        self._check_running()
        transaction = self._transactions.get(hashed)
        is_staged = transaction is not None and transaction.state is State.STAGED
        if not is_staged and self.committed.messages_of(hashed, series) is not None:
            raise AlreadyCommitted(f"transaction {label} has been committed")
        if transaction is None:
            self.host.call_soon(lambda: on_done(None))
        elif transaction.state is not State.STAGED:
            transaction.check_open()
        else:
            self._drop(transaction, on_done)

    def status(self, project: str, identifier: str, *, owner: str = NOBODY) -> StagedStatus:
        hashed, label, series = identity_of(project, identifier, owner)
        transaction = self._transactions.get(hashed)
        if transaction is not None and transaction.state in (State.STAGED, State.COMMITTING):
            transaction.touch()
            parts = [(part.name, part.messages, part.size) for _, part in sorted(transaction.parts.items())]
            staged = sum(part.messages for part in transaction.parts.values())
            is_staged = transaction.state is State.STAGED
            return StagedStatus(transaction.state, parts, staged if is_staged else transaction.messages)
        messages = self.committed.messages_of(hashed, series)
        if messages is None:
            raise NoSuchTransaction(f"nothing is staged under {label}")
        return StagedStatus(State.COMMITTED, [], messages)

    def _check_running(self) -> None:
        if self.area.shared.is_stopping:
            raise shutting_down()

    def _apply(
        self, transaction: StagedTransaction, marker: Marker, targets: list[Target], *, is_checked: bool = True
    ) -> None:
        """Put the messages of a committed transaction into their queues. After a stop, the next start continues."""
        application = Application(transaction, marker, targets, self._applied, is_checked=is_checked)
        self._applications.add(application)
        if self.area.shared.is_stopping:
            application.stop()
        self.host.call_soon(application.proceed)

    def _applied(self, application: Application) -> None:
        """Remember the id of a transaction whose messages are in the queues; only then answer, and remove its files."""
        transaction, marker = application.transaction, application.marker

        def remembered(error: CurbstoneError | None) -> None:
            self._applications.discard(application)
            if error is not None:  # the server stops; the next start finds everything applied
                return
            for target in application.targets.values():
                if target.queue is not None:
                    target.queue.facts.forget(Note.STAGED, staged_key(marker.number))
            transaction.state = State.COMMITTED
            transaction.answer(None, marker.messages)
            self._remove(transaction)

        self.committed.add(transaction.hashed, marker.messages, remembered, transaction.series)

    # --- the end of a transaction

    def _forget_empty(self, transaction: StagedTransaction) -> None:
        """Forget a transaction of which nothing is staged."""
        if transaction.is_made:
            self._drop(transaction, ignore)
        else:
            del self._transactions[transaction.hashed]

    def _drop(self, transaction: StagedTransaction, on_done: Done) -> None:
        transaction.state = State.DROPPING
        self._remove(transaction, on_done)

    def _remove(self, transaction: StagedTransaction, on_done: Done = ignore) -> None:
        """Remove a transaction with its directory, and call `on_done` after the first attempt.

        If that fails, it is repeated until it succeeds. The directory is renamed first, so that a crash leaves all of
        it or nothing.
        """
        self._gone += 1
        gone = f"{ROOT}/gone-{self._gone}"

        def job() -> None:
            with suppress(FileNotFoundError):  # nothing was ever written, or an earlier attempt has renamed it
                self.disk.rename(transaction.directory, gone)
            self.disk.sync_dir(ROOT)
            with suppress(OSError):  # the next start removes what is left
                self.disk.remove_tree(gone)

        def done(_: object, error: BaseException | None) -> None:
            if error is None or isinstance(error, FileNotFoundError):
                self.area.count(transaction.staged_by, -transaction.size)
                del self._transactions[transaction.hashed]
                if transaction.series is not None:
                    self.committed.forget(transaction.hashed)
                on_done(None)
                return
            logger.error("%s can't be removed, trying again: %s", transaction.directory, error)
            on_done(disk_error(error))
            self.host.call_later(RETRY_MS, again)

        def again() -> None:
            nonlocal on_done
            on_done = ignore
            if not self.area.shared.is_stopping:
                transaction.submit(job, done)

        transaction.when_idle(lambda: transaction.submit(job, done))

    # --- time

    def _arm(self) -> None:
        """Set the timer for when the first transaction may have been idle for too long."""
        if self._timer_is_set or not self._transactions:
            return
        self._timer_is_set = True
        first_ms = min(transaction.touched_ms for transaction in self._transactions.values())
        self.host.call_later(max(first_ms + self._ttl_ms - self.host.now_ms(), RETRY_MS), self._drop_idle)

    def _drop_idle(self) -> None:
        self._timer_is_set = False
        if self.area.shared.is_stopping:
            return
        oldest_ms = self.host.now_ms() - self._ttl_ms
        for transaction in list(self._transactions.values()):
            if transaction.uploads or transaction.state is not State.STAGED:
                transaction.touch()
            elif transaction.touched_ms <= oldest_ms:
                logger.info("transaction %s was idle for too long: dropped", transaction.label)
                self._drop(transaction, ignore)
        self._arm()

    # --- start and stop

    def recover(self) -> None:
        """Find what was staged, and continue with transactions that were committed. Blocking.

        Damage stops only the transaction that it is in, and is among the `reasons`.
        """
        try:
            names = sorted(self.disk.list_dir(ROOT))
        except FileNotFoundError:
            return
        self.disk.sync_dir("")
        self.disk.sync_dir(ROOT)
        self.committed.recover()
        markers: dict[str, Marker | None] = {}
        for name in names:
            directory = f"{ROOT}/{name}"
            if name.startswith("gone-"):
                self.disk.remove_tree(directory)
            elif re.fullmatch("[0-9a-f]{32}", name):
                if self.committed.messages_of(bytes.fromhex(name)) is not None:
                    self.disk.remove_tree(directory)  # its id is on disk, so only the removal was left to do
                    continue
                self.disk.sync_dir(directory)  # files that a killed process left must be durable before they count
                written = read_file(self.disk, f"{directory}/{MARKER}")
                if written is None:
                    self._recover_staged(directory, bytes.fromhex(name))
                else:
                    markers[name] = decode_marker(written[0])
        queues = {queue.uid: queue for queue in self._queues.queues()}
        for name, marker in markers.items():
            if marker is None:
                self._recover_damaged(f"{ROOT}/{name}", bytes.fromhex(name))
            else:
                self._recover_committed(bytes.fromhex(name), marker, queues)
        self.disk.sync_dir(ROOT)  # removals must be durable before a directory of the same name is made
        if None not in markers.values():  # with a damaged marker, the number to keep is unknown
            keys = {staged_key(marker.number) for marker in markers.values() if marker is not None}
            for queue in queues.values():
                queue.facts.keep_only(Note.STAGED, keys)
        self._arm()

    def _recovered(self, hashed: Hash, label: str) -> StagedTransaction:
        transaction = StagedTransaction(self.area, hashed, label, StagedBy(NOBODY, ""), self._forget_empty)
        transaction.is_made = True
        self._transactions[hashed] = transaction
        return transaction

    def _recover_staged(self, directory: str, hashed: Hash) -> None:
        """Take in a transaction that has not been committed."""
        found = find_parts(self.disk, directory)
        if not found.parts:
            self.disk.remove_tree(directory)
            return
        for name in found.needless:
            self.disk.remove(f"{directory}/{name}")
        transaction = self._recovered(hashed, directory)
        parts = transaction.parts = found.parts
        for part in parts.values():
            if part.is_damaged:
                logger.error("damaged: %s/%s; it has to be staged again", directory, part.file)
        transaction.version = max(part.version for part in parts.values())
        transaction.staged_by = stager_of(parts.values())
        self.area.count(transaction.staged_by, transaction.size)
        now_ms = self.host.wall_ms()
        last_ms = max(now_ms if part.is_damaged else part.time_ms for part in parts.values())
        transaction.touched_ms -= min(max(now_ms - last_ms, 0), self._ttl_ms)

    def _recover_committed(self, hashed: Hash, marker: Marker, queues: dict[str, Queue]) -> None:
        """Continue with a transaction whose marker is there; `queues` has all queues by their uids."""
        transaction = self._recovered(hashed, f"{marker.project}/{marker.identifier}")
        found = find_parts(self.disk, transaction.directory)
        for name in set(found.needless) - {file.name for file in marker.files}:
            self.disk.remove(f"{transaction.directory}/{name}")
        transaction.parts = found.parts
        transaction.staged_by = stager_of(found.parts.values())._replace(project=marker.project)
        transaction.state, transaction.series = State.COMMITTING, marker.series
        transaction.messages = marker.messages
        self.area.count(transaction.staged_by, transaction.size)
        unserved = sorted(queue for queue, (uid, _) in marker.queues.items() if uid in self._queues.left)
        if unserved:  # the next start that can serve this queue continues
            transaction.stuck(f"queue {unserved[0]} is not served")
            return
        known = {part.file: part.frames for part in found.parts.values() if not part.is_damaged}
        files = [known.get(file.name, file) if file.crc is None else file for file in marker.files]
        marker = marker._replace(files=files)
        self._apply(transaction, marker, resumed_targets(marker, queues), is_checked=False)

    def _recover_damaged(self, directory: str, hashed: Hash) -> None:
        """Leave a transaction as it is whose marker is damaged: it was committed, but its contents are unknown."""
        transaction = self._recovered(hashed, directory)
        transaction.state = State.COMMITTING
        transaction.stuck(f"{directory}/{MARKER} is damaged: its checksum does not match")
        logger.error("damaged: %s", transaction.reasons[0])

    @property
    def reasons(self) -> list[str]:
        """What is wrong with transactions or with the ids of committed ones, as texts for operators."""
        found = [reason for transaction in self._transactions.values() for reason in transaction.reasons]
        return [self.committed.damage, *found] if self.committed.damage else found

    def stop(self) -> None:
        """Take nothing more. Transactions that were committed and are not applied yet are applied at the next start."""
        for application in self._applications:
            application.stop()
        for transaction in self._transactions.values():
            if transaction.state is State.COMMITTING:
                transaction.answer(Unavailable("the server is shutting down; ask again when it is back"), 0)

    @property
    def is_committing(self) -> bool:
        """Whether a committed transaction is not in its queues yet."""
        return bool(self._applications)

    @property
    def is_working(self) -> bool:
        return self.committed.is_working or any(each.is_working for each in self._transactions.values())

    def close(self) -> None:
        self.committed.close()
