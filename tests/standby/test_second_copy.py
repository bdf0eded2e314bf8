"""A copy that follows a server, may become one, and refuses what does not belong together."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import pytest

from curbstone.core.disk import OsDisk
from curbstone.core.errors import Conflict, Gone
from curbstone.gateway.resources.server.standby import Ack, AttachRequest
from curbstone.standby.copying import BLOCK_BYTES
from curbstone.standby.followers import Follower, Followers
from curbstone.standby.frames import BadFrame, InSync, Kind
from curbstone.standby.second_copy import CannotFollow, NotPromoted, SecondCopy
from curbstone.standby.shipping import ShippingDisk
from curbstone.standby.state_files import STATE_FILE, StateFiles, server_state_files
from curbstone.standby.stream import Stream

BOOT = b"this boot"


class AtOnce:
    """Makes syncs when they begin. Implements `applying.Syncs`."""

    def start(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> Callable[[], None]:
        job()
        done(None)
        return lambda: None


class FakeEnding:
    """Notes how a server ends."""

    def __init__(self) -> None:
        self.terms: list[int] = []
        self.is_frozen = False

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False

    def __call__(self, term: int) -> None:
        self.terms.append(term)

    def end_for(self, reason: str) -> None:
        raise AssertionError(reason)


class Server:
    """A server's disk and those who follow it, without an engine."""

    def __init__(self, path: Path) -> None:
        self.disk = OsDisk(path)
        self.ending = FakeEnding()
        self.state_files = server_state_files(self.disk)
        self.start_server()

    def start_server(self) -> None:
        self.stream = Stream(lambda: 1, kept_bytes=1 << 16)
        self.shipped = ShippingDisk(self.disk, self.stream)
        self.followers = Followers(self.stream, self.disk, lambda: 1, self.state_files, self.ending)

    def write(self, name: str, data: bytes) -> None:
        file = self.shipped.open(name, create=True)
        file.write(0, [data])
        file.sync()
        file.close()


