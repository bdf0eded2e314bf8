"""A history in an object store: its objects, two that write to it, and the commands with a store that fails."""

from __future__ import annotations

import http.client
import importlib.util
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from curbstone.backup.files import BackupError
from curbstone.cli import follow as following
from curbstone.core.errors import DataDirectoryError, Unavailable
from curbstone.process import logs
from curbstone.standby.history import History, Part, chain_of, parts_of
from curbstone.standby.history_urls import objects_at
from curbstone.standby.part_store import PartStore
from curbstone.standby.recording import IDLE_MS, Recorder
from curbstone.standby.restoring import stretches
from tests.kit.commands import curbstone
from tests.kit.object_store import object_store
from tests.kit.server import ServerProcess, call, clean_environment
from tests.kit.waiting import wait_until
from tests.standby.test_follow import BACKLOG, FollowerProcess, has_base, publish_by, restored
from tests.standby.test_history import HOUR_MS, RecordingSetup

URL = "s3://histories/shop/one"
EVERY_MS = 5000


def needs_obstore() -> None:
    if importlib.util.find_spec("obstore") is None:
        pytest.skip("obstore is not installed; `make spark-deps` brings it")


class ObjectRecordingSetup(RecordingSetup):
    """One whose history is in an object store, here of files."""

    def __init__(self, path: Path) -> None:
        (path / "objects").mkdir()
        super().__init__(path)

    def open_target(self) -> PartStore:
        return objects_at(f"file://{self.path}/objects", EVERY_MS)

    @property
    def objects(self) -> set[str]:
        return {path.name for path in (self.path / "objects").iterdir()} - {"history.json"}

    def close_target(self) -> None:
        """There is nothing to close."""

    def kill_the_recorder(self) -> None:
        """What it had in memory is lost. The next process opens the store anew."""
        self.leave()
        self.target = self.open_target()
        self.recorder = self.new_recorder()

    def pass_time(self, time_ms: int) -> None:
        self.now_ms += time_ms
        self.receive()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[ObjectRecordingSetup]:
    needs_obstore()
    found = ObjectRecordingSetup(tmp_path)
    yield found
    found.close()


def test_changes_are_stored_every_few_seconds_and_idle_time_every_minute(setup: ObjectRecordingSetup) -> None:
    setup.attach()
    before = setup.objects
    setup.write("a")
    setup.receive()
    assert setup.objects == before, "a part is stored when it is complete"
    setup.pass_time(EVERY_MS)
    first = setup.objects
    assert len(first) == len(before) + 1 and setup.restored() == {"a"}
    setup.pass_time(EVERY_MS)
    assert setup.objects == first
    setup.pass_time(IDLE_MS)
    assert len(setup.objects) == len(first) + 1
    (stretch,) = stretches(setup.target)
    assert stretch.to_ms == setup.now_ms and stretch.size == sum(
        (setup.path / "objects" / name).stat().st_size for name in setup.objects
    )


