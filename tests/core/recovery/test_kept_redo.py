"""A redo file that can't be replayed completely is kept, and what is in it returns by a repair or is saved."""

from __future__ import annotations

import errno
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from curbstone.core.wal.redo_format import BLOCK_BYTES, RECORDS_AT
from curbstone.core.wal.replay import kept_redo_names, redo_names
from curbstone.exit_codes import DAMAGED
from tests.kit.commands import curbstone
from tests.kit.lab import Lab, message
from tests.kit.server import ServerProcess
from tests.kit.simulated import Crash, SimFile

NAMES = ["a", "b", "c"]
ROUNDS = 4


def cut_off(lab: Lab) -> None:
    """Cut the power so that nothing is left but what was synced."""
    for inode in {id(inode): inode for inode in lab.disk.names.values()}.values():
        inode.pending.clear()
    lab.disk.crash()


def prepared() -> Lab:
    """Return a lab after a power cut: of each queue four messages are only in `redo.1`."""
    lab = Lab()
    queues = [lab.queue(name) for name in NAMES]
    for queue in queues:
        lab.publish(queue, "before")
    publish_each(lab)
    cut_off(lab)
    return lab


def publish_each(lab: Lab, text: str = "m") -> None:
    answers: list[object] = []
    queues = [lab.queue(name) for name in NAMES]
    for number in range(ROUNDS):
        for queue in queues:
            queue.publish([message(f"{text}{number}")], lambda error, _first, _count: answers.append(error))
        lab.settle()
    assert answers == [None] * len(answers) and len(answers) == ROUNDS * len(NAMES)


def again(lab: Lab) -> None:
    lab.start(lab.host.wall_ms() + 1000)


def bodies(lab: Lab, name: str) -> list[bytes]:
    return lab.bodies(lab.queue(name))


WHOLE = [b"before", *(b"m%d" % number for number in range(ROUNDS))]


def on_disk(lab: Lab, root: Path) -> Path:
    """Write what the lab's disk holds to a real one."""
    for path, inode in lab.disk.names.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(bytes(inode.cache))
    return root


def back(lab: Lab, root: Path) -> None:
    """Let the lab's disk hold what a real one does."""
    there = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for path in [path for path in lab.disk.names if path not in there]:
        lab.disk.remove(path)
    for path, data in there.items():
        if not path.startswith(("damaged/", "lock")):
            if path not in lab.disk.names:
                lab.disk.open(path, create=True)
            lab.disk.names[path].cache[:] = data
            lab.disk.names[path].durable[:] = data
            lab.disk.names[path].pending.clear()
    lab.disk.durable_names = dict(lab.disk.names)


def repaired(lab: Lab, tmp_path: Path) -> Path:
    """Repair what the lab's disk holds, with the command, and return the directory."""
    root = on_disk(lab, tmp_path / "data")
    assert curbstone("check", str(root), cwd=tmp_path).code == DAMAGED
    done = curbstone("repair", str(root), "--apply", "--json", cwd=tmp_path)
    assert done.code == 0, done
    assert curbstone("check", str(root), cwd=tmp_path).code == 0
    back(lab, root)
    return root


# --- the file is damaged


def no_header(data: bytearray) -> None:
    data[0] ^= 1
    data[BLOCK_BYTES] ^= 1


def zeros(data: bytearray) -> None:
    data[:RECORDS_AT] = bytes(RECORDS_AT)


def empty(data: bytearray) -> None:
    data.clear()


def short(data: bytearray) -> None:
    del data[RECORDS_AT + 300 :]


@pytest.mark.parametrize("harm", [no_header, zeros, empty, short], ids=lambda harm: harm.__name__)
def test_a_damaged_redo_file_is_reported_and_kept(harm: Callable[[bytearray], None], tmp_path: Path) -> None:
    """It was removed, and nobody was told that messages of every queue were gone with it."""
    lab = prepared()
    before = bytes(lab.disk.names["redo.1"].cache)
    harm(lab.disk.names["redo.1"].cache)
    found = curbstone("check", str(on_disk(lab, tmp_path / "data")), "--json", cwd=tmp_path)
    assert found.code == DAMAGED and "redo.1" in found.json[0]["journal"]["damage"][0]
    shown = curbstone("repair", str(tmp_path / "data"), cwd=tmp_path)
    assert shown.code == DAMAGED and "redo.1" in shown.out, "it was nothing to repair before a start had set it aside"
    again(lab)
    health = lab.broker.health()
    assert health.ok and any("redo.1.bad" in reason for reason in health.reasons)
    assert redo_names(lab.disk) == [] and kept_redo_names(lab.disk) == ["redo.1.bad"]
    assert lab.broker.commits.redo_bytes_kept == len(lab.disk.names["redo.1.bad"].cache)
    assert all(bodies(lab, name) == WHOLE[: len(bodies(lab, name))] for name in NAMES)
    publish_each(lab, "later")
    lab.restart("power")
    assert kept_redo_names(lab.disk) == ["redo.1.bad"], "no later start replays it or removes it"
    assert all(bodies(lab, name)[-1] == b"later3" for name in NAMES)
    assert len(before) == lab.broker.syncer.file_bytes


