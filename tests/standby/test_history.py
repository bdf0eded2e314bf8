"""The stream of a server as a history: what is recorded, what survives, and which moments can be restored."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from curbstone.backup.files import BackupError
from curbstone.core.disk import OsDisk, OsFile
from curbstone.core.errors import Conflict
from curbstone.gateway.resources.server.standby import AttachRequest
from curbstone.standby import history as histories
from curbstone.standby.followers import FOLLOWERS_MAX, Follower, FollowerEnded, Followers
from curbstone.standby.frames import ATTACHED_BYTES, Attached, BadFrame, Kind, encode
from curbstone.standby.history import History, parts_of
from curbstone.standby.part_store import DirectoryParts, PartStore
from curbstone.standby.recording import Recorder
from curbstone.standby.restoring import Stretch, stretches, unpacked_at, verify
from curbstone.standby.shipping import ShippingDisk
from curbstone.standby.state_files import server_state_files
from curbstone.standby.stream import Stream
from tests.standby.test_second_copy import FakeEnding

HOUR_MS = 3_600_000


class RecordingSetup:
    """A server's disk, those who follow it, and one that records it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ms = 1_000_000
        self.disk = OsDisk(path / "data")
        self.start_server()
        self.shipped.make_dir("queues")
        self.target = self.open_target()
        self.recorder = self.new_recorder()
        self.follower: Follower | None = None

    def open_target(self) -> PartStore:
        self.target_disk = OsDisk(self.path / "history")
        return DirectoryParts(self.target_disk)

    def close_target(self) -> None:
        self.target_disk.close()

    def start_server(self) -> None:
        self.stream = Stream(lambda: self.now_ms, kept_bytes=1 << 20)
        self.shipped = ShippingDisk(self.disk, self.stream)
        self.followers = Followers(
            self.stream, self.disk, lambda: self.now_ms, server_state_files(self.disk), FakeEnding()
        )

    def new_recorder(self) -> Recorder:
        return Recorder(History(self.target), lambda: self.now_ms - 7 * HOUR_MS, keep_ms=HOUR_MS, base_every_ms=HOUR_MS)

    def attach(self) -> Attached:
        asked = self.recorder.request()
        self.recorder.begin()
        life, position = int(asked.get("life", "0"), 16), asked.get("position", 0)
        self.follower = self.followers.attach(AttachRequest("test", life, position, asked["copy_all"]), lambda: None)
        self.receive()
        assert self.recorder.attached is not None
        return self.recorder.attached

    def receive(self, cut: int = 1000) -> None:
        assert self.follower is not None
        self.stream.add_time()
        while data := self.follower.read():
            for at in range(0, len(data), cut):
                self.recorder.receive(data[at : at + cut])

    def leave(self) -> None:
        assert self.follower is not None
        self.follower.close()
        self.follower = None

    def kill_the_recorder(self) -> None:
        """Its process ends; another one begins."""
        if self.follower is not None:
            self.leave()
        self.recorder.close()
        self.recorder = self.new_recorder()

    def write(self, text: str) -> int:
        """Have a file with this content, durably; return the moment."""
        self.now_ms += 10
        name = f"queues/{text}"
        file = self.shipped.open(name, create=True)
        file.write(0, [text.encode() * 1000])
        file.sync()
        file.close()
        self.shipped.sync_dir("queues")
        moment = self.now_ms
        self.now_ms += 10
        return moment

    def restored(self, at_ms: int | None = None) -> set[str]:
        """Restore a moment; return the files that were there."""
        with unpacked_at(self.target, at_ms, self.path / "restored") as (data, facts):
            assert {path.name for path in data.iterdir()} == {"queues"}
            found = {path.name for path in (data / "queues").iterdir()}
            assert all((data / "queues" / name).read_bytes() == name.encode() * 1000 for name in found)
            assert facts["files"] == len(found)
        assert not (self.path / "restored.partial").exists()
        return found

    def close(self) -> None:
        self.recorder.close()
        self.close_target()
        self.disk.close()


@pytest.fixture
def setup(tmp_path: Path) -> RecordingSetup:
    return RecordingSetup(tmp_path)


