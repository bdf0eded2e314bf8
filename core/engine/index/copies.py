"""Puts copies of messages into the index, wherever the originals are, and even if they were settled.

These are copies of the cleaner that recovery reads, and messages that an undo restores. The messages of a run that are
not copied stay where they are. Because runs must not overlap, the copies and the rest of each old run become new runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from curbstone.core.engine.index.due import Expiries
from curbstone.core.engine.index.reader import Reader
from curbstone.core.engine.index.runs import Run, Runs, seqs_of
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.format import entry_bytes
from curbstone.core.message import Message
from curbstone.core.values import UNNAMED

COPY_SPAN_MAX = 16 * 1024


class CopyBatch(NamedTuple):
    """The batch that copies lie in."""

    segment: Segment
    start: int
    end: int


class _Piece(NamedTuple):
    """A message to put into the index: a copy, or a message that stays where it is, in `old`."""

    seq: int
    copy: Message | None
    old: Run | None


def insert_copies(
    reader: Reader, expiries: Expiries, copies: list[Message], names: Mapping[int, Iterable[str]], where: CopyBatch
) -> list[Run]:
    """Put copies into the index; return the runs that this has replaced. No counts of groups change.

    `names` has, by seq, the groups in which each copy is pending from now on.
    """
    runs = reader.runs
    copied = {message.seq for message in copies}
    pieces = [_Piece(message.seq, message, None) for message in copies]
    taken_apart: dict[Run, int] = {}
    for run in {run: None for seq in copied if (run := runs.find(seq)) is not None}:
        live = run.live()
        pieces += [_Piece(seq, None, run) for seq in seqs_of(run.first, live) if seq not in copied]
        taken_apart[run] = run.bytes_live // max(live.bit_count(), 1)
        reader.forget(run)
        runs.drop(run)
    pieces.sort(key=lambda piece: piece.seq)
    current: Run | None = None
    owner: Run | None = None
    for seq, message, old in pieces:
        if current is None or owner is not old or not _extends(runs, current, seq):
            lies = (old.segment, old.offset, old.end) if old is not None else where
            current = Run(seq, seq, 0, *lies, 0)
            current.time_ms = message.timestamp_ms if message is not None else old.time_ms if old else 0
            runs.insert(current)
            owner = old
        current.last = seq
        if message is not None:
            _put_copy(runs, expiries, current, message, names[seq])
        elif old is not None:
            _keep(runs, expiries, current, seq, old, taken_apart[old])
    for run in taken_apart:
        run.bits, run.named = 0, None  # code that still has the run finds nothing pending in it
    return list(taken_apart)


def _extends(runs: Runs, run: Run, seq: int) -> bool:
    following = runs.at_or_after(run.last + 1)
    return seq - run.first < COPY_SPAN_MAX and (following is None or following.first > seq)


def _put_copy(runs: Runs, expiries: Expiries, run: Run, message: Message, names: Iterable[str]) -> None:
    bit = 1 << (message.seq - run.first)
    run.naming |= bit if message.groups else 0
    if message.level:
        runs.rank(run, message.level, bit)
    for name in names:
        run.set_pending(name, run.pending(name) | bit)
    if message.expires_ms:
        expiries.note(run, message.expires_ms)
    runs.grow(run, entry_bytes(message))


def _keep(runs: Runs, expiries: Expiries, run: Run, seq: int, old: Run, size: int) -> None:
    """Make a message of an old run, which stays in its place, part of a new run; `size` is an estimate."""
    bit = 1 << (seq - run.first)
    for name in [UNNAMED, *(old.named or ())]:
        if old.pending(name) >> (seq - old.first) & 1:
            run.set_pending(name, run.pending(name) | bit)
    run.naming |= (old.naming >> (seq - old.first) & 1) << (seq - run.first)
    if level := old.level_of(seq):
        runs.rank(run, level, bit)
    runs.grow(run, size)
    if old.expires_ms:
        expiries.note(run, old.expires_ms)