def test_no_part_behind_the_moment_is_read(setup: ObjectRecordingSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 64 MiB behind the moment were read ahead for nothing."""
    setup.attach()
    moments = []
    for text in "abcdefgh":
        moments.append(setup.write(text))
        setup.pass_time(EVERY_MS)
    read: list[str] = []
    original = type(setup.target).read

    def noted(store: PartStore, name: str, piece_bytes: int) -> Iterator[bytes]:
        read.append(name)
        return original(store, name, piece_bytes)

    monkeypatch.setattr(type(setup.target), "read", noted)
    assert setup.restored(moments[1]) == {"a", "b"}
    late = [part.name for part in parts_of(setup.target) if part.first_ms > moments[1]]
    assert len(late) >= 4 and not {*late} & {*read}


def test_large_part_is_stored_immediately(setup: ObjectRecordingSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(setup.target), "part_bytes_max", 1)
    monkeypatch.setattr("curbstone.standby.history.PIECE_BYTES", 1)
    setup.attach()
    for text in "abc":
        before = setup.objects
        setup.write(text)
        setup.receive()
        assert len(setup.objects) > len(before)
    assert setup.restored() == {"a", "b", "c"}


def test_changes_since_the_last_object_are_received_again_after_a_kill(setup: ObjectRecordingSetup) -> None:
    setup.attach()
    first = setup.write("a")
    setup.receive()
    setup.pass_time(EVERY_MS)
    second = setup.write("b")
    setup.receive()
    setup.kill_the_recorder()
    assert setup.restored() == {"a"}
    third = setup.write("c")
    assert setup.attach().is_resumed
    setup.pass_time(EVERY_MS)
    assert [setup.restored(moment) for moment in (first, second, third)] == [{"a"}, {"a", "b"}, {"a", "b", "c"}]
    assert setup.followers.figures().copies == 1


def test_outage_beyond_the_backlog_leaves_a_gap(setup: ObjectRecordingSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.attach()
    first = setup.write("a")
    setup.receive()
    setup.pass_time(EVERY_MS)
    setup.write("b")
    with monkeypatch.context() as away:

        def create(_store: object, name: str, _data: bytes) -> None:
            raise OSError(f"{name} can't be written")

        away.setattr(type(setup.target), "create", create)
        setup.now_ms += EVERY_MS
        with pytest.raises(OSError, match=r"part can't be written"):
            setup.receive()
        setup.recorder.close()
        setup.leave()
        lost = setup.write("c" * 200)
        for letter in "defghij":
            setup.write(letter * 200)
    setup.recorder = setup.new_recorder()
    assert not setup.attach().is_resumed
    assert setup.restored(first) == {"a"} and len(setup.restored()) == 10
    assert [each.bases for each in stretches(setup.target)] == [1, 1]
    with pytest.raises(BackupError, match="it has a gap"):
        setup.restored(lost)


def test_ending_recorder_stores_pending_changes(setup: ObjectRecordingSetup) -> None:
    setup.attach()
    setup.write("a")
    setup.receive()
    setup.recorder.close()
    assert setup.restored() == {"a"}
    setup.leave()


def test_unneeded_objects_are_removed(setup: ObjectRecordingSetup) -> None:
    setup.attach()
    setup.write("a")
    setup.receive()
    for _ in range(5):
        setup.pass_time(HOUR_MS)
        assert setup.recorder.is_due
        setup.leave()
        setup.attach()
    (stretch,) = stretches(setup.target)
    assert setup.now_ms - 3 * HOUR_MS < stretch.from_ms <= setup.now_ms - HOUR_MS
    assert setup.objects == {part.name for part in parts_of(setup.target)} and len(setup.objects) < 8
    assert setup.restored() == {"a"}


def test_latest_of_two_recorders_continues(setup: ObjectRecordingSetup) -> None:
    setup.attach()
    setup.write("a")
    setup.receive()
    other = Recorder(History(setup.open_target()), lambda: 0, keep_ms=HOUR_MS, base_every_ms=HOUR_MS)
    before = setup.objects
    with pytest.raises(DataDirectoryError, match=r"another process has begun to write to file://\S+/objects"):
        setup.pass_time(EVERY_MS)
    assert setup.objects == before
    with pytest.raises(DataDirectoryError, match="another process has begun"):
        setup.new_recorder()
    setup.recorder = other
    setup.leave()
    assert setup.attach().is_resumed
    other.close()
    assert setup.restored() == {"a"}


def test_an_object_is_never_replaced(setup: ObjectRecordingSetup) -> None:
    setup.attach()
    setup.write("a")
    setup.receive()
    writer = setup.target.begin("")
    writer.write(b"other")
    name = next(iter(setup.objects))
    with pytest.raises(OSError, match="already exists"):
        writer.finish(name)
    assert (setup.path / "objects" / name).read_bytes() != b"other"


def test_late_object_is_skipped_and_removed(setup: ObjectRecordingSetup) -> None:
    setup.attach()
    for text in "abc":
        setup.write(text)
        setup.receive()
        setup.pass_time(EVERY_MS)
    part = parts_of(setup.target)[-2]
    names = []
    for end in (part.end - 1, part.end + 1):
        late = Part(part.number, part.life, part.start, end, part.first_ms, part.last_ms)
        (setup.path / "objects" / late.name).write_bytes(b"not the same")
        names.append(late.name)
    assert setup.restored() == {"a", "b", "c"}
    setup.kill_the_recorder()
    assert not setup.objects & set(names)
    assert setup.attach().is_resumed and setup.restored() == {"a", "b", "c"}


def test_chain_keeps_its_gaps() -> None:
    def part(number: int, life: int, start: int, end: int) -> Part:
        return Part(number, life, start, end, 0, 0)

    whole = [part(1, 1, 0, 0), part(2, 1, 0, 0), part(3, 1, 0, 9), part(4, 1, 20, 30), part(5, 2, 0, 5)]
    assert chain_of(whole) == whole
    assert chain_of([*whole, part(5, 3, 7, 8), part(6, 2, 5, 6)]) == [*whole, part(6, 2, 5, 6)]
    assert chain_of([]) == []


def test_directory_needs_no_obstore_and_url_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """if True:
        import sys
        from curbstone.cli import backup, follow
        from curbstone.standby import restoring

        sys.exit(any(name.startswith("obstore") or "object_" in name for name in sys.modules))
    """
    assert subprocess.run([sys.executable, "-P", "-c", program], env=clean_environment()).returncode == 0
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "curbstone.standby.object_parts", raising=False)
    with pytest.raises(Unavailable, match=r"s3://shop/one needs obstore: pip install 'curbstone\[objects\]'"):
        objects_at("s3://shop/one")
    done = curbstone("backup", "s3://shop/one", cwd=tmp_path)
    assert done.code == 2 and "a backup in an object store needs --follow" in done.err


class Front:
    """Passes requests on to a store, or answers all of them with a status; 0 ends the connection without an answer."""

    def __init__(self, store: str) -> None:
        self.status: int | None = None
        self.refused = 0
        front = self

        class Handler(BaseHTTPRequestHandler):
            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.close_connection = True
                if front.status is not None:
                    front.refused += 1
                    if front.status:
                        self.send_error(front.status)
                    return
                there = http.client.HTTPConnection(store, timeout=120)
                there.request(self.command, self.path, body, dict(self.headers))
                reply = there.getresponse()
                data = reply.read()
                there.close()
                self.send_response(reply.status)
                for name, value in reply.getheaders():
                    if name.lower() not in ("connection", "date", "server", "transfer-encoding"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

            def log_message(self, *_: object) -> None:
                """It is silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Front:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """A store, and what is between it and the commands."""
    needs_obstore()
    with (
        object_store("histories") as found,
        Front(found["AWS_ENDPOINT_URL"].removeprefix("http://")) as front,
    ):
        for name, value in (found | {"AWS_ENDPOINT_URL": front.url}).items():
            monkeypatch.setenv(name, value)
        yield front


class Recording(FollowerProcess):
    """`curbstone backup --follow` to the store."""

    def __init__(self, folder: Path, server: ServerProcess, *args: str) -> None:
        super().__init__(folder / "history", server.url, "--every", "1s", *args, place=URL)

    def parts(self) -> list[Part]:
        with suppress(BackupError, OSError):
            return parts_of(objects_at(URL))
        return []

    def has_parts(self, count: int) -> bool:
        return len(self.parts()) >= count

    def has_failed(self, times: int) -> bool:
        return self.log.count("can't write to TARGET: ") >= times


@contextmanager
def recording(folder: Path, server: ServerProcess, *args: str) -> Iterator[Recording]:
    follower = Recording(folder, server, *args)
    try:
        yield follower
    finally:
        if follower.process.poll() is None:
            follower.end(signal.SIGKILL)
        print(f"--- log of the follower\n{follower.log}")


def restored_at(folder: Path, at: datetime | None = None) -> list[str]:
    return restored(folder / "history", at, URL)


def listed(folder: Path) -> list[Any]:
    done = curbstone("restore", URL, "--list", "--json", cwd=folder)
    assert done.code == 0, done.err
    stretches_found: list[Any] = done.json[0]["stretches"]
    return stretches_found


def test_moments_under_load_can_be_restored_after_kills_of_the_recorder(s3: Front, tmp_path: Path) -> None:
    is_over = threading.Event()
    sent: list[tuple[datetime, datetime]] = []

    def produce() -> None:
        while not is_over.wait(0.01):
            began = datetime.now(UTC)
            sent.append((began, publish_by(server, str(len(sent)))))

    with ServerProcess(tmp_path / "data", BACKLOG) as server, recording(tmp_path, server) as follower:
        call(server, "PUT", "/v2/default/queues/q", {})
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            wait_until(lambda: has_base(follower.parts()))
            for _ in range(2):
                count = len(follower.parts())
                wait_until(partial(follower.has_parts, count + 2))
                assert follower.end(signal.SIGKILL) == -signal.SIGKILL
                follower.start()
        finally:
            is_over.set()
            producer.join()
        follower.has_everything(server)
        assert call(server, "GET", "/v2/standby")["copies"] == 1
        assert follower.end() == 0
    (stretch,) = listed(tmp_path)
    first, last = (datetime.fromisoformat(stretch[name]) for name in ("from", "to"))
    for moment in (first, first + (last - first) / 3, last - (last - first) / 3, last):
        found = restored_at(tmp_path, moment)
        assert found == [str(number) for number in range(len(found))]
        least = sum(ended < moment for _, ended in sent)
        most = sum(began <= moment + timedelta(milliseconds=2) for began, _ in sent)
        assert least <= len(found) <= most
    assert len(restored_at(tmp_path)) == len(sent)
    done = curbstone("restore", URL, "--verify", "--at", last.isoformat(), cwd=tmp_path)
    assert done.code == 0 and f"{URL} is undamaged up to " in done.out, done.err
    done = curbstone("restore", URL, "one", "--queue", "q", "--as", "old", "--at", first.isoformat(), cwd=tmp_path)
    assert done.code == 0 and "restored as default/old in one" in done.out


def test_recorder_waits_for_an_unreachable_store(s3: Front, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", BACKLOG) as server, recording(tmp_path, server) as follower:
        publish_by(server, "one")
        wait_until(lambda: has_base(follower.parts()))
        for number, status in enumerate((0, 503, 403)):
            s3.status = status
            publish_by(server, f"during {number}")
            wait_until(partial(follower.has_failed, number + 1))
            s3.status = None
            follower.has_everything(server)
        assert call(server, "GET", "/v2/standby")["copies"] == 1
    assert "can't reach" not in follower.log and "retrying in" in follower.log
    assert restored_at(tmp_path) == ["one", "during 0", "during 1", "during 2"]


def test_stopping_server_sends_everything_to_the_store(s3: Front, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", BACKLOG) as server, recording(tmp_path, server, "--every=1h") as follower:
        wait_until(lambda: has_base(follower.parts()))
        publish_by(server, *map(str, range(100)))
        count = len(follower.parts())
        assert server.stop() == 0
        wait_until(lambda: follower.has_parts(count + 1))
        assert follower.end() == 0
    assert restored_at(tmp_path) == [str(number) for number in range(100)]


@pytest.mark.parametrize("fails", [False, True])
def test_stopped_command_stores_pending_changes_or_fails(
    setup: ObjectRecordingSetup, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    def pieces(recorder: Recorder) -> Iterator[int]:
        setup.recorder = recorder
        setup.attach()
        yield 1
        setup.write("a")
        setup.receive()
        if fails:
            monkeypatch.setattr(ObjectParts, "create", create)
        raise KeyboardInterrupt

    def create(_parts: ObjectParts, _name: str, _data: bytes) -> None:
        raise OSError("the store is away")

    from curbstone.standby.object_parts import ObjectParts

    monkeypatch.setattr(following, "_pieces", pieces)
    monkeypatch.setattr(logs, "begin", lambda *_: None)
    with pytest.raises(OSError, match="the store is away") if fails else nullcontext():
        following.follow(f"file://{setup.path}/objects", keep_s=3600, base_every_s=3600, every_s=3600)
    assert setup.restored() == (set() if fails else {"a"})
    setup.leave()


def test_invalid_store_is_named(s3: Front, tmp_path: Path) -> None:
    wrong = "s3://no-such-bucket/shop"
    for words in (("backup", "--follow", wrong), ("restore", wrong, "d"), ("restore", wrong, "--list")):
        done = curbstone(*words, cwd=tmp_path)
        assert done.code == 2 and done.err.rstrip().endswith("404 Not Found (NoSuchBucket)"), done.err
    done = curbstone("restore", URL, "d", cwd=tmp_path)
    assert done.code == 6 and "it has no history.json, so it is not a history" in done.err
    s3.status = 403
    for words in (("backup", "--follow", URL), ("restore", URL, "d"), ("restore", URL, "--list")):
        done = curbstone(*words, cwd=tmp_path)
        assert done.code == 2 and done.err.rstrip().endswith("status code: 403 Forbidden"), done.err
    s3.status = 0
    assert curbstone("restore", URL, "d", cwd=tmp_path).code == 1
    assert not (tmp_path / "d").exists()
    done = curbstone("backup", "--follow", "s4://bucket/shop", cwd=tmp_path)
    assert done.code == 2 and 'Unable to recognise URL "s4://bucket/shop"' in done.err


def test_foreign_prefix_is_not_written_to(s3: Front, tmp_path: Path) -> None:
    import obstore
    from obstore.store import S3Store

    store = S3Store.from_url("s3://histories/shop", client_options={"allow_http": True})
    obstore.put(store, "one/letters", b"dear")
    done = curbstone("backup", "--follow", URL, cwd=tmp_path)
    assert done.code == 6 and "it is not empty and not a history: it has letters" in done.err
    assert [each["path"] for some in obstore.list(store) for each in some] == ["one/letters"]