def test_every_moment_since_the_first_copy_can_be_restored(setup: RecordingSetup) -> None:
    before = setup.write("a")
    assert not setup.attach().is_resumed
    began = setup.now_ms
    moments = {text: setup.write(text) for text in "bcd"}
    setup.receive()
    assert setup.restored(began) == {"a"}
    assert [setup.restored(moments[text]) for text in "bcd"] == [{"a", "b"}, {"a", "b", "c"}, {"a", "b", "c", "d"}]
    assert setup.restored(moments["c"] - 1) == {"a", "b"}
    assert verify(setup.target, moments["b"]).changes < verify(setup.target, moments["c"]).changes
    with pytest.raises(BackupError, match="it has no base from 1970"):
        verify(setup.target, before)
    assert setup.restored() == {"a", "b", "c", "d"}
    with pytest.raises(BackupError, match="it has no base from 1970-01-01T00:16:40.010"):
        setup.restored(before)
    with pytest.raises(BackupError, match="it ends at 1970-01-01T00:16:40.080"):
        setup.restored(setup.now_ms + 1)
    setup.close()


def test_killed_recorder_resumes(setup: RecordingSetup) -> None:
    setup.attach()
    setup.write("a")
    setup.receive()
    setup.kill_the_recorder()
    while_away = setup.write("b")
    assert setup.attach().is_resumed
    setup.write("c")
    setup.receive()
    assert setup.restored(while_away) == {"a", "b"}
    assert setup.restored() == {"a", "b", "c"}
    assert setup.followers.figures().copies == 1
    setup.close()


def test_torn_part_is_skipped_and_received_again(setup: RecordingSetup) -> None:
    setup.attach()
    setup.write("a")
    setup.receive()
    (torn,) = (setup.path / "history").glob("*.open")
    whole = torn.stat().st_size
    setup.write("b")
    setup.receive()
    setup.leave()
    setup.recorder.close()
    data = torn.read_bytes()
    torn.write_bytes(data[: whole + 9] + bytes(100))
    setup.recorder = setup.new_recorder()
    assert setup.restored() == {"a"}
    assert setup.attach().is_resumed
    assert setup.restored() == {"a", "b"}
    setup.close()


