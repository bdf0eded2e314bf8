"""Repairs a damaged data directory: makes a plan, and carries it out. No server may run on the directory.

A damaged segment is rewritten. Its intact commits keep their positions, a commit with a single wrong bit is corrected,
and damaged ranges become empty commits. The old file is moved to `damaged/` in the data directory, like the files that
the server had set aside; nothing is deleted. Messages in the files set aside are not restored, because they may have
been settled since. They are saved as JSON lines for `curbstone send --jsonl`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from curbstone.core.disk import OF_ONE_FILE, Disk, sync_path
from curbstone.core.engine.directories import QUEUES, TWIN_SUFFIX
from curbstone.core.engine.log.commit import ASIDE_SUFFIX, Segment, segment_path
from curbstone.core.engine.log.file_view import read_around
from curbstone.core.engine.log.format import (
    BATCH_BYTES,
    SEGMENT_BYTES,
    Note,
    SegmentHeader,
    batch_is_whole,
    decode_batch_header,
    decode_entries,
    decode_log_start,
    decode_notes,
    decode_segment_header,
    encode_filler,
    encode_segment_header,
)
from curbstone.core.engine.log.log import random_salt
from curbstone.core.engine.log.meta import Meta, load_meta
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.log.stored_batch import StoredBatch
from curbstone.core.engine.recovery.chain import Chain, find_chain, holds_something, last_commit_ms
from curbstone.core.errors import MetaDamaged
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.gateway.formats.message_json import body_json, metadata_json
from curbstone.repair.meta import rebuilt_meta, renamed
from curbstone.repair.one_bit import flipped_bit

DAMAGED_DIR = "damaged"
_ENTRY = re.compile(r"[0-9a-f]{12}(\.twin)?")
_DEFAULTS = QueueOptions()


@dataclass
class NewFile:
    """A file that replaces a damaged or missing one."""

    path: str
    data: bytes
    notes: list[str] = field(default_factory=list)


@dataclass
class Aside:
    """A file that the server set aside, with the messages that the server could not read."""

    path: str
    messages: list[Message]


@dataclass
class Plan:
    """The changes to make in the directory of one queue."""

    directory: str
    name: QueueName
    files: list[NewFile] = field(default_factory=list)
    asides: list[Aside] = field(default_factory=list)
    unrepairable: list[str] = field(default_factory=list)
    """Damage that can't be repaired."""
    directory_after: str = ""
    """The new name of a directory that was set aside."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to repair and nothing that can't be repaired."""
        return not (self.files or self.asides or self.unrepairable)


def plan(disk: Disk) -> Iterator[Plan]:
    """Yield a plan for each queue. Raise DataDirectoryError if a newer version wrote the directory."""
    whole: dict[QueueName, list[Meta]] = {}
    later: list[tuple[str, Meta | None, str]] = []
    for entry in sorted(disk.list_dir(QUEUES)):
        directory, uid = f"{QUEUES}/{entry}", entry[:12]
        if not _ENTRY.fullmatch(entry):
            continue
        try:
            disk.list_dir(directory)
            meta = load_meta(disk, directory, _DEFAULTS)
        except NotADirectoryError:
            yield Plan(
                directory, QueueName("default", f"unknown-{uid}"), unrepairable=[f"{directory} is not a directory"]
            )
            continue
        except MetaDamaged as error:
            later.append((entry, None, str(error)))
            continue
        if meta is None or meta.uid != uid:
            if holds_something(disk, directory, int(uid, 16)):
                wrong = "is missing" if meta is None else f"belongs to another directory, {meta.uid}"
                later.append((entry, None, f"{directory}/meta {wrong}"))
        elif entry.endswith(TWIN_SUFFIX):
            later.append((entry, meta, f"{directory} was set aside"))
        else:
            whole.setdefault(meta.name, []).append(meta)
    taken: dict[QueueName, Meta] = {}
    for metas in whole.values():
        if len(metas) > 1:  # the next start uses the directory that was written to last
            metas.sort(key=lambda meta: last_commit_ms(disk, f"{QUEUES}/{meta.uid}", int(meta.uid, 16)))
            later += [(meta.uid, meta, f"{QUEUES}/{meta.uid} is the older of two") for meta in metas[:-1]]
        taken[metas[-1].name] = metas[-1]
    for meta in taken.values():
        yield _plan_log(disk, Plan(f"{QUEUES}/{meta.uid}", meta.name), int(meta.uid, 16))
    for entry, known, why in later:  # only now all used names are known
        yield _plan_meta(disk, entry, known, why, taken)