class Pair:
    """A server, and a copy of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ms = 0
        self.server = Server(path / "server")
        self.server.write("first", b"1" * 3 * BLOCK_BYTES)
        self.disk = OsDisk(path / "copy")
        self.copy = self.new_copy()
        self.follower: Follower | None = None

    def new_copy(self, boot: bytes = BOOT) -> SecondCopy:
        return SecondCopy(self.disk, boot, AtOnce(), lambda: self.now_ms)

    def request(self, *, compares: bool = False) -> AttachRequest:
        server = self.server
        self.copy.assign(server.state_files.state.server, server.state_files.state.term)
        asked = self.copy.request(server.stream.life, compares=compares)
        return AttachRequest(
            "copy",
            int(asked.get("life", "0"), 16),
            asked.get("position", 0),
            asked.get("copy_all", False),
            asked.get("only_resume", False),
            asked["server"],
            asked["term"],
            asked["copy_id"],
            asked["key"],
            {path: b64decode(text) for path, text in asked.get("had", {}).items()},
        )

    def attach(self, *, compares: bool = False) -> int:
        """Attach the copy and have it receive everything; return how many bytes were sent."""
        self.follower = self.server.followers.attach(self.request(compares=compares), lambda: None)
        return self.receive()

    def receive(self) -> int:
        assert self.follower is not None
        sent = 0
        while data := self.follower.read():
            self.copy.receive(data)
            sent += len(data)
        return sent

    def leave(self) -> None:
        assert self.follower is not None
        self.follower.close()

    def contents(self) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in (self.path / "copy").iterdir() if each.is_file()}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_copy_resumes_and_is_acknowledged(pair: Pair) -> None:
    assert pair.attach() > 3 * BLOCK_BYTES
    pair.server.write("second", b"2")
    pair.receive()
    ack = pair.copy.ack()
    assert ack["is_usable"] and ack["durable"] == ack["applied"] == pair.server.stream.end
    pair.server.followers.acknowledge(Ack(**ack))
    (figures,) = pair.server.followers.figures().followers
    assert figures.is_standby and figures.is_usable and figures.acknowledged == ack["durable"]
    pair.leave()
    with pytest.raises(Conflict, match="not attached"):
        pair.server.followers.acknowledge(Ack(**ack))
    pair.server.write("third", b"3")
    pair.copy.close()
    pair.copy = pair.new_copy()
    assert pair.attach() < 2000
    assert pair.contents()["second"] == b"2" and pair.contents()["third"] == b"3"


def test_equal_files_are_not_copied_again(pair: Pair) -> None:
    pair.attach()
    pair.leave()
    pair.server.start_server()
    file = pair.server.shipped.open("first")
    file.write(BLOCK_BYTES, [b"x"])
    file.close()
    assert BLOCK_BYTES < pair.attach() < 2 * BLOCK_BYTES
    assert pair.contents()["first"][BLOCK_BYTES : BLOCK_BYTES + 2] == b"x1"


def test_copy_disconnected_for_too_long_compares_files(pair: Pair) -> None:
    pair.attach()
    pair.leave()
    for number in range(10):
        pair.server.write(f"more{number}", b"x" * 20_000)
    with pytest.raises(Gone):
        pair.attach()
    assert pair.attach(compares=True) < BLOCK_BYTES, "the first file is left out"
    assert len(pair.contents()["more9"]) == 20_000


def test_copy_on_a_rebooted_machine_compares_files(pair: Pair) -> None:
    pair.attach()
    pair.leave()
    pair.copy.close()
    pair.copy = pair.new_copy(b"another boot")
    assert not pair.request().only_resumes


def test_a_directory_with_other_data_is_not_overwritten(pair: Pair, tmp_path: Path) -> None:
    for name, text in (("strange", "not a copy of a server"), ("other", "it has data of server")):
        pair.disk = OsDisk(tmp_path / name)
        if name == "other":
            server_state_files(pair.disk)
        else:
            pair.disk.make_dir("queues")
        pair.copy = pair.new_copy()
        with pytest.raises(CannotFollow, match=text):
            pair.request()
    pair.copy = pair.new_copy()
    wrong = AttachRequest("copy", server="ab" * 16)
    with pytest.raises(Conflict, match="copy of another server, abababab"):
        pair.server.followers.attach(wrong, lambda: None)


def test_promoted_copy_ends_the_replaced_server(pair: Pair) -> None:
    pair.attach()
    with pytest.raises(NotPromoted, match="did not wait for this copy before it confirmed; --accept-loss"):
        pair.copy.promote(accepts_loss=False)
    assert "did not wait" in pair.copy.promote(accepts_loss=True)
    state = pair.copy.state
    assert state.is_server and state.term == 2 and state.skips_ids
    assert state.server == pair.server.state_files.state.server
    with pytest.raises(CannotFollow, match="not promoted after this one"):
        pair.request()
    with pytest.raises(NotPromoted, match="a server already"):
        pair.copy.promote(accepts_loss=True)
    request = AttachRequest("copy", server=state.server, term=state.term)
    with pytest.raises(Conflict, match="replaced by one of term 2"):
        pair.server.followers.attach(request, lambda: None)
    assert pair.server.ending.terms == [2]


def test_former_server_that_follows_copies_everything(pair: Pair) -> None:
    """What it reads may not be on its disk, if one of its syncs has failed."""
    pair.attach()
    pair.copy.promote(accepts_loss=True)
    former = SecondCopy(pair.server.disk, BOOT, AtOnce(), lambda: 0)
    former.assign(pair.copy.state.server, 2)
    asked = former.request(1, compares=False)
    assert asked["copy_all"] and asked["term"] == 2 and not former.state.is_server


def test_incomplete_copy_is_not_promoted(pair: Pair) -> None:
    follower = pair.server.followers.attach(pair.request(), lambda: None)
    pair.copy.receive(follower.read())
    pair.copy.receive(follower.read())
    with pytest.raises(NotPromoted, match="not complete"):
        pair.copy.promote(accepts_loss=True)
    assert pair.copy.ack()["durable"] == 0


def test_what_a_copy_in_sync_may_lack_is_decided_by_the_time_since_it_was_heard(pair: Pair) -> None:
    pair.attach()
    pair.server.stream.add(Kind.STATE, a=10_000, flag=InSync.ON_DISK)
    pair.receive()
    assert "has received no reply from the server" in pair.copy.possible_loss
    pair.now_ms = 50_000
    pair.copy.note_in_sync(45_000)
    assert pair.copy.possible_loss == ""
    pair.now_ms = 55_000
    assert "last reply of the server was 10.0 s ago, and it confirms alone after 10 s" in pair.copy.possible_loss
    pair.server.stream.add(Kind.STATE, a=0, flag=InSync.ON_DISK)
    pair.receive()
    assert pair.copy.promote(accepts_loss=False) == "" and not pair.copy.state.skips_ids


def test_copy_far_behind_is_applied_without_syncs(pair: Pair) -> None:
    pair.attach()
    before = pair.copy.ack()["durable"]
    pair.copy.applier.catch_up()
    pair.server.write("second", b"2")
    pair.receive()
    assert pair.contents()["second"] == b"2" and pair.copy.ack()["durable"] == before
    pair.copy.applier.caught_up()
    assert pair.copy.ack()["durable"] == pair.server.stream.end
    pair.copy.applier.catch_up()
    pair.copy.close()
    pair.copy = pair.new_copy()
    pair.leave()
    assert pair.attach() < 2000, "only the process has ended, and what it wrote is there"
    assert not pair.copy.state.is_catching_up


def test_power_cut_during_catch_up_makes_a_copy_unusable(pair: Pair) -> None:
    pair.attach()
    pair.copy.applier.catch_up()
    pair.copy.close()
    pair.copy = pair.new_copy(b"another boot")
    with pytest.raises(NotPromoted, match="not complete"):
        pair.copy.promote(accepts_loss=True)
    pair.leave()
    pair.attach()
    assert pair.copy.ack()["is_usable"]


def test_server_continuing_elsewhere_is_refused(pair: Pair) -> None:
    pair.attach()
    pair.leave()
    request = pair.request()
    other = pair.server.followers.attach(request._replace(position=0), lambda: None)
    with pytest.raises(BadFrame, match="resumes at .*; requested: "):
        pair.copy.receive(other.read())


def test_damaged_state_is_reported(pair: Pair) -> None:
    pair.attach()
    (pair.path / "copy" / STATE_FILE).write_text('{"format": 1}')
    with pytest.raises(Exception, match="standby/state in the data directory is damaged"):
        StateFiles(pair.disk, BOOT)


def test_copy_can_be_the_root_of_a_volume(pair: Pair) -> None:
    """It was refused, because its file system has a directory there; and the copy would have removed that."""
    (pair.path / "copy" / "lost+found").mkdir()
    (pair.path / "server" / "lost+found").mkdir()
    (pair.path / "server" / "lost+found" / "#12").write_bytes(b"not of the server")
    pair.attach()
    assert pair.copy.applier.is_usable
    assert list((pair.path / "copy" / "lost+found").iterdir()) == []