def test_incomplete_copy_is_restarted(setup: RecordingSetup) -> None:
    setup.write("a")
    asked = setup.recorder.request()
    assert asked == {"copy_all": True}
    follower = setup.followers.attach(AttachRequest("test", wants_copy=True), lambda: None)
    data = follower.read() + follower.read()
    setup.recorder.receive(data[: len(data) // 2])
    assert setup.recorder.is_copying
    follower.close()
    with pytest.raises(BackupError, match="it has no base yet"):
        setup.restored()
    setup.kill_the_recorder()
    setup.attach()
    assert setup.restored() == {"a"}
    setup.close()


def test_restarted_server_is_copied_again_and_the_gap_reported(setup: RecordingSetup) -> None:
    setup.attach()
    first = setup.write("a")
    setup.receive()
    setup.leave()
    in_between = setup.write("b")
    setup.start_server()
    setup.now_ms += 10
    assert not setup.attach().is_resumed
    assert setup.restored() == {"a", "b"} and setup.restored(first) == {"a"}
    with pytest.raises(BackupError, match=r"it has a gap after \S+ until \S+, which includes"):
        setup.restored(in_between)
    found = stretches(setup.target)
    assert [each.bases for each in found] == [1, 1]
    assert found[0].from_ms <= first <= found[0].to_ms < in_between < found[1].from_ms
    setup.close()


def test_unneeded_parts_are_removed(setup: RecordingSetup) -> None:
    setup.attach()
    setup.write("a")
    setup.receive()
    for _ in range(3):
        setup.now_ms += HOUR_MS // 2 + 1
        setup.receive()
        if setup.recorder.is_due:
            setup.leave()
            assert setup.attach().is_resumed, "a copy that is due leaves no hole"
        moment = setup.write("b" * (len(setup.restored()) + 1))
        setup.receive()
    assert len(setup.recorder.history.parts) == len(parts_of(setup.target)) - 1, "and the one that is being written"
    (stretch,) = stretches(setup.target)
    assert stretch.from_ms <= moment - HOUR_MS < moment <= stretch.to_ms
    for _ in range(4):
        setup.now_ms += HOUR_MS
        setup.receive()
        assert setup.recorder.is_due
        setup.leave()
        setup.attach()
    (stretch,) = stretches(setup.target)
    assert setup.now_ms - 3 * HOUR_MS < stretch.from_ms <= setup.now_ms - HOUR_MS, "what nobody needs is gone"
    assert "a" in setup.restored()
    setup.close()


def test_long_stream_is_split_into_parts(setup: RecordingSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryParts, "part_bytes_max", 500)
    setup.attach()
    texts = {f"t{number}" for number in range(20)}
    for text in texts:
        setup.write(text)
        setup.receive()
    assert len(setup.recorder.history.parts) > 5
    assert setup.restored() == texts
    setup.close()


@pytest.mark.parametrize("where", [0, 1 / 2, 1])
def test_damage_is_detected(setup: RecordingSetup, where: float) -> None:
    setup.write("a")
    setup.attach()
    part = setup.path / "history" / setup.recorder.history.parts[-1].name
    data = bytearray(part.read_bytes())
    data[int((len(data) - 1) * where)] ^= 1
    part.write_bytes(data)
    for _ in range(2):
        with pytest.raises(BackupError, match="is damaged"):
            setup.restored()
        with pytest.raises(BackupError, match="is damaged"):
            verify(setup.target, None)
        part.write_bytes(data[: len(data) // 2])
    setup.close()


def test_full_disk_only_delays_recording(setup: RecordingSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.attach()
    write: Callable[[OsFile, int, Sequence[bytes]], None] = OsFile.write
    setup.write("a")
    setup.receive()
    setup.write("b")
    with monkeypatch.context() as full:

        def torn(file: OsFile, offset: int, buffers: Sequence[bytes]) -> None:
            write(file, offset, [b"".join(buffers)[:7]])
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(OsFile, "write", torn)
        with pytest.raises(OSError, match="No space left"):
            setup.receive()
        assert setup.follower is not None
        setup.leave()
        setup.recorder.close()
        with pytest.raises(OSError, match="No space left"):
            setup.new_recorder()
    setup.recorder = setup.new_recorder()
    assert setup.restored() >= {"a"}
    assert setup.attach().is_resumed
    assert setup.restored() == {"a", "b"}
    setup.close()


def test_foreign_directory_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    disk = OsDisk(tmp_path)
    with pytest.raises(BackupError, match="it is not empty and not a history: it has letters"):
        History(DirectoryParts(disk))
    with pytest.raises(BackupError, match=f"it has no {histories.INDEX}"):
        parts_of(DirectoryParts(disk))
    (tmp_path / histories.INDEX).write_text('{"format": 2}')
    with pytest.raises(BackupError, match="format 2, which is newer"):
        parts_of(DirectoryParts(disk))
    disk.close()


def test_invalid_stream_is_refused(setup: RecordingSetup) -> None:
    with pytest.raises(BadFrame, match="does not start with ATTACHED"):
        setup.recorder.receive(b"".join(encode(Kind.TIME, a=1)) * 2)
    setup.recorder.begin()
    with pytest.raises(BadFrame, match="resumes at 7; requested: None"):
        setup.recorder.receive(Attached(1, 7, True, 0).encode())
    setup.recorder.begin()
    again = Attached(1, 7, False, 0).encode()
    assert len(again) == ATTACHED_BYTES
    with pytest.raises(BadFrame, match="ATTACHED in the middle"):
        setup.recorder.receive(again + again)
    setup.close()


def test_slow_follower_is_disconnected_without_affecting_others(setup: RecordingSetup) -> None:
    slow = setup.followers.attach(AttachRequest("slow"), lambda: None)
    setup.attach()
    file = setup.shipped.open("queues/large", create=True)
    for _ in range(20):
        file.write(0, [b"x" * 100_000])
        setup.receive(cut=1 << 20)
    assert slow.read()
    with pytest.raises(FollowerEnded, match="slower than the backlog allows"):
        slow.read()
    slow.close()
    figures = setup.followers.figures()
    assert figures.cut_off == 1 and [each.name for each in figures.followers] == ["test"]
    assert figures.followers[0].lag_bytes == 0 and figures.followers[0].position == figures.position
    setup.close()


def test_followers_are_limited(setup: RecordingSetup) -> None:
    attached = [setup.followers.attach(AttachRequest("test"), lambda: None) for _ in range(FOLLOWERS_MAX)]
    with pytest.raises(Conflict, match=f"{FOLLOWERS_MAX} followers are attached"):
        setup.followers.attach(AttachRequest("test"), lambda: None)
    attached[0].close()
    attached[0].close()
    setup.followers.attach(AttachRequest("test"), lambda: None)
    setup.close()


def test_empty_history_has_no_intervals(setup: RecordingSetup) -> None:
    found: list[Stretch] = stretches(setup.target)
    assert found == []
    setup.close()
