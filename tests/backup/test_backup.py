"""Backups of a running server: what is in them, and what is left when something is killed in the middle."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from curbstone.cli.main import main
from tests.kit.commands import curbstone, running
from tests.kit.server import ServerProcess, call
from tests.kit.server import bodies as bodies_in


def publish(server: ServerProcess, queue: str, *bodies: str) -> None:
    call(server, "PUT", f"/v2/p/queues/{queue}", {})
    for start in range(0, len(bodies), 10):
        batch = [{"message": body} for body in bodies[start : start + 10]]
        call(server, "POST", f"/v2/p/queues/{queue}/messages/batch", batch)


def bodies(server: ServerProcess, queue: str) -> list[str]:
    return bodies_in(server, f"p/queues/{queue}")


def here(*words: object) -> tuple[int, str]:
    """Run a command in this process, which is many times faster; return its exit code and what it says on stderr."""
    code, _, said = run(*words)
    return code, said


def run(*words: object) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, and its output on stdout and on stderr."""
    out, said = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["curbstone", *map(str, words)]),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(out),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out.getvalue(), said.getvalue()


def backup(server: ServerProcess, target: Path, *options: object) -> None:
    assert here("backup", target, "--server", server.url, *options) == (0, "")


@contextmanager
def restored(source: Path, data: Path) -> Iterator[ServerProcess]:
    assert here("restore", source, data) == (0, "")
    with ServerProcess(data) as server:
        yield server


class Load:
    """Publishes and takes in one small queue, so that its segments go and come; and keeps account."""

    def __init__(self, server: ServerProcess, queue: str) -> None:
        self._http = http.client.HTTPConnection(*server.http, timeout=60)
        self._path = f"/v2/p/queues/{queue}"
        self._over = threading.Event()
        self._turned = threading.Condition()
        self._thread = threading.Thread(target=self._run)
        self.turns = 0
        self.failure: BaseException | None = None
        self.confirmed: set[str] = set()
        self.acking: set[str] = set()
        self.acked: set[str] = set()

    def __enter__(self) -> Load:
        self._ask("PUT", "", {})
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        self._http.close()
        assert kind is not None or self.failure is None, self.failure

    def wait_for_turns(self, turns: int) -> None:
        """Wait until so many more turns are done."""
        with self._turned:
            wanted = self.turns + turns
            assert self._turned.wait_for(lambda: self.turns >= wanted or self.failure, timeout=60)

    def _ask(self, method: str, path: str, body: object) -> Any:
        self._http.request(method, self._path + path, json.dumps(body), {"content-type": "application/json"})
        reply = self._http.getresponse()
        text = reply.read()
        assert reply.status < 300, text
        return json.loads(text) if text else None

    def _run(self) -> None:
        """Each turn publishes what the log has room for once, and acks all but what came last."""
        try:
            while not self._over.is_set():
                batch = [f"{self.turns:06d}.{place:02d}".ljust(2000, "x") for place in range(20)]
                self._ask("POST", "/messages/batch", [{"message": body} for body in batch])
                self.confirmed.update(batch)
                wanted = {"count": 20, "seconds": 3600}
                leased = self._ask("POST", "/messages/lease", wanted)["messages"] if self.turns > 1 else []
                if leased:
                    bodies = {message["message"] for message in leased}
                    self.acking |= bodies
                    self._ask("POST", "/messages/ack", {"ackIds": [message["ackId"] for message in leased]})
                    self.acked |= bodies
                with self._turned:
                    self.turns += 1
                    self._turned.notify_all()
        except BaseException as error:
            self.failure = error
            with self._turned:
                self._turned.notify_all()