def test_unreadable_redo_file_can_be_repaired_into_a_free_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk reports an error while the server starts, and reads again later. One queue continues in the meantime."""
    lab = prepared()
    original = SimFile.read
    bad = lab.disk.names["redo.1"]

    def read(self: SimFile, offset: int, size: int) -> bytes:
        if self._inode is bad and offset < RECORDS_AT:
            raise OSError(errno.EIO, "Input/output error")
        return original(self, offset, size)

    with monkeypatch.context() as during:
        during.setattr(SimFile, "read", read)
        again(lab)
    assert [bodies(lab, name) for name in NAMES] == [[b"before"]] * 3
    lab.publish(lab.queue("a"), "later")
    lab.shutdown()
    again(lab)
    assert sorted(str(queue.name) for queue in lab.broker.queues()) == ["default/a"], (
        "the others would write where commits still fit"
    )
    lab.shutdown()
    root = repaired(lab, tmp_path)
    again(lab)
    assert [bodies(lab, name) for name in NAMES] == [[b"before", b"later"], WHOLE, WHOLE]
    (saved,) = (root / "damaged").glob("*/redo.1.jsonl")
    lines = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [line["message"] for line in lines] == [f"m{number}" for number in range(ROUNDS)]
    assert (root / "damaged" / "redo.1.bad").exists()


def test_redo_file_with_one_damaged_record_keeps_the_others(tmp_path: Path) -> None:
    lab = prepared()
    lab.disk.names["redo.1"].cache[RECORDS_AT + 100] ^= 1
    again(lab)
    for name in NAMES:
        assert bodies(lab, name) == [b"before", *WHOLE[2:]]
        assert lab.queue(name).damaged
    assert kept_redo_names(lab.disk) == ["redo.1.bad"]


@pytest.mark.parametrize("what", ["redo.1", "redo.3"])
def test_directory_in_place_of_a_redo_file_is_quarantined(what: str) -> None:
    lab = prepared()
    lab.disk.names.pop(what, None)
    lab.disk.make_dir(what)
    again(lab)
    assert f"{what}.bad" in lab.disk.dirs


# --- a segment can't be written


def failing(lab: Lab, monkeypatch: pytest.MonkeyPatch, call: str, path: str, code: int) -> None:
    original = getattr(SimFile, call)

    def fail(self: SimFile, *args: object) -> object:
        if self._inode is lab.disk.names[path]:
            raise OSError(code, "no")
        return original(self, *args)

    monkeypatch.setattr(SimFile, call, fail)


@pytest.mark.parametrize("call", ["write", "sync"])
def test_failing_segment_prevents_only_its_queue_from_being_served(
    call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole server did not start."""
    lab = prepared()
    path = min(path for path in lab.disk.names if path.endswith(".seg"))
    with monkeypatch.context() as during:
        failing(lab, during, call, path, errno.EIO)
        again(lab)
    served = {queue.log.directory for queue in lab.broker.queues()}
    assert len(served) == 2 and path.rpartition("/")[0] not in served
    assert [lab.bodies(queue) for queue in lab.broker.queues()] == [WHOLE] * 2
    assert any(path in reason for reason in lab.broker.health().reasons)
    assert kept_redo_names(lab.disk) == ["redo.1.bad"]
    lab.shutdown()
    cut_off(lab)
    repaired(lab, tmp_path)
    again(lab)
    assert [bodies(lab, name) for name in NAMES] == [WHOLE] * 3
    assert lab.broker.health().reasons == []


def test_segment_without_header_is_restored_from_the_redo_file(lab: Lab, tmp_path: Path) -> None:
    for name in NAMES:
        lab.publish(lab.queue(name), "before")
        lab.publish(lab.queue(name), "and")
    publish_each(lab)
    cut_off(lab)
    path = lab.queue("a").log.active.path
    lab.disk.names[path].cache[:168] = bytes(168)
    again(lab)
    assert kept_redo_names(lab.disk) == ["redo.1.bad"]
    lab.shutdown()
    repaired(lab, tmp_path)
    again(lab)
    assert [bodies(lab, name) for name in NAMES] == [[b"before", b"and", *WHOLE[1:]]] * 3


