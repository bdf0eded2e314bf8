"""Undo: brings back messages that were acked, popped or purged, as far as the log still has them.

The log keeps nothing just for this. It is read from its beginning, on a worker thread: first for what was settled, and
how, then for the messages. Those are written again (`core.admin.restore`) with the seqs and ids that they had.

Messages that are pending are left alone, so none returns twice. A message that was rejected, expired or tried too
often never returns, because it may live on as a dead letter; neither does one that was redriven to another queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial

from curbstone.core.admin.restore import Restore
from curbstone.core.disk import Disk
from curbstone.core.engine.commit.writer import Writer
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.format import Flag, Reason, decode_seqs, decode_settled, entry_bytes
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.log.stored_batch import StoredBatch
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import Conflict, CurbstoneError, Unavailable, client_text
from curbstone.core.message import Message
from curbstone.core.values import Undoing, Undone, UndoRequest

UNDO_BYTES_MAX = 16 * 1024 * 1024
"""One call brings back no more bytes than this, but at least one message."""

_NONE = Undone(0, 0, 0, more=False)
_UNDONE = (Reason.ACK, Reason.PURGE)


_Found = tuple[list[Message], Undone]
"""The requested messages that the log has, in the order of their seqs, and what became of the others."""


class Undo:
    """The undos of one queue, one at a time; so a message that one has found settled is not brought back by another."""

    __slots__ = ("_index", "_log", "_parts", "_purges", "_restore", "_state", "_stop", "_writer", "is_busy")

    def __init__(self, parts: Parts, writer: Writer) -> None:
        self._parts = parts
        self._state = parts.state
        self._log = parts.log
        self._index = parts.index
        self._writer = writer
        self._restore: Restore | None = None
        """The messages of the undo under way, once they are known."""
        self.is_busy = False
        """Whether an undo is under way."""
        self._stop = False
        """Whether the undo under way is to end, because a purge has begun."""
        self._purges = 0
        """How many purges are under way."""

    def begin(self, request: UndoRequest, on_done: Undoing) -> None:
        state = self._state
        refusal = state.refusal() or self._index.dynamic_groups.refusal([request.group]) or self._conflict(request)
        if refusal is not None:
            state.host.call_soon(partial(on_done, refusal, _NONE))
            return
        self.is_busy, self._stop = True, False
        disk, now_ms = self._log.disk, state.host.now_ms()
        since_ms = state.host.wall_ms() - request.within_ms if request.within_ms else 0
        segments = [segment.snapshot() for segment in self._log.segments]
        state.host.submit(
            lambda: _look(disk, segments, request, since_ms, now_ms), partial(self._looked, request, on_done)
        )

    def _conflict(self, request: UndoRequest) -> CurbstoneError | None:
        name = self._state.name
        if request.group in self._state.meta.groups:
            return Conflict(f"group {request.group} of queue {name} is declared: its position can't move back")
        if self.is_busy:
            return Conflict(f"another undo in queue {name} is under way")
        if self._purges:
            return Conflict(f"queue {name} is being purged")
        return None

    def _looked(
        self, request: UndoRequest, on_done: Undoing, found: _Found | None, error: BaseException | None
    ) -> None:
        if found is None:
            assert error is not None
            self._state.report(f"its log can't be read: {error}")
            self._end(on_done, Unavailable(f"queue {self._state.name} can't be read: {client_text(error)}"), _NONE)
            return
        refusal = self._state.refusal() or (self._conflict_of_purge() if self._stop else None)
        if refusal is not None:
            self._end(on_done, refusal, _NONE)
            return
        group = request.group
        messages, undone = found
        entitled = [message for message in messages if group in self._index.entitled(message)]

        def written(error: CurbstoneError | None, restored: int) -> None:
            if error is not None:
                error.members = {**error.members, "restored": restored}
            self._end(on_done, error, undone._replace(restored=restored))

        self._restore = Restore(self._parts, group, entitled, written)
        self._writer.copy_from(self._restore)

    def _conflict_of_purge(self) -> Conflict:
        return Conflict(f"queue {self._state.name} was purged meanwhile")

    def _end(self, on_done: Undoing, error: CurbstoneError | None, undone: Undone) -> None:
        self.is_busy = False
        self._restore = None
        self._state.host.notify(on_done, error, undone)

    # --- purges

    def before_purge(self, purge: Callable[[Callable[[], None]], None]) -> None:
        """End the undo under way, then call `purge(over)`; no other begins until `over` has been called."""
        self._stop = True
        self._purges += 1
        if self._restore is None:
            purge(self._purged)
        else:
            self._restore.stop(self._conflict_of_purge(), partial(purge, self._purged))

    def _purged(self) -> None:
        self._purges -= 1


# --- on a worker thread


def _look(disk: Disk, segments: list[Segment], request: UndoRequest, since_ms: int, now_ms: int) -> _Found:
    history = _Settled(request, since_ms)
    for segment in segments:
        history.read(disk, segment)
    chosen = set(list(history.seqs)[-request.limit :])
    found: dict[int, Message] = {}
    room = UNDO_BYTES_MAX
    expired: set[int] = set()
    for message in _messages(disk, segments, chosen):
        if message.seq in found:  # the cleaner has copied it
            continue
        if 0 < message.expires_ms <= now_ms:
            expired.add(message.seq)
            continue
        room -= entry_bytes(message)
        if room < 0 and found:
            return [found[seq] for seq in sorted(found)], Undone(0, 0, len(expired), True, history.damaged)
        found[message.seq] = message
    gone = len(chosen) - len(found) - len(expired)
    more = history.is_cut or len(history.seqs) > len(chosen)
    return [found[seq] for seq in sorted(found)], Undone(0, gone, len(expired), more, history.damaged)


class _Settled:
    """The messages that are settled in the group at the end of the log, in a way that can be undone."""

    def __init__(self, request: UndoRequest, since_ms: int) -> None:
        self._request = request
        self._since_ms = since_ms
        self.seqs: dict[int, None] = {}
        """Their seqs, in the order in which they were settled; only the last if there are very many."""
        self.is_cut = False
        """Whether there were others before those."""
        self.damaged = False
        """Whether some of the log can't be read; then `seqs` has nothing from before that."""
        self._last_batch = 0

    def read(self, disk: Disk, segment: Segment) -> None:
        """Read one segment.

        Behind a stretch that can't be read, what is known from before it may not be true any more, so it is forgotten.
        The segment may have been dropped meanwhile; then all before it are gone, too.
        """
        scan = Scan(disk, segment, self._last_batch, is_active=True)
        passed: list[tuple[int, int]] = []
        try:
            for batch in scan.batches():
                if len(scan.holes) > len(passed):
                    self._forget()
                    passed = list(scan.holes)
                self._add(batch)
        except FileNotFoundError:
            self.seqs.clear()
            return
        # At its end the scan names bad sectors once more, with exact bounds.
        new = [
            (start, end) for start, end in scan.holes if not any(low <= start and end <= high for low, high in passed)
        ]
        if scan.end < segment.end or new:
            self._forget()
        self._last_batch = scan.last_batch

    def _forget(self) -> None:
        self.seqs.clear()
        self.damaged = True

    def _add(self, batch: StoredBatch) -> None:
        request, seqs, header = self._request, self.seqs, batch.header
        settled = [
            item for item in decode_settled(batch.data, batch.settles_at, batch.notes_at) if item.group == request.group
        ]
        if header.flags & Flag.COPY and seqs:
            stay = {
                seq for item in settled if item.reason == Reason.COPIED for seq in self._span(item.first, item.span)
            }
            for seq, _ in decode_seqs(batch.data, batch.messages_at, header.messages, header.first_seq):
                if seq not in stay:  # the copy does not say that it is settled: it has been pending since
                    seqs.pop(seq, None)
        for item in settled:
            if item.reason == Reason.COPIED:
                continue
            is_back = item.reason in _UNDONE and header.time_ms >= self._since_ms
            for seq in self._span(item.first, item.span):
                seqs.pop(seq, None)
                if is_back:
                    seqs[seq] = None
        if len(seqs) > 2 * request.limit:
            self.is_cut = True
            for seq in list(seqs)[: -request.limit]:
                del seqs[seq]

    def _span(self, first: int, span: int) -> range:
        """Return those seqs of a settle that were requested."""
        seq = self._request.seq
        if not seq:
            return range(first, first + span)
        return range(seq, seq + 1) if first <= seq < first + span else range(0)


def _messages(disk: Disk, segments: list[Segment], chosen: set[int]) -> Iterator[Message]:
    """Yield the chosen messages that are still in the log; those that were copied are yielded more than once."""
    ordered = sorted(chosen)
    last_batch = 0
    for segment in segments if chosen else ():
        scan = Scan(disk, segment, last_batch, is_active=True)
        try:
            for batch in scan.batches():
                if _may_have(batch, ordered):
                    yield from [message for message in batch.messages() if message.seq in chosen]
        except FileNotFoundError:  # it was dropped meanwhile
            continue
        last_batch = scan.last_batch


def _may_have(batch: StoredBatch, seqs: list[int]) -> bool:
    """Return whether a batch may have a message of these ascending seqs; a batch of copies always may."""
    header = batch.header
    if not header.messages or header.flags & Flag.COPY:
        return header.messages > 0
    at = bisect_left(seqs, header.first_seq)
    return at < len(seqs) and seqs[at] < header.first_seq + header.messages
