"""`backup --follow` and `restore --at`, as processes: either side is killed, ends, is refused, or has a full disk."""

from __future__ import annotations

import http.client
import math
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from curbstone.cli.check import ReadOnlyDisk
from curbstone.gateway.http.login import ACCESS
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.resources.server.standby import NoFollowers, Standby
from curbstone.net.peer import Peer
from curbstone.standby.history import INDEX, parts_of
from curbstone.standby.part_store import DirectoryParts
from tests.kit.commands import curbstone
from tests.kit.guarded_server import GuardedServer, guarded_server
from tests.kit.processes import COMMAND, Process, start
from tests.kit.server import ServerProcess, bodies, call, clean_environment, publish
from tests.kit.waiting import wait_until

BACKLOG = "--standby-backlog=1MiB"


def publish_by(server: ServerProcess, *bodies: str) -> datetime:
    """Publish, and return a moment after it was confirmed."""
    publish(server, *bodies)
    return datetime.now(UTC)


class FollowerProcess:
    """`curbstone backup --follow`, to a directory, or to a store at `place`; then `target` is next to its log."""

    def __init__(self, target: Path, url: str, *args: str, token: str = "", place: str = "") -> None:
        self.target = target
        self.log_file = target.parent / "follow.log"
        self._command = [*COMMAND, "backup", "--follow", place or str(target), "--server", url, *args]
        self._env = clean_environment(**({"CURBSTONE_TOKEN": token} if token else {}))
        self.process: Process
        self.start()

    def start(self) -> None:
        with self.log_file.open("ab") as log:
            self.process = start(self._command, self._env, self.target.parent, log)

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def has_everything(self, server: ServerProcess) -> None:
        """Wait until it has recorded what the server has done up to now."""
        figures = call(server, "GET", "/v2/standby")

        def is_recorded() -> bool:
            parts = self.parts()
            return has_base(parts) and any(
                f"{part.life:016x}" == figures["life"] and part.end >= figures["position"] for part in parts
            )

        wait_until(is_recorded)

    def parts(self) -> list[Any]:
        try:
            return parts_of(DirectoryParts(ReadOnlyDisk(self.target))) if (self.target / INDEX).exists() else []
        except FileNotFoundError:  # it was given its name meanwhile
            return []


def has_base(parts: list[Any]) -> bool:
    lives = [part.life for part in parts if part.ends]
    return bool(lives) and lives[-1] == parts[-1].life


@contextmanager
def following(target: Path, server: ServerProcess, *args: str) -> Iterator[FollowerProcess]:
    follower = FollowerProcess(target, server.url, *args)
    try:
        yield follower
    finally:
        if follower.process.poll() is None:
            follower.end(signal.SIGKILL)
        print(f"--- log of the follower\n{follower.log}")


def restored(history: Path, at: datetime | None = None, place: str = "") -> list[str]:
    """Restore a moment, check the directory and start a server on it; return its messages.

    The history is in a directory, or in a store at `place`; then `history` is next to where it is restored.
    """
    data = history.parent / "restored"
    moment = ["--at", at.isoformat()] if at else []
    done = curbstone("restore", place or str(history), str(data), *moment, cwd=history.parent)
    assert done.code == 0, done.err
    assert curbstone("check", str(data), cwd=history.parent).code == 0
    with ServerProcess(data) as server:
        found = bodies(server)
    shutil.rmtree(data)
    return found


def test_any_moment_can_be_restored_after_killing_both_sides(tmp_path: Path) -> None:
    history = tmp_path / "history"
    with ServerProcess(tmp_path / "data", BACKLOG) as server, following(history, server) as follower:
        publish_by(server, "one")
        wait_until(lambda: has_base(follower.parts()))
        two = publish_by(server, "two")
        follower.has_everything(server)
        assert follower.end(signal.SIGKILL) == -signal.SIGKILL
        away = publish_by(server, "three")
        call(server, "POST", "/v2/default/queues/q/purge")
        follower.start()
        follower.has_everything(server)
        assert call(server, "GET", "/v2/standby")["resumes"] == 1
        assert restored(history, two) == ["one", "two"]
        assert restored(history, away) == ["one", "two", "three"]
        assert restored(history) == []
        publish_by(server, "four")
        follower.has_everything(server)
        server.kill()
        assert restored(history) == ["four"]
        server.restart(same_ports=True)
        publish_by(server, "five")
        follower.has_everything(server)
        assert follower.end() == 0
        assert restored(history) == ["four", "five"] and restored(history, two) == ["one", "two"]
        listed = curbstone("restore", str(history), "--list", "--json", cwd=tmp_path).json[0]["stretches"]
        assert len(listed) == 2 and all(each["from"] <= each["to"] for each in listed)
    assert ": receiving a full copy" in follower.log and ": resuming" in follower.log