@pytest.mark.parametrize("size", [168, 400, 20_000])
def test_a_segment_that_was_cut_is_reported_and_the_redo_file_kept(size: int) -> None:
    lab = prepared()
    path = lab.queue("a").log.active.path
    del lab.disk.names[path].cache[size:]
    again(lab)
    kept = kept_redo_names(lab.disk)
    if size < 400:
        assert kept == ["redo.1.bad"]
    assert all(bodies(lab, name) == WHOLE for name in NAMES[1:])
    assert kept or bodies(lab, "a") == WHOLE


def test_undeletable_redo_file_does_not_prevent_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = prepared()
    original = type(lab.disk).remove

    def remove(self: object, path: str) -> None:
        if path == "redo.1":
            raise OSError(errno.EIO, "no")
        original(lab.disk, path)

    with monkeypatch.context() as during:
        during.setattr(type(lab.disk), "remove", remove)
        again(lab)
        assert [bodies(lab, name) for name in NAMES] == [WHOLE] * 3
        publish_each(lab, "later")
        assert redo_names(lab.disk) == ["redo.1", "redo.2"], "it is not written over"
    lab.restart("power")
    assert [len(bodies(lab, name)) for name in NAMES] == [len(WHOLE) + ROUNDS] * 3
    assert redo_names(lab.disk) == []


# --- crashes


def test_power_cut_during_a_quarantining_replay_loses_nothing() -> None:
    lab = prepared()
    harmed = lab.disk.names["redo.1"]
    harmed.cache[RECORDS_AT + 100] ^= 1
    harmed.durable[:] = harmed.cache
    for crash_in in range(200):
        one = prepared()
        one.disk.names["redo.1"].cache[:] = one.disk.names["redo.1"].durable[:] = harmed.cache
        one.disk.crash_in = crash_in
        try:
            again(one)
        except Crash:
            one.disk.crash()
            again(one)
        else:
            break
        assert [bodies(one, name) for name in NAMES] == [[b"before", *WHOLE[2:]]] * 3, f"crash in {crash_in}"
        assert kept_redo_names(one.disk) == ["redo.1.bad"], f"crash in {crash_in}"
    assert crash_in > 20


# --- format 1

OLD = Path(__file__).with_name("redo1.tar.gz")
"""What a server that wrote format 1 left after a power cut: its segments lack the last three messages of each queue."""


def test_a_redo_file_of_format_1_is_replayed(lab: Lab) -> None:
    with tarfile.open(OLD) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            directory = member.name.rpartition("/")[0]
            for path in ("queues", directory):
                if path and path not in lab.disk.dirs:
                    lab.disk.make_dir(path)
            lab.disk.open(member.name, create=True).write(0, [file.read()])
    again(lab)
    for name in ("orders", "mail", "audit"):
        expected = [f"{name} {number}".encode() for number in range(8)]
        assert bodies(lab, name) == expected, "the first message was settled"
    assert redo_names(lab.disk) == kept_redo_names(lab.disk) == []


# --- on a real disk


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def file_for_directory(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()
    path.parent.rmdir()
    path.parent.write_bytes(b"")


@pytest.mark.parametrize("harm", [linked, directory, file_for_directory], ids=lambda harm: harm.__name__)
def test_bad_segment_prevents_only_its_queue_from_being_served(harm: Callable[[Path], None], tmp_path: Path) -> None:
    """With a redo file there, the whole server did not start."""
    root = on_disk(prepared(), tmp_path / "data")
    harm(min(root.glob("queues/*/*.seg")))
    with ServerProcess(root) as server:
        found = httpx.get(f"{server.url}/v2/default/queues").json()["queues"]
        assert len([queue for queue in found if queue["rdy"] == len(WHOLE)]) == 2, found
        reasons = httpx.get(f"{server.url}/readyz").json()["reasons"]
        assert any("redo.1.bad" in reason for reason in reasons)
        assert any("not served" in reason for reason in reasons)
        metrics = httpx.get(f"{server.url}/metrics").text
        assert f"curbstone_redo_kept_bytes {float((root / 'redo.1.bad').stat().st_size)}" in metrics
    done = curbstone("repair", str(root), "--apply", cwd=tmp_path)
    assert done.code == DAMAGED and (root / "redo.1.bad").exists(), "not all of it could be read"


@pytest.mark.parametrize("harm", [linked, directory], ids=lambda harm: harm.__name__)
def test_redo_file_that_is_a_link_or_directory_does_not_prevent_serving(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    root = on_disk(prepared(), tmp_path / "data")
    harm(root / "redo.1")
    with ServerProcess(root) as server:
        found = httpx.get(f"{server.url}/v2/default/queues").json()["queues"]
        assert [queue["rdy"] for queue in found] == [1, 1, 1]
    assert (root / "redo.1.bad").is_symlink() or (root / "redo.1.bad").is_dir()
    assert curbstone("check", str(root), cwd=tmp_path).code == DAMAGED