def _plan_meta(disk: Disk, entry: str, known: Meta | None, why: str, taken: dict[QueueName, Meta]) -> Plan:
    """Return the plan for a queue whose `meta` is damaged, or whose name another directory has as well."""
    directory, uid = f"{QUEUES}/{entry}", entry[:12]
    meta, notes = (known, []) if known is not None else rebuilt_meta(disk, directory, uid)
    other = taken.get(meta.name)
    if other is not None:
        meta, more = renamed(meta, uid, other)
        notes = notes + more
    taken[meta.name] = meta
    made = Plan(directory, meta.name)
    made.files.append(NewFile(f"{directory}/meta", meta.encode(), [f"{why}; {text}" for text in notes] or [why]))
    if entry != uid:
        made.directory_after = f"{QUEUES}/{uid}"
    return _plan_log(disk, made, int(uid, 16))


# --- the log


def _plan_log(disk: Disk, made: Plan, uid: int) -> Plan:
    """Add the changes of the log to a plan. If one of its files can't be opened, the queue is not repaired."""
    try:
        return _plan_segments(disk, made, uid)
    except OSError as error:
        if error.errno not in OF_ONE_FILE:
            raise
        return Plan(made.directory, made.name, unrepairable=[f"{made.directory} can't be read: {error.strerror}"])


def _plan_segments(disk: Disk, made: Plan, uid: int) -> Plan:
    chain = find_chain(disk, made.directory, uid)
    made.unrepairable += [text for number, text in chain.damage if segment_path(made.directory, number) in chain.aside]
    log_start = 1
    last_batch = 0
    wanted: list[tuple[int, NewFile]] = []
    unrepairable = [(number, f"{made.directory}: segment {number} is missing") for number in chain.missing]
    for place, (segment, header) in enumerate(chain.segments):
        following = chain.segments[place + 1][1] if place + 1 < len(chain.segments) else None
        end = following.previous_end if following and following.previous == segment.number else segment.end
        mended = _RepairedSegment(disk, segment, header, uid, chain, last_batch, end, is_active=following is None)
        log_start, last_batch = max(log_start, mended.log_start), mended.last_batch
        if mended.notes:
            wanted.append((segment.number, NewFile(segment.path, mended.data, mended.notes)))
        unrepairable += [(segment.number, text) for text in mended.unrepairable]
    made.files += [file for number, file in wanted if number >= log_start]
    made.unrepairable += [text for number, text in unrepairable if number >= log_start] + chain.sort_out(log_start)
    for name in sorted(disk.list_dir(made.directory)):
        if name.endswith(ASIDE_SUFFIX):
            made.asides.append(_aside(disk, f"{made.directory}/{name}"))
    return made


class _RepairedSegment:
    """A repaired segment; see the module's docstring."""

    def __init__(
        self,
        disk: Disk,
        segment: Segment,
        header: SegmentHeader | None,
        uid: int,
        chain: Chain,
        last_batch: int,
        end: int,
        *,
        is_active: bool,
    ) -> None:
        self.notes = [text for number, text in chain.damage if number == segment.number]
        self.unrepairable: list[str] = []
        self._numbers: dict[int, int] = {}
        """The number of each commit, by the position where it begins."""
        self._next_seqs: dict[int, int] = {}
        """The seq after the messages of each commit, by the position where the commit begins."""
        self.log_start = header.log_start if header else 1
        data = bytearray(_read(disk, segment.path)[:end].ljust(end, b"\0"))
        if header is None:
            self.notes.append(f"{segment.path}: unreadable")
            before = max((other.number for other, _ in chain.segments if other.number < segment.number), default=0)
            header = SegmentHeader(random_salt(), uid, segment.number, before, 0, 1, 1, last_batch + 1, 0)
            segment.salt = header.salt
            holes, self.last_batch, torn = [(SEGMENT_BYTES, end)], last_batch, 0
        else:
            scan = Scan(disk, segment, max(last_batch, header.next_batch - 1), is_active=is_active)
            for batch in scan.batches():
                self.log_start = max(self.log_start, _log_start_in(batch))
                self._numbers[batch.offset] = batch.header.number
                self._next_seqs[batch.offset] = batch.header.first_seq + batch.header.messages
            holes, self.last_batch, torn = scan.holes, scan.last_batch, scan.torn_bytes
        data[:SEGMENT_BYTES] = encode_segment_header(header)
        for start, stop in _joined([*holes, *([(segment.end, end)] if segment.end < end else [])]):
            self._fill(data, start, stop, segment, header.next_batch)
        if is_active:
            self._last_commit(data, segment, torn, scan.end if torn else end)
        self.data = bytes(data)

    def _fill(self, data: bytearray, start: int, stop: int, segment: Segment, next_batch: int) -> None:
        """Correct the damaged range from `start` to `stop`, or fill it with empty commits."""
        if _flip_wrong_bit(data, start, stop, segment.salt):
            mended = decode_batch_header(bytes(data[start : start + BATCH_BYTES]), 0)
            assert mended is not None
            self._numbers[start] = mended.number
            self.notes.append(f"{segment.path}: bytes {start} to {stop}: one bit was wrong and has been corrected")
            return
        number = max([number for place, number in self._numbers.items() if place < start], default=next_batch - 1) + 1
        following = decode_batch_header(bytes(data[stop : stop + BATCH_BYTES]), 0)
        is_free = following is None or following.number > number
        filler = encode_filler(segment.salt, number, stop - start) if is_free else None
        next_seq = max([seq for place, seq in self._next_seqs.items() if place < start], default=0)
        # Commits of the cleaner have old messages, so the numbers around them tell nothing.
        messages = following.first_seq - next_seq if following and next_seq else 0
        count = f", with {messages} message{'s' if messages > 1 else ''}" if messages > 0 else ""
        text = f"{segment.path}: bytes {start} to {stop} are lost{count}"
        if filler is None:
            self.unrepairable.append(f"{text}, and their range can't be filled")
            return
        data[start:stop] = filler
        self.notes.append(text)

    def _last_commit(self, data: bytearray, segment: Segment, torn_bytes: int, start: int) -> None:
        """Correct the last commit if only one bit of it is wrong. A commit torn by a crash has many wrong bits."""
        if torn_bytes and _flip_wrong_bit(data, start, start + torn_bytes, segment.salt):
            self.notes.append(f"{segment.path}: the last commit: one bit was wrong and has been corrected")