def test_backup_has_everything_confirmed_before_it_began(tmp_path: Path) -> None:
    """The queue is small: its segments are dropped, and their files would be used again, under the backup's hands."""
    with ServerProcess(tmp_path / "data", "--cap", "256KiB") as server, Load(server, "q") as load:
        load.wait_for_turns(20)
        before: Path | None = None
        for number in range(2):
            confirmed, acked = set(load.confirmed), set(load.acked)
            target = tmp_path / f"backup{number}"
            backup(server, target, *(["--since", before] if before else []))
            acking = set(load.acking)
            load.wait_for_turns(5)
            with restored(target, tmp_path / f"restored{number}") as other:
                found = bodies(other, "q")
            assert found == sorted(set(found)), "twice, or out of order"
            assert not acked & set(found), "what was settled before the backup is in it"
            assert confirmed - acking <= set(found), "what was confirmed before the backup is not in it"
            assert here("check", tmp_path / f"restored{number}")[0] == 0
            before = target


def test_backup_has_each_transaction_whole_or_not_at_all(tmp_path: Path) -> None:
    over = threading.Event()
    committed = threading.Semaphore(0)

    def transactions(address: tuple[str, int]) -> None:
        with socket.create_connection(address) as client, client.makefile("rb") as replies:
            client.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
            number = 0
            while not over.is_set():
                frames = [b"BEGIN\ntransaction:t\n\n\0"]
                frames += [
                    b"SEND\ndestination:/queue/p/%b\ntransaction:t\n\n%06d\0" % (queue, number)
                    for queue in (b"a", b"b")
                ]
                frames.append(b"COMMIT\ntransaction:t\nreceipt:r%d\n\n\0" % number)
                client.sendall(b"".join(frames))
                while (line := replies.readline()) != b"receipt-id:r%d\n" % number:
                    assert line
                number += 1
                committed.release()

    with ServerProcess(tmp_path / "data") as server:
        thread = threading.Thread(target=transactions, args=(server.stomp,))
        thread.start()
        try:
            for number in range(2):
                for _ in range(10):
                    assert committed.acquire(timeout=60)
                backup(server, tmp_path / f"backup{number}.tar")
        finally:
            over.set()
            thread.join()
        assert server.stop() == 0
    for number in range(2):
        with restored(tmp_path / f"backup{number}.tar", tmp_path / f"restored{number}") as other:
            a, b = bodies(other, "a"), bodies(other, "b")
        assert a == b
        assert len(a) >= 10 * (number + 1)


def test_incremental_backup_has_only_additions_and_restores_whole(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--cap", "64MiB") as server:
        publish(server, "still", *["x" * 1000] * 500)
        publish(server, "grows", "first")
        backup(server, tmp_path / "one")
        publish(server, "grows", "second")
        had = {path.relative_to(tmp_path / "one").as_posix(): path.stat() for path in (tmp_path / "one").rglob("*.seg")}
        backup(server, tmp_path / "two", "--since", tmp_path / "one")
        same = [name for name, was in had.items() if (tmp_path / "two" / name).stat().st_ino == was.st_ino]
        assert len(same) == len(had) - 1, "one queue has changed, and the file of the other is linked"
        assert server.stop() == 0
    shutil.rmtree(tmp_path / "one")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=tmp_path / "two", check=True)
    with restored(tmp_path / "two", tmp_path / "restored") as other:
        assert bodies(other, "grows") == ["first", "second"]
        assert len(bodies(other, "still")) == 500


