"""Every file of a data directory, damaged in every way at every place: what is good is served, what is bad is reported.

The log has many segments, copies made by the cleaner, settles, releases, a transaction over two queues. Each body
carries its own checksum, so a wrong one is known for what it is.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.broker import Broker
from curbstone.core.engine.index.reader import AGAIN_MS_MAX
from curbstone.core.engine.log.file_view import PAGE_BYTES
from curbstone.core.engine.log.format import BATCH_BYTES, SEGMENT_BYTES
from curbstone.core.engine.log.scan import most_in_order
from curbstone.core.transactions.records import encode_part
from curbstone.core.transactions.tx_log import read_journal
from curbstone.core.wal.replay import redo_names
from tests.core.recovery.stored_queues import KINDS, StoredQueues, body, damaged
from tests.kit.lab import Lab, Peer, message, numbered
from tests.kit.simulated import SECTOR, SimFile

STEP = int(os.environ.get("CURBSTONE_DAMAGE_STEP", "19"))
"""Bytes from one damage to the next; 1 for every byte."""


@pytest.fixture(scope="module")
def stored() -> StoredQueues:
    return StoredQueues()


class EngineLog(logging.Handler):
    """What the engine says in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def reported() -> Iterator[EngineLog]:
    handler = EngineLog()
    logger = logging.getLogger("curbstone.core")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def places(stored: StoredQueues, kind: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, place and end of contents: each byte is reached by one kind or another."""
    for segment in list(stored.queue.log.segments):
        for place in range(KINDS.index(kind) % STEP, segment.end, STEP):
            yield segment.path, place, segment.end


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_segment_loses_only_affected_commits(stored: StoredQueues, kind: str, reported: EngineLog) -> None:
    """Only the end of the newest segment can't be told from a torn commit; where it shows, the log says so."""
    dice = Random(kind)
    newest = stored.queue.log.active.path
    for path, place, end in places(stored, kind):
        data, stop = damaged(stored.files[path], kind, place, end, dice)
        reported.texts.clear()
        queue = stored.found({**stored.files, path: data})
        lost = stored.live - stored.seqs(queue)
        assert lost <= stored.touched(path, place, stop), f"byte {place} of {path}"
        if lost and not queue.damaged:
            assert path == newest and lost == {seq for seq in stored.live if seq >= min(lost)}, (
                f"byte {place} of {path}"
            )
            whole_header = {place, place + BATCH_BYTES - 1} <= set(range(len(data)))
            assert kind != "flip" or not whole_header or any("does not check" in text for text in reported.texts)
        kept = {path, path.removesuffix(".seg") + ".bad"}
        assert kept & set(stored.lab.disk.names) or (kind == "cut" and place < SEGMENT_BYTES)
        assert queue.state.next_seq > max(stored.live - lost)


def test_log_without_any_header_is_read(stored: StoredQueues) -> None:
    """Two commits end to end give the salt away; what was settled stays settled."""
    files = dict(stored.files)
    for segment in list(stored.queue.log.segments):
        files[segment.path] = bytes(SEGMENT_BYTES) + files[segment.path][SEGMENT_BYTES:]
    queue = stored.found(files)
    assert stored.seqs(queue) == stored.live
    assert len(queue.damaged) == len(stored.queue.log.segments)


def test_log_of_one_commit_without_header_is_quarantined(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "one")
    path = queue.log.active.path
    lab.disk.names[path].cache[:SEGMENT_BYTES] = b"?" * SEGMENT_BYTES
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == [] and "set aside" in queue.damaged[0]
    assert path.removesuffix(".seg") + ".bad" in lab.disk.names
    assert lab.publish(queue, "two") == [2], "an id is given twice"
    lab.restart("kill")
    assert lab.bodies(lab.reopened(queue)) == [b"two"]


@pytest.mark.parametrize("harm", ["missing", "flipped", "empty", "zeros"])
def test_queue_without_a_valid_meta_is_skipped_and_others_are_served(stored: StoredQueues, harm: str) -> None:
    directory = stored.queue.log.directory
    path = f"{directory}/meta"
    good = stored.files[path]
    bad = {"flipped": good[:30] + b"~" + good[31:], "empty": b"", "zeros": bytes(len(good))}.get(harm)
    files = {name: data for name, data in stored.files.items() if name != path}
    disk = stored.lab.disk
    with pytest.raises(Exception, match="no such queue"):
        stored.found(files | ({path: bad} if bad is not None else {}))
    assert {name for name in stored.files if name.startswith(directory) and name != path} <= set(disk.names)
    assert [str(queue.name) for queue in stored.lab.broker.queues()] == ["default/other"]
    (reason,) = stored.lab.broker.health().reasons
    assert path in reason and "not served" in reason
    assert stored.seqs(stored.found(stored.files)) == stored.live


def test_a_transaction_waits_in_the_journal_for_a_queue_whose_meta_is_damaged(lab: Lab) -> None:
    queues = [lab.queue(name) for name in ("a", "b")]
    lab.disk.eio_chance = 0
    before = {path: bytes(inode.cache) for path, inode in lab.disk.names.items() if ".seg" in path}
    parts = lab.broker.transaction()
    for queue in queues:
        parts.publish(queue, message("part"))
    lab.answer(parts.commit)
    for path, data in before.items():  # as if the crash had come before the parts were in their logs
        lab.disk.names[path].cache[:] = data
    meta = lab.disk.names[f"{queues[0].log.directory}/meta"]
    good = bytes(meta.cache)
    meta.cache[0] ^= 1
    lab.restart("kill")
    assert lab.bodies(lab.reopened(queues[1])) == [b"part"]
    meta.cache[:] = good
    lab.restart("kill")
    assert [lab.bodies(lab.reopened(queue)) for queue in queues] == [[b"part"], [b"part"]]


def test_foreign_directory_is_not_removed(tmp_path: Path) -> None:
    from curbstone.core.disk import OsDisk

    (tmp_path / "queues" / "lost+found").mkdir(parents=True)
    lab = Lab()
    broker = Broker.open(lab.host, OsDisk(tmp_path), defaults=lab.defaults, sync=lab.sync)
    broker.disk.close()
    assert (tmp_path / "queues" / "lost+found").is_dir()


class BadSector:
    """A file of which one page can't be read."""

    def __init__(self, file: SimFile | BadSector, page: int) -> None:
        self._file = file
        self._start = page * PAGE_BYTES

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def read(self, offset: int, size: int) -> bytes:
        if offset < self._start + PAGE_BYTES and self._start < offset + size:
            raise OSError(errno.EIO, "Input/output error")
        return bytes(self._file.read(offset, size))


@pytest.mark.parametrize("page", range(2))
@pytest.mark.parametrize("what", [".seg", "meta"])
def test_bad_sector_loses_only_its_messages(
    stored: StoredQueues, page: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = stored.queue.log.active.path if what == ".seg" else f"{stored.queue.log.directory}/meta"
    open_now = stored.lab.disk.open

    def open_bad(path: str, *, create: bool = False) -> object:
        file = open_now(path, create=create)
        return BadSector(file, page) if path == bad else file

    monkeypatch.setattr(stored.lab.disk, "open", open_bad)
    if what == "meta" and page == 0:
        with pytest.raises(Exception, match="no such queue"):
            stored.found(stored.files)
        assert "the disk reports an error" in stored.lab.broker.health().reasons[0]
        return
    queue = stored.found(stored.files)
    found = stored.seqs(queue)
    if what == "meta":
        assert found == stored.live and not queue.damaged
        return
    assert any("can't be read: the disk reports an error" in text for text in queue.damaged)
    assert stored.live - found <= stored.touched(bad, page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
    assert found & stored.live


def test_bad_sector_of_the_journal_does_not_prevent_a_start(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queues = [lab.queue(name) for name in ("a", "b")]

    def transact() -> None:
        parts = lab.broker.transaction()
        for queue in queues:
            parts.publish(lab.reopened(queue), message(b"x" * PAGE_BYTES))
        assert lab.answer(parts.commit) == (None,)

    transact()
    open_now = lab.disk.open

    def open_bad(path: str, *, create: bool = False) -> object:
        file = open_now(path, create=create)
        return BadSector(file, 1) if path == "journal" else file

    monkeypatch.setattr(lab.disk, "open", open_bad)
    with caplog.at_level(logging.ERROR, "curbstone.core"):
        lab.restart("kill")
    assert "journal: bytes 4096 to 8192 can't be read" in caplog.text
    journal = read_journal(lab.disk)
    assert (journal.parts, journal.end) == ([], 0) and len(journal.damage(0)) == 1
    transact()
    assert [len(lab.bodies(lab.reopened(queue))) for queue in queues] == [2, 2]


def test_a_damaged_record_of_the_journal_is_reported_and_the_transactions_behind_it_are_completed(
    lab: Lab,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ended the reading of the journal without a word, and the transactions behind it stayed half done."""
    queues = [lab.queue(name) for name in ("a", "b")]
    record(lab, queues, numbered(3))
    journal = bytearray(lab.disk.names["journal"].cache)
    before = {path: bytes(inode.cache) for path, inode in lab.disk.names.items() if queues[1].log.directory in path}
    lab.restart("kill")
    assert [lab.bodies(lab.reopened(queue)) for queue in queues] == 2 * [numbered(3)]
    lab.broker.disk.catch_up()
    for name in redo_names(lab.disk):
        lab.disk.remove(name)
    journal[len(journal) // 2] ^= 1
    for path, contents in {**before, "journal": bytes(journal)}.items():  # the parts of `b` are not in its log yet
        lab.disk.names[path].cache[:] = lab.disk.names[path].durable[:] = contents
    with caplog.at_level(logging.ERROR, "curbstone.core"):
        lab.restart("kill")
    (damage,) = lab.broker.tx_log.damage
    assert "journal: bytes" in damage and damage in caplog.text
    assert any(damage in reason for reason in lab.broker.health().reasons)
    assert lab.broker.commits.journal_damage == 1
    assert lab.bodies(lab.reopened(queues[1])) == [numbered(3)[0], numbered(3)[2]]


def test_torn_records_of_one_write_are_no_damage(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """The first of them did not check, the next one did: it was reported as damage, and `check` ended with 6."""
    queues = [lab.queue(name) for name in ("a", "b")]
    texts = [b"first", b"torn" * SECTOR, b"whole"]
    record(lab, queues, texts)  # the last two while the first is written
    journal = lab.disk.names["journal"].cache
    torn = journal.index(b"torn") + SECTOR
    journal[torn : torn + SECTOR] = bytes(SECTOR)
    with caplog.at_level(logging.WARNING, "curbstone.core"):
        lab.restart("kill")
    assert "a transaction over several queues that was not confirmed is not taken" in caplog.text
    assert lab.broker.health().reasons == [] and lab.broker.commits.journal_damage == 0
    assert [lab.bodies(lab.reopened(queue)) for queue in queues] == 2 * [[texts[0], texts[2]]]


def record(lab: Lab, queues: list[LocalQueue], texts: list[bytes]) -> None:
    """Record transactions over all these queues; none of them writes its part."""
    answers: list[object] = []
    for text in texts:
        parts = {queue.log.uid: encode_part(queue.log.uid, [message(text)], [], []) for queue in queues}
        lab.broker.tx_log.write(parts, answers.append)
    lab.settle()
    assert answers == [None] * len(texts)


@pytest.mark.parametrize("harm", ["noise", "unreadable"])
def test_empty_newest_segment_is_quarantined(stored: StoredQueues, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was deleted without a word."""
    bad = stored.queue.log.active.path
    in_it = stored.touched(bad, 0, 1 << 30) & stored.live
    open_now = stored.lab.disk.open

    def open_bad(path: str, *, create: bool = False) -> object:
        file = open_now(path, create=create)
        return BadSector(BadSector(file, 0), 1) if path == bad else file

    files = dict(stored.files)
    if harm == "noise":
        files[bad] = Random(1).randbytes(len(files[bad]))
    else:
        files[bad] = files[bad][: 2 * PAGE_BYTES]
        monkeypatch.setattr(stored.lab.disk, "open", open_bad)
    queue = stored.found(files)
    assert in_it <= stored.live - stored.seqs(queue) and in_it
    assert bad in queue.damaged[0] and "set aside" in queue.damaged[0]
    aside = bad.removesuffix(".seg") + ".bad"
    assert bytes(stored.lab.disk.names[aside].cache) == files[bad]
    assert stored.lab.publish(queue, "new")[0] > max(stored.live), "an id is given twice"
    stored.lab.restart("kill")
    reported = stored.lab.reopened(queue).damaged
    assert any(aside in text and "kept for repair" in text for text in reported), (
        "and it is reported until it is repaired"
    )


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_file_that_can_not_be_opened_for_a_while_is_no_damage(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(cap=8 << 20)
    queue = lab.queue()
    sent = [body(number, 10_000) for number in range(100)]
    lab.publish(queue, *sent)
    lab.restart()
    queue = lab.reopened(queue)
    with monkeypatch.context() as broken:
        open_now = lab.disk.open

        def refuse(path: str, *, create: bool = False) -> SimFile:
            if path.endswith(".seg"):
                raise OSError(code, os.strerror(code))
            return open_now(path, create=create)

        broken.setattr(lab.disk, "open", refuse)
        peer = Peer(lab, queue, auto=True)
        lab.pass_time(5000)
        assert not peer.received and not queue.damaged and queue.counts().rdy == 100
    lab.pass_time(AGAIN_MS_MAX)
    assert peer.bodies == sent


def test_misplaced_blocks_do_not_reorder_messages(lab: Lab, queue: LocalQueue) -> None:
    """A good commit that comes before its turn must not hide those with lower numbers behind it."""
    for number in range(8):
        lab.publish(queue, body(number, 100))
    path, data = queue.log.active.path, bytes(lab.disk.names[queue.log.active.path].cache)
    size = (queue.log.active.end - SEGMENT_BYTES) // 8
    seventh = SEGMENT_BYTES + 6 * size
    first = SEGMENT_BYTES
    lab.disk.names[path].cache[first : first + size] = data[seventh : seventh + size]
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == [body(number, 100) for number in range(1, 8)]
    assert queue.damaged


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], []), ([1, 2, 3], [1, 2, 3]), ([7, 2, 3], [2, 3]), ([1, 9, 2, 3, 4], [1, 2, 3, 4]), ([3, 3, 4], [3, 4])],
)
def test_longest_ordered_sequence_of_batches_is_used(numbers: list[int], expected: list[int]) -> None:
    assert [
        number for number, _ in most_in_order([(number, place) for place, number in enumerate(numbers)])
    ] == expected