def test_stopping_server_sends_everything_to_followers(tmp_path: Path) -> None:
    history = tmp_path / "history"
    with ServerProcess(tmp_path / "data", BACKLOG) as server, following(history, server) as follower:
        wait_until(lambda: has_base(follower.parts()))
        publish_by(server, *map(str, range(100)))
        assert server.stop() == 0
        assert follower.end() == 0
    assert restored(history) == [str(number) for number in range(100)]


def test_queue_of_a_moment_can_be_restored_into_a_directory(tmp_path: Path) -> None:
    history = tmp_path / "history"
    with ServerProcess(tmp_path / "data", BACKLOG) as server, following(history, server) as follower:
        wait_until(lambda: has_base(follower.parts()))
        before = publish_by(server, "one")
        call(server, "POST", "/v2/default/queues/q/purge")
        follower.has_everything(server)
    options = ("--queue", "q", "--as", "old", "--at", before.isoformat())
    done = curbstone("restore", str(history), str(tmp_path / "data"), *options, cwd=tmp_path)
    assert done.code == 0, done.err
    with ServerProcess(tmp_path / "data") as server:
        found = call(server, "GET", "/v2/default/queues/old/messages")["messages"]
        assert bodies(server) == [] and [message["message"] for message in found] == ["one"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_follower_waits_while_its_disk_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)], check=True)
    try:
        with ServerProcess(tmp_path / "data", "--standby-backlog=64MiB") as server:
            with following(disk / "history", server) as follower:
                wait_until(lambda: has_base(follower.parts()))
                noise = [os.urandom(20_000).hex() for _ in range(10)]
                publish_by(server, *noise)
                wait_until(lambda: "No space left" in follower.log)
                assert "can't reach" not in follower.log
                subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
                follower.has_everything(server)
                copies = call(server, "GET", "/v2/standby")["copies"]
                assert follower.end() == 0
            shutil.copytree(disk / "history", tmp_path / "history")
            assert copies == 1, "it went on where it was"
            assert restored(tmp_path / "history") == noise
    finally:
        subprocess.run(["umount", str(disk)], check=True)


