"""One flipped bit below `staging/`: nothing is published twice or in part untold, and all queues are served."""

from __future__ import annotations

import json
from random import Random
from zlib import crc32

import pytest

from curbstone.core.errors import CurbstoneError, StagedDamaged, Unavailable
from curbstone.core.staging.committed import RECORD_BYTES, CommittedId, decode_ids
from curbstone.core.staging.files import Marker, PartFile, decode_marker
from curbstone.core.staging.frames import QueueShare
from curbstone.core.staging.identity import HASH_BYTES
from tests.core.staging.lab import PROJECT, commit, stage, staged_files, state
from tests.kit.inode import Inode
from tests.kit.lab import Lab

FIRST, SECOND = [b"1", b"2", b"3"], [b"4", b"5", b"6"]
IDS = "staging/committed"


def prepared() -> Lab:
    """One transaction that is finished, one that is staged, and one whose commit a restart has to finish."""
    lab = Lab()
    for name in ("done", "staged", "coming"):
        lab.queue(name)
        stage(lab, name, "0", {name: FIRST})
        stage(lab, name, "1", {name: SECOND})
    assert commit(lab, "done") == (None, False, 6)
    lab.broker.staging.commit("default", "coming", None, lambda *_given: None)
    while not any(path.endswith("/commit") for path in staged_files(lab)):
        lab.host.turn()
        lab.host.work()
    return lab