def test_backup_has_staged_transactions_and_options(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        call(server, "PUT", "/v2/p/queues/q", {"max_tries": 7, "groups": ["g"], "idempotency_window": 86400})
        lines = b'{"queue":"q","message":"staged"}\n'
        request = urllib.request.Request(f"{server.url}/v2/p/transactions/t/parts/1", data=lines, method="PUT")
        request.add_header("content-type", "application/x-ndjson")
        urllib.request.urlopen(request).close()
        backup(server, tmp_path / "one")
        assert server.stop() == 0
    with restored(tmp_path / "one", tmp_path / "restored") as other:
        options = call(other, "GET", "/v2/p/queues/q")["options"]
        assert (options["max_tries"], options["idempotency_window"]) == (7, 86400)
        call(other, "POST", "/v2/p/transactions/t/commit", {})
        assert bodies(other, "q") == ["staged"]


def test_killed_server_leaves_no_backup_and_releases_retained_files(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--cap", "64MiB") as server:
        publish(server, "q", *["x" * 100_000] * 100)
        with socket.create_connection(server.http) as client:  # it never reads on
            client.sendall(b"POST /v2/backup HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            assert client.recv(10)
            assert (tmp_path / "data" / ".backup").exists()
            code, said = here("backup", tmp_path / "b", "--server", server.url)
            assert code == 1
            assert "another backup is running" in said
            server.kill()
        server.restart()
        assert not (tmp_path / "data" / ".backup").exists()
        backup(server, tmp_path / "b")


def test_killed_backup_leaves_no_file(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--cap", "64MiB") as server:
        publish(server, "q", *["x" * 100_000] * 100)
        with running("backup", "b", "--server", server.url, cwd=tmp_path) as client:
            while not list(tmp_path.glob("b.partial/data/queues/*/*.seg")):
                assert client.poll() is None
        assert not (tmp_path / "b").exists()
        backup(server, tmp_path / "b")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "data", "data.log"]


def test_killed_restore_leaves_no_directory(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--cap", "64MiB") as server:
        publish(server, "q", *["x" * 100_000] * 100)
        backup(server, tmp_path / "b.tar")
    with running("restore", "b.tar", "new", cwd=tmp_path) as client:
        while not list(tmp_path.glob("new.partial/data/queues/*/*.seg")):
            assert client.poll() is None
    assert not (tmp_path / "new").exists()
    with restored(tmp_path / "b.tar", tmp_path / "new") as other:
        assert len(bodies(other, "q")) == 100


@pytest.mark.parametrize("kind", ["directory", "archive", "cut"])
def test_damaged_backup_is_reported_and_not_restored(tmp_path: Path, kind: str) -> None:
    with ServerProcess(tmp_path / "data") as server:
        publish(server, "q", "x" * 5000)
        backup(server, tmp_path / "b")
        backup(server, tmp_path / "b.tar")
    source = tmp_path / ("b" if kind == "directory" else "b.tar")
    if kind == "directory":
        (path,) = source.rglob("*.seg")
        path.write_bytes(path.read_bytes().replace(b"xxxx", b"xxyx", 1))
    else:
        data = source.read_bytes()
        source.write_bytes(data.replace(b"xxxx", b"xxyx", 1) if kind == "archive" else data[: len(data) // 2])
    code, said = here("restore", source, tmp_path / "new")
    assert code == 6
    assert "the backup can't be used" in said
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.partial").exists()


def test_archive_with_paths_outside_the_directory_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        for name in ("data/../../evil",):
            archive.addfile(tarfile.TarInfo(name))
    code, said = here("restore", tmp_path / "b.tar", tmp_path / "new")
    assert code == 6
    assert "which no data directory has" in said


def test_restore_does_not_overwrite_a_directory_with_content(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        backup(server, tmp_path / "b")
        (tmp_path / "b.tar").touch()
        for target in (tmp_path / "b", tmp_path / "b.tar"):  # nor is a backup, and no server is asked for another
            for url in (server.url, "http://127.0.0.1:1"):
                code, said = here("backup", target, "--server", url)
                assert (code, said) == (1, f"curbstone: {target} exists already; name a new one\n")
        backup(server, tmp_path / "another")
    code, said = here("restore", tmp_path / "b", tmp_path / "data")
    assert code == 1  # 6 would say that the backup is damaged
    assert said.startswith(f"curbstone: {tmp_path / 'data'} exists and is not empty")


def test_one_queue_can_be_restored_under_another_name(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        call(server, "PUT", "/v2/p/queues/q", {"max_tries": 7})
        publish(server, "q", "one", "two")
        publish(server, "other", "three")
        backup(server, tmp_path / "b")
        publish(server, "q", "later")
        command = ("restore", tmp_path / "b", tmp_path / "data", "--queue")
        assert "is in use by process" in here(*command, "p/q", "--as", "p/old")[1]
        assert server.stop() == 0
    assert here(*command, "p/q", "--as", "p/old") == (0, "")
    code, said = here(*command, "p/q", "--as", "p/old")
    assert code == 1
    assert said.startswith("curbstone: queue p/old exists in")
    assert here(*command, "p/none") == (4, "curbstone: queue p/none is not in the backup\n")
    with ServerProcess(tmp_path / "data") as server:
        assert bodies(server, "old") == ["one", "two"]
        assert bodies(server, "q") == ["one", "two", "later"]
        assert call(server, "GET", "/v2/p/queues/old")["options"]["max_tries"] == 7
        publish(server, "old", "more")
        server.kill()
        server.restart()
        assert bodies(server, "old") == ["one", "two", "more"]
    assert here("check", tmp_path / "data")[0] == 0


def test_import_restores_a_full_queue_and_keeps_delays(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        call(server, "PUT", "/v2/default/queues/q", {"cap": 1024 * 1024})
        for _ in range(42):  # a batch of `import` is not all that there is room for at the end
            call(server, "POST", "/v2/default/queues/q/messages/batch", [{"message": "x" * 4000}] * 5)
        call(server, "POST", "/v2/default/queues/q/messages/batch", [{"message": "later", "delay": 7200}])
        exported = curbstone("export", "q", "--server", server.url, cwd=tmp_path)
        call(server, "DELETE", "/v2/default/queues/q")
        for _ in range(2):
            done = curbstone("import", "--server", server.url, cwd=tmp_path, stdin=exported.raw)
            assert (done.code, done.out) == (0, "211 messages imported\n"), done.err
        info = call(server, "GET", "/v2/default/queues/q")
        assert (info["rdy"], info["delayed"]) == (210, 1)
        (later,) = call(server, "GET", "/v2/default/queues/q/messages?state=delayed")["messages"]
    assert -1000 < later["due"] - exported.json[-1]["due"] < 3_000_000, "it is due when it was, not an hour from now"


def test_import_keeps_groups_and_expiry(tmp_path: Path) -> None:
    path = "/v2/default/queues/q"
    with ServerProcess(tmp_path / "data", "--max-ttl", "90000") as server:
        call(server, "PUT", path, {"groups": ["a", "b"]})
        sent = [
            {"message": "of a", "groups": ["a"], "ttl": 3000},
            {"message": "soon over", "ttl": 3000},
            {"message": "long", "ttl": 90000},
            {"message": "plain"},
        ]
        call(server, "POST", f"{path}/messages/batch", sent)
        exported = curbstone("export", "q", "--server", server.url, cwd=tmp_path)
    options, of_a, soon, long, plain = exported.json
    assert of_a["groups"] == ["a"] and "groups" not in plain and "expiry" not in plain
    soon["expiry"] = 1  # as if the lines had been kept until it was over
    lines = "".join(f"{json.dumps(line)}\n" for line in (options, of_a, soon, long, plain)).encode()
    with ServerProcess(tmp_path / "other") as other:
        done = curbstone("import", "--server", other.url, cwd=tmp_path, stdin=lines)
        said = "3 messages imported; 1 had expired; 1 may live longer than before: --max-ttl allows no such ttl\n"
        assert (done.code, done.out) == (0, said), done.err
        there = call(other, "GET", f"{path}/messages")["messages"]
    groups = [(each["message"], each.get("groups")) for each in there]
    assert groups == [("of a", ["a"]), ("long", None), ("plain", None)]
    assert abs(there[0]["expiry"] - of_a["expiry"]) <= 1000, "not 3,000 s from now"
    assert "expiry" not in there[1]


def test_export_and_import_move_each_message_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        call(server, "PUT", "/v2/p/queues/q", {"max_tries": 7, "idempotency_window": 86400})
        call(server, "POST", "/v2/p/queues/q/messages/batch", [{"message": "a\nb", "x-lang": "en"}, {"message": "é"}])
        call(server, "PUT", "/v2/p/queues/raw", {})
        raw = [{"message": "/wA=", "encoding": "base64"}]
        call(server, "POST", "/v2/p/queues/raw/messages/batch", raw)
        exported = curbstone("export", "p/", "--server", server.url, cwd=tmp_path)
        assert exported.code == 0, exported.err
        assert [line["queue"] for line in exported.json] == ["p/q", "p/q", "p/q", "p/raw", "p/raw"]
        assert server.stop() == 0
    with ServerProcess(tmp_path / "other") as other:
        for _ in range(2):
            done = curbstone("import", "--server", other.url, cwd=tmp_path, stdin=exported.raw)
            assert (done.code, done.out) == (0, "3 messages imported\n"), done.err
        options = call(other, "GET", "/v2/p/queues/q")["options"]
        assert (options["max_tries"], options["idempotency_window"]) == (7, 86400)
        again = curbstone("export", "p/q", "p/raw", "--server", other.url, cwd=tmp_path)
    kept = ("queue", "message", "encoding", "x-lang", "options")
    assert [{name: line.get(name) for name in kept} for line in again.json] == [
        {name: line.get(name) for name in kept} for line in exported.json
    ]


def test_backup_and_restore_report_their_results(tmp_path: Path) -> None:
    """A restore, and a backup in an archive, were silent, so that nobody saw whether anything was in it."""
    with ServerProcess(tmp_path / "data") as server:
        publish(server, "q", "one")
        publish(server, "other", "two")
        for name in ("b", "b.tar"):
            code, out, said = run("backup", tmp_path / name, "--server", server.url)
            assert (code, said) == (0, "")
            sizes = sizes_in(tmp_path / "b" / "data")
            assert out == f"2 queues, {len(sizes)} files, {sum(sizes)} bytes in {tmp_path / name}\n"
    figures = f"2 queues, {len(sizes)} files, {sum(sizes)} bytes"
    for number, name in enumerate(("b", "b.tar")):
        command = ("restore", tmp_path / name, tmp_path / f"new{number}")
        assert run(*command) == (0, f"{figures} restored to {tmp_path / f'new{number}'}\n", "")
    code, out, _ = run("restore", tmp_path / "b", tmp_path / "new2", "--json")
    index = json.loads(out)
    assert (code, index["queues"], index["files"], index["bytes"]) == (0, 2, len(sizes), sum(sizes))


def test_restore_of_one_queue_reports_its_result(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        publish(server, "q", "one")
        publish(server, "other", "two")
        backup(server, tmp_path / "b")
    command = ("restore", tmp_path / "b", tmp_path / "new", "--queue", "p/q")
    code, out, said = run(*command)
    sizes = sizes_in(tmp_path / "new" / "queues")
    figures = f"1 queue, {len(sizes)} files, {sum(sizes)} bytes"
    assert (code, out, said) == (0, f"{figures} restored as p/q in {tmp_path / 'new'}\n", "")
    code, out, said = run(*command, "--as", "p/old", "--json")
    assert (code, said) == (0, "")
    added = sum(sizes_in(tmp_path / "new" / "queues")) - sum(sizes)
    assert json.loads(out) == {"queue": "p/old", "queues": 1, "files": len(sizes), "bytes": added}


def sizes_in(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


def test_import_reserves_unique_names_again_and_loses_no_message(tmp_path: Path) -> None:
    path = "/v2/default/queues/q"
    sent = [{"message": "1", "unique": "a", "unique_until": "delivered"}, {"message": "2", "unique": "b"}]
    with ServerProcess(tmp_path / "data") as server:
        call(server, "PUT", path, {})
        call(server, "POST", f"{path}/messages/batch", sent)
        call(server, "POST", f"{path}/messages/lease", {})
        call(server, "POST", f"{path}/messages/batch", [{"message": "3", "unique": "a"}])
        exported = curbstone("export", "q", "--server", server.url, cwd=tmp_path)
    with ServerProcess(tmp_path / "other") as other:
        call(other, "PUT", path, {})
        call(other, "POST", f"{path}/messages/batch", [{"message": "here", "unique": "b"}])
        done = curbstone("import", "--server", other.url, cwd=tmp_path, stdin=exported.raw)
        said = "2 messages imported; 1 left out, because others with their unique names are not settled\n"
        assert (done.code, done.out) == (0, said), done.err
        there = call(other, "GET", f"{path}/messages")["messages"]
    assert [(each["message"], each.get("unique")) for each in there] == [("here", "b"), ("1", "a"), ("3", None)]