USERS = """[users.root]
grants = ["admin server"]
[users.copier]
grants = ["replicate server"]
[users.nearly]
grants = ["metrics server", "send,receive,peek,manage */*"]
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("guarded"), USERS, BACKLOG) as it:
        yield it


def test_stream_requires_only_replicate(guarded: GuardedServer) -> None:
    for path, method in (("/v2/standby", "GET"), ("/v2/standby/stream", "POST")):
        assert guarded.call("", method, path).status_code == 401
        refused = guarded.call("nearly", method, path)
        assert refused.status_code == 403 and "no right to replicate on the server" in refused.text
    assert guarded.call("copier", "GET", "/v2/standby").json()["enabled"] is True
    assert guarded.call("copier", "GET", "/v2/default/queues/q/messages").status_code == 403
    assert guarded.call("root", "GET", "/v2/standby").status_code == 200


def test_follower_is_audited_listed_and_ended_with_its_right(guarded: GuardedServer, tmp_path: Path) -> None:
    follower = FollowerProcess(tmp_path / "history", guarded.server.url, token=guarded.secrets["copier"])
    try:
        wait_until(lambda: has_base(follower.parts()))
        connections = guarded.call("root", "GET", "/v2/connections").json()["connections"]
        assert [(each["user"], each["protocol"]) for each in connections] == [("copier", "follower")]
        audit = guarded.call("root", "GET", "/v2/audit").json()["audit"]
        assert any(entry["action"] == "replicate" and entry["user"] == "copier" for entry in audit)
        users = guarded.users_file.read_text()
        guarded.users_file.write_text(users.replace('"replicate server"', '"metrics server"'))
        assert guarded.call("root", "POST", "/v2/reload").status_code == 204
        assert follower.process.wait(60) == 1
        assert "no right to replicate on the server" in follower.log
    finally:
        guarded.users_file.write_text(USERS)
        guarded.call("root", "POST", "/v2/reload")
        assert follower.process.stdout is not None
        follower.process.stdout.close()


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"life": "x"}, "bad \"life\" 'x'"),
        ({"life": 5}, 'bad "life"'),
        ({"position": -1}, 'bad "position"'),
        ({"position": True}, 'bad "position"'),
        ({"copy_all": 1}, 'bad "copy_all"'),
        ({"name": "a\nb"}, 'bad "name"'),
        ({"name": "a" * 101}, 'bad "name"'),
        ({"other": 1}, "other"),
    ],
)
def test_bad_requests_are_named(guarded: GuardedServer, body: object, rule: str) -> None:
    refused = guarded.call("copier", "POST", "/v2/standby/stream", json=body)
    assert refused.status_code == 400 and rule in refused.json()["detail"]


def test_non_local_follower_requires_tls() -> None:
    authenticator: Any = SimpleNamespace(connections=None)
    standby = Standby(authenticator, NoFollowers("no"), allows_plaintext=False)
    access = SimpleNamespace(check_server=lambda _right: None)

    def ends(peer: Peer) -> None:
        standby.post(Request({"type": "http", "headers": [], "peer": peer, ACCESS: access})).send(None)

    with pytest.raises(Problem, match="follow over TLS") as refused:
        ends(Peer("10.1.2.3", 5000))
    assert refused.value.status == 403
    for peer in (Peer("127.0.0.1", 5000), Peer("10.1.2.3", 5000, tls=True)):
        with pytest.raises(KeyError):  # it goes on, to the body that this request lacks
            ends(peer)


def test_server_without_a_backlog_explains_how_to_enable_followers(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        assert call(server, "GET", "/v2/standby") == {"enabled": False, "followers": []}
        done = curbstone("backup", "--follow", "history", "--server", server.url, cwd=tmp_path)
        assert done.code == 1 and "start it with --standby-backlog 64MiB" in done.err


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (("backup", "--follow", "h", "--keep", "7"), "--keep: bad time '7'"),
        (("backup", "--follow", "h", "--base-every", "0h"), "--base-every: bad time '0h'"),
        (("backup", "--follow", "h", "--since", "x"), "--follow can't be combined"),
        (("restore", "history", "d", "--at", "yesterday"), "--at: bad moment 'yesterday'"),
        (("restore", "history", "d", "--at", "2026-11-25T20:15:03"), "expected a date and time with a zone"),
        (("restore", "history"), "DIR is missing"),
        (("restore", "other", "d", "--at", "2026-11-25T20:15:03Z"), "--at needs a backup made with --follow"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, args: tuple[str, ...], rule: str) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / INDEX).write_text('{"format": 1}')
    done = curbstone(*args, cwd=tmp_path)
    assert done.code == 2 and rule in done.err


def test_foreign_directory_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "letters").write_text("dear")
    done = curbstone("backup", "--follow", "target", cwd=tmp_path)
    assert done.code == 6 and "it is not empty and not a history: it has letters" in done.err


@pytest.mark.soak
def test_moments_under_load_are_exact_despite_kills(tmp_path: Path) -> None:
    """One producer sends numbers one after the other. So each moment has to have all that were confirmed by then."""
    seconds = float(os.environ.get("CURBSTONE_CRASH_SECONDS", "60"))
    seed = int(os.environ.get("CURBSTONE_SIM_SEED", str(time.time_ns() % 1_000_000)))
    print(f"\nseed {seed}")
    rng, history, is_over = random.Random(seed), tmp_path / "history", threading.Event()
    sent: list[tuple[float, float]] = []
    """When each number was sent, and when it was confirmed; infinity if it was not."""

    def produce() -> None:
        while not is_over.is_set():
            began, ended = time.time(), math.inf
            try:
                call(server, "POST", "/v2/default/queues/q/messages/batch", [{"message": str(len(sent))}])
                ended = time.time()
            except (OSError, http.client.HTTPException):
                is_over.wait(0.1)
            sent.append((began, ended))

    with ServerProcess(tmp_path / "data", BACKLOG, "--cap=64MiB") as server, following(history, server) as follower:
        call(server, "PUT", "/v2/default/queues/q", {})
        producer = threading.Thread(target=produce)
        producer.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            is_over.wait(rng.uniform(0.5, 3))
            if rng.random() < 0.7:
                follower.end(signal.SIGKILL)
                is_over.wait(rng.choice([0, 0.5]))
                follower.start()
            else:
                server.kill()
                server.restart(same_ports=True)
                wait_until(lambda: has_base(follower.parts()))
        is_over.set()
        producer.join()
        follower.has_everything(server)
    listed = curbstone("restore", str(history), "--list", "--json", cwd=tmp_path).json[0]["stretches"]
    for stretch in listed:
        first, last = (datetime.fromisoformat(stretch[each]).timestamp() for each in ("from", "to"))
        for moment in (first, rng.uniform(first, last), last):
            found = set(map(int, restored(history, datetime.fromtimestamp(moment, UTC))))
            lacking = [number for number, (_, ended) in enumerate(sent) if ended < moment and number not in found]
            early = [number for number in found if sent[number][0] > moment + 0.002]  # the clock has milliseconds
            assert not lacking and not early, (moment, lacking[:5], early[:5])
    print(f"{len(sent)} numbers, {len(listed)} stretches")