class Copies:
    """A disk's files, to be put back with one of them changed."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.files = lab.contents()
        self._dirs = set(lab.disk.dirs)
        self._wall_ms = lab.host.wall_ms()

    def start(self, path: str, data: bytes | None) -> None:
        """Open a broker on the files, one of which has other contents, or is missing."""
        disk = self.lab.disk
        self.lab.load({name: held for name, held in {**self.files, path: data}.items() if held is not None})
        disk.dirs, disk.durable_dirs = set(self._dirs), set(self._dirs)
        self.lab.start(self._wall_ms)  # as often as it may be, no time has passed
        self.lab.pass_time(5000)

    def small(self, ending: str) -> str:
        """Return the one file whose path ends so."""
        (path,) = [path for path in self.files if path.startswith("staging/") and path.endswith(ending)]
        return path


def check(lab: Lab, what: str) -> None:
    """Whatever was damaged: each transaction is in its queue once and whole, or not at all and reported."""
    reasons = " ".join(lab.broker.health().reasons)
    for name in ("done", "staged", "coming"):
        lab.publish(lab.named(name), "served")
    assert lab.bodies("done") == [*FIRST, *SECOND, b"served"], what
    assert commit(lab, "done") == (None, True, 6), what
    if lab.bodies("coming") == [b"served"]:
        assert state(lab, "coming") == "committing" and "is committed and waits" in reasons, f"{what}: {reasons}"
        with pytest.raises(Unavailable, match="is committed and can't be put"):
            commit(lab, "coming")
    else:
        assert lab.bodies("coming") == [*FIRST, *SECOND, b"served"] and state(lab, "coming") == "committed", what
    try:
        error: CurbstoneError | None = commit(lab, "staged", passing_ms=5000)[0]
    except StagedDamaged as refused:
        error = refused
        assert "has to be staged again" in reasons, what
    if error is not None:
        assert isinstance(error, StagedDamaged), f"{what}: {error}"
        assert lab.bodies("staged") == [b"served"], what
        part = "0" if ".0" in str(error) else "1"
        stage(lab, "staged", part, {"staged": FIRST if part == "0" else SECOND})
        assert commit(lab, "staged", passing_ms=5000) == (None, False, 6)
        assert not lab.broker.staging.committed.damage
    assert lab.bodies("staged") == [b"served", *FIRST, *SECOND], what


def flip_all(bits: range, stride: int) -> None:
    copies = Copies(prepared())
    dice = Random(7)
    paths = [path for path in copies.files if path.startswith("staging/")]
    assert len(paths) == 7  # two lists of ids, a marker, four parts
    for path in paths:
        data = copies.files[path]
        for index in range(dice.randrange(stride), len(data), stride):
            for bit in bits if len(bits) > 1 else (dice.randrange(8),):
                changed = bytearray(data)
                changed[index] ^= 1 << bit
                copies.start(path, bytes(changed))
                check(copies.lab, f"{path} byte {index} bit {bit}")


def test_flipped_bit_keeps_transactions_exactly_once() -> None:
    flip_all(range(1), 5)


@pytest.mark.soak
def test_every_flipped_bit_keeps_transactions_exactly_once() -> None:
    flip_all(range(8), 1)


def test_every_flipped_bit_of_a_marker_is_tolerated() -> None:
    shares = {"a": ("0" * 12, QueueShare(6, 300, 50, 1, 0)), "b": ("1" * 12, QueueShare(1, 60, 60, 9, 1))}
    marker = Marker(1 << 60, "default", "t", 1_700_000_000_000, [PartFile("p.1.0", 400, 77, 7)], shares)
    data = marker.encode()
    for index in range(8 * len(data)):
        changed = bytearray(data)
        changed[index // 8] ^= 1 << index % 8
        assert decode_marker(bytes(changed)) == marker
    for cut in range(len(data) // 2):
        assert decode_marker(data[:cut]) is None


def test_every_flipped_bit_of_the_id_lists_is_tolerated() -> None:
    ids = [CommittedId(bytes([number]) * HASH_BYTES, number, 10 * number) for number in range(1, 6)]
    data = b"".join([each.encode() for each in ids])
    for index in range(8 * len(data)):
        changed = bytearray(data)
        changed[index // 8] ^= 1 << index % 8
        for first, second in ((bytes(changed), data), (data, bytes(changed))):
            found: list[CommittedId] = []
            reported = decode_ids(first, second, found.append)
            assert (found, reported.lost, reported.is_same) == (ids, 0, False)


def test_an_append_that_was_cut_off_is_no_damage() -> None:
    ids = [CommittedId(bytes([number]) * HASH_BYTES, number, (1 << 64) - 1).encode() for number in range(1, 4)]
    two, three = b"".join(ids[:2]), b"".join(ids)
    for cut in range(RECORD_BYTES):
        torn = two + ids[2][:cut] + bytes(RECORD_BYTES - cut)
        found: list[CommittedId] = []
        reported = decode_ids(torn, two, found.append)
        assert (len(found), reported.lost, reported.healed) == (2, 0, 0)
        found.clear()
        reported = decode_ids(three, torn, found.append)
        assert (len(found), reported.lost, reported.healed) == (3, 0, 0)


def test_id_lost_from_both_lists_is_reported_while_relevant(lab: Lab) -> None:
    """Behind one damaged id all were read as not committed, and 9 of 10 transactions were published twice."""
    lab.queue("a")
    for number in range(10):
        stage(lab, f"t{number}", "0", {"a": FIRST})
        assert commit(lab, f"t{number}")[0] is None
    copies = Copies(lab)
    damaged = bytearray(copies.files[IDS])
    damaged[RECORD_BYTES + 9] ^= 4
    copies.files[IDS] = bytes(damaged)
    copies.start(f"{IDS}.copy", bytes(damaged))
    assert [state(lab, f"t{number}") for number in range(10)] == ["committed", "", *["committed"] * 8]
    for _ in range(2):
        (reason,) = lab.broker.health().reasons
        assert reason.startswith("1 ids in staging/committed are lost to damage")
        lab.restart()
    lab.restart(after_ms=7 * 86_400_000)
    assert lab.broker.health().reasons == []


def test_id_list_of_the_first_release_is_read_and_duplicated() -> None:
    lab = prepared()
    copies = Copies(lab)
    copies.start(f"{IDS}.copy", None)
    check(lab, "one list")
    assert lab.disk.names[IDS].cache == lab.disk.names[f"{IDS}.copy"].cache
    del copies.files[f"{IDS}.copy"]
    copies.start(IDS, copies.files[IDS][:-1] + b"x")
    assert "lost to damage" in " ".join(lab.broker.health().reasons)


def test_the_marker_of_the_first_release_is_read_and_its_damage_is_reported() -> None:
    """A marker with one flipped bit kept all queues from being served."""
    lab = prepared()
    copies = Copies(lab)
    path = copies.small("/commit")
    marker = decode_marker(copies.files[path])
    assert marker is not None
    files = [[file.name, file.size] for file in marker.files]
    queues = json.loads(copies.files[path].partition(b"\n")[0])[5]
    line = json.dumps([*marker[:4], files, queues], separators=(",", ":")).encode()
    old = line + b"\n%08x\n" % crc32(line)
    copies.start(path, old)
    check(lab, "an old marker")
    assert state(lab, "coming") == "committed"
    for index in range(0, len(old), 3):
        copies.start(path, old[:index] + bytes([old[index] ^ 16]) + old[index + 1 :])
        check(lab, f"an old marker, byte {index}")
        assert state(lab, "coming") == "committing"
    lab.restart()
    assert "is damaged" in " ".join(lab.broker.health().reasons)


def test_lost_committed_part_is_reported_and_awaited() -> None:
    """The transaction stayed as `committing` for ever, and no error was reported."""
    lab = prepared()
    copies = Copies(lab)
    directory = copies.small("/commit").rpartition("/")[0]
    path = f"{directory}/p.2.1"
    copies.start(path, None)
    check(lab, "a lost part")
    (reason,) = lab.broker.health().reasons
    assert reason == f"transaction default/coming is committed and waits: {path} is missing"
    inode = lab.disk.names[path] = Inode()
    inode.cache[:] = inode.durable[:] = copies.files[path]
    lab.pass_time(120_000)
    assert lab.broker.health().reasons == []
    assert lab.bodies("coming") == [b"served", *FIRST, *SECOND]
    assert commit(lab, "coming") == (None, True, 6)


def test_damaged_part_is_not_replaced_by_an_older_one(lab: Lab) -> None:
    lab.queue("a")
    stage(lab, "t", "0", {"a": [b"newer"]})
    copies = Copies(lab)
    path = copies.small("p.1.0")
    newer = path.replace("p.1.0", "p.2.0")
    copies.files[newer] = copies.files[path]
    copies.start(newer, copies.files[path][:-1] + b"?")
    with pytest.raises(StagedDamaged, match="is damaged; stage it again"):
        commit(lab, "t")
    assert lab.bodies("a") == []


def test_commit_waits_for_an_unserved_queue(lab: Lab) -> None:
    """What was committed for it was dropped."""
    a = lab.queue("a")
    lab.queue("b")
    stage(lab, "t", "p", {"a": [b"one"], "b": [b"two"]})
    lab.broker.staging.commit(PROJECT, "t", None, lambda *_: None)
    while not any(path.endswith("/commit") for path in lab.disk.durable_names):
        if not lab.host.turn():
            assert lab.host.work()
    meta = lab.disk.names[f"{a.log.directory}/meta"]
    meta.cache[0] ^= 1
    for _ in range(2):
        lab.restart("kill")
        assert any("is committed and waits: queue" in reason for reason in lab.broker.health().reasons)
    meta.cache[0] ^= 1
    lab.restart("kill")
    lab.pass_time(1000)
    assert (lab.bodies("a"), lab.bodies("b")) == ([b"one"], [b"two"])
    assert lab.broker.health().reasons == []
