"""Redo files and the journal, damaged in every way at every place: no message is lost without a report.

Only damage that reaches into the last record can't be told from what a crash has torn; the log mentions what it sees.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator
from random import Random

import pytest

from curbstone.core.wal.redo_format import BLOCK_BYTES, RECORD_BYTES, RECORDS_AT
from curbstone.core.wal.replay import kept_redo_names
from tests.core.recovery.stored_queues import KINDS, damaged
from tests.kit.lab import Lab, message
from tests.kit.simulated import Crash

STEP = int(os.environ.get("CURBSTONE_DAMAGE_STEP", "13"))
"""Bytes from one damage to the next; 1 for every byte."""
NAMES = ["a", "b", "c"]
ROUNDS = 6


class RedoDirectory:
    """A data directory after a power cut, as bytes: of each queue six messages are only in a redo file."""

    def __init__(self) -> None:
        self.lab = Lab()
        queues = [self.lab.queue(name) for name in NAMES]
        for queue in queues:
            self.lab.publish(queue, "before")
        for number in range(ROUNDS):
            for queue in queues:
                queue.publish([message(b"%d" % number)], lambda *_answer: None)
            self.lab.settle()
        self.files = {path: bytes(inode.durable) for path, inode in self.lab.disk.names.items()}
        self.records = list(self._records())

    def _records(self) -> Iterator[tuple[int, int]]:
        data = self.files["redo.1"]
        offset = RECORDS_AT
        for _ in range(ROUNDS):
            length = struct.unpack_from("<III", data, offset)[2]
            yield offset, offset + length
            offset += length

    def put(self, files: dict[str, bytes]) -> None:
        """Let the disk hold these files."""
        disk = self.lab.disk
        disk.dirs = {directory for directory in disk.dirs if not directory.startswith("redo")}
        self.lab.load(files)

    def found(self, redo: bytes) -> list[list[bytes]]:
        """Start on a directory with this redo file, and return what each queue holds."""
        self.put({**self.files, "redo.1": redo})
        self.lab.start(self.lab.host.wall_ms() + 1000)
        return [self.lab.bodies(self.lab.queue(name)) for name in NAMES]

    def expected(self, start: int, stop: int) -> list[bytes]:
        """Return what is left in each queue if these bytes of the redo file are damaged."""
        left = [b"%d" % n for n, (begin, end) in enumerate(self.records) if stop <= begin or end <= start]
        return [b"before", *left]


@pytest.fixture(scope="module")
def redo() -> RedoDirectory:
    return RedoDirectory()


def places(end: int, kind: str) -> Iterator[int]:
    """Yield places in both copies of the header and in the records."""
    shift = KINDS.index(kind) % STEP
    yield from range(shift, 64, STEP)
    yield from range(BLOCK_BYTES + shift, BLOCK_BYTES + 64, STEP)
    yield from range(RECORDS_AT + shift, end, STEP)


@pytest.mark.parametrize("kind", KINDS)
def test_redo_damage_loses_only_affected_records(
    redo: RedoDirectory, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    dice = Random(kind)
    whole = redo.files["redo.1"]
    last, end = redo.records[-1]
    for place in places(end, kind):
        data, stop = damaged(whole, kind, place, end, dice)
        caplog.clear()
        found = redo.found(data)
        kept = kept_redo_names(redo.lab.disk)
        where = f"{kind} at byte {place} to {stop}"
        for got in found:
            least = redo.expected(place, stop if kind != "cut" else len(whole))
            headless = (
                data[:BLOCK_BYTES] != whole[:BLOCK_BYTES]
                and data[BLOCK_BYTES:RECORDS_AT] != (whole[BLOCK_BYTES:RECORDS_AT])
            )
            assert set(least) <= set(got) or headless or kind == "cut", where
            assert got == sorted(got, key=lambda body: (body != b"before", body)), where
        if any(len(got) <= ROUNDS for got in found):
            assert kept or stop > last, where
            if kind == "flip" and place >= last + RECORD_BYTES:
                assert any("last record" in record.getMessage() for record in caplog.records), where
        if kept:
            assert any("damaged" in record.getMessage() for record in caplog.records), where
        if kind == "cut":
            assert kept, where


@pytest.mark.parametrize("block", [0, BLOCK_BYTES])
def test_one_header_copy_can_be_missing(redo: RedoDirectory, block: int) -> None:
    whole = redo.files["redo.1"]
    for lost in (bytes(BLOCK_BYTES), Random(1).randbytes(BLOCK_BYTES)):
        found = redo.found(whole[:block] + lost + whole[block + BLOCK_BYTES :])
        assert found == [redo.expected(0, 0)] * 3
        assert kept_redo_names(redo.lab.disk) == []


def test_a_power_cut_at_any_call_of_a_replay_loses_nothing(redo: RedoDirectory) -> None:
    calls = 0
    while True:
        redo.put(redo.files)
        redo.lab.disk.crash_in = calls
        try:
            redo.lab.start(redo.lab.host.wall_ms() + 1000)
        except Crash:
            redo.lab.disk.crash()
            redo.lab.start(redo.lab.host.wall_ms() + 1000)
            found = [redo.lab.bodies(redo.lab.queue(name)) for name in NAMES]
            assert found == [redo.expected(0, 0)] * 3, f"call {calls}"
            assert not redo.lab.broker.kept_redo.texts
            calls += 1
        else:
            break
    redo.lab.disk.crash_in = -1
    assert calls > 30


# --- the journal


LEFT: list[list[bytes]] = [[], [b"first"], [b"second"], [b"first", b"second"]]


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_journal_loses_and_invents_no_message(kind: str) -> None:
    """One transaction is in the logs, two are only in the journal, which is damaged at every byte."""
    dice = Random(kind)
    logging.getLogger("curbstone.core").setLevel(logging.CRITICAL)
    lab = Lab()
    queues = [lab.queue(name) for name in ("a", "b")]

    def transact(body: str) -> None:
        parts = lab.broker.transaction()
        for queue in queues:
            parts.publish(queue, message(body))
        lab.answer(parts.commit)

    transact("confirmed")
    lab.broker.disk.catch_up()
    logs = {path: bytes(inode.cache) for path, inode in lab.disk.names.items() if path != "journal"}
    held = lab.broker.tx_log
    held._needed[0] = {}  # the file is not used from its beginning again
    transact("first")
    transact("second")
    data = bytes(lab.disk.names["journal"].cache)
    redo = RedoDirectory.__new__(RedoDirectory)
    redo.lab = lab
    for place in range(KINDS.index(kind) % STEP, len(data), STEP):
        redo.put({**logs, "journal": damaged(data, kind, place, len(data), dice)[0]})
        lab.start(lab.host.wall_ms() + 1000)
        found = [lab.bodies(lab.queue(name)) for name in ("a", "b")]
        assert found[0] == found[1], f"{kind} at byte {place}: half of a transaction"
        assert found[0] in ([b"confirmed", *left] for left in LEFT), f"{kind} at byte {place}"
    logging.getLogger("curbstone.core").setLevel(logging.NOTSET)