def _joined(holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order. Adjacent and overlapping ones are merged."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(holes):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _flip_wrong_bit(data: bytearray, start: int, stop: int, salt: int) -> bool:
    """Flip the single bit that makes this range a valid batch. Return False if there is none."""
    piece = bytes(data[start:stop])
    place = flipped_bit(piece, salt)
    if place is None:
        return False
    mended = bytearray(piece)
    mended[place // 8] ^= 1 << place % 8
    header = decode_batch_header(bytes(mended), 0)
    if header is None or header.length != len(mended) or not batch_is_whole(bytes(mended), 0, len(mended), salt):
        return False
    data[start:stop] = mended
    return True


def _log_start_in(batch: StoredBatch) -> int:
    notes = decode_notes(batch.data, batch.notes_at, batch.end_at)
    return max([decode_log_start(payload) for kind, payload in notes if kind == Note.LOG_START], default=0)


def _aside(disk: Disk, path: str) -> Aside:
    """Read a file that was set aside, and return it with the messages of commits that only a repair can read."""
    data = _read(disk, path)
    header = decode_segment_header(data)
    messages: list[Message] = []
    if header is None:
        return Aside(path, messages)
    scan = Scan(disk, Segment(0, path, header.salt, len(data), len(data)), header.next_batch - 1, is_active=False)
    is_stray = path.split("/")[1:] != [f"{header.uid:012x}", f"{header.number:010d}{ASIDE_SUFFIX}"]
    for good in scan.batches():  # other batches were read when the file was part of the log
        messages += good.messages() if is_stray else []
    for start, stop in scan.holes:
        piece = bytearray(data[start:stop])
        if _flip_wrong_bit(piece, 0, len(piece), header.salt) and (batch := decode_batch_header(bytes(piece), 0)):
            messages += decode_entries(bytes(piece), BATCH_BYTES, batch.messages, batch.first_seq)
    return Aside(path, messages)


def _read(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return read_around(file, 0, file.size())[0]
    finally:
        file.close()


# --- doing it


def apply(root: Path, made: Plan) -> None:
    """Carry out a plan. If this is interrupted, each file is either unchanged or repaired. Raise OSError."""
    kept = root / DAMAGED_DIR / Path(made.directory).name
    if made.files or made.asides:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in made.files:
        path = root / file.path
        if path.exists():
            copy = free_path(kept / path.name)
            shutil.copy2(path, copy)
            sync_path(copy)
        fresh = path.with_name(path.name + ".repaired")
        fresh.write_bytes(file.data)
        fresh.chmod(0o600)
        sync_path(fresh)
        fresh.replace(path)
        sync_path(path.parent)
    for aside in made.asides:
        path = root / aside.path
        if aside.messages:
            save_messages(kept / f"{path.stem}.jsonl", aside.messages)
        path.rename(free_path(kept / path.name))
        sync_path(kept)
        sync_path(path.parent)
    if made.directory_after:
        (root / made.directory).rename(root / made.directory_after)
        sync_path(root / QUEUES)


def save_messages(path: Path, messages: list[Message]) -> None:
    """Write messages to a new file in the directory of a queue, as JSON lines for `curbstone send --jsonl`."""
    saved = free_path(path)
    uid = path.parent.name
    lines = [
        b"{%b,%b}\n" % (metadata_json(message, f"{uid}-{message.seq}", 0), body_json(message.body, None))
        for message in messages
    ]
    saved.write_bytes(b"".join(lines))
    sync_path(saved)


def free_path(path: Path) -> Path:
    """Return the path, or a similar one if it exists."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate
