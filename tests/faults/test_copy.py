"""A copy of the directory, made while the server works in it, is started from: a backup as people make them."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from tests.crash.killable import HANG_S
from tests.crash.stomp_peer import HungUp, StompPeer, encode
from tests.faults.witness import QUEUE, Witness, call
from tests.kit.commands import curbstone
from tests.kit.server import ServerProcess
from tests.kit.waiting import wait_until

COPIES = 4


def copy_now(source: Path, to: Path) -> None:
    """Copy as `cp -r` does, past files that go meanwhile."""
    for path in sorted(source.rglob("*")):
        target = to / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(path, target)
        except FileNotFoundError:
            continue


def test_copy_under_load_has_everything_confirmed_before_it(tmp_path: Path) -> None:
    """Nothing is settled meanwhile: then no file goes. For more, stop the server or take a snapshot of the disk."""
    with ServerProcess(tmp_path / "data", "--cap=32MiB", "--log-level=error") as server:
        witness = Witness(server)
        over = threading.Event()
        done = 0

        def load() -> None:
            nonlocal done
            with witness.connect() as peer:
                while not over.is_set():
                    try:
                        done += witness.publish(peer, 20, 2000)
                    except HungUp:
                        return

        thread = threading.Thread(target=load)
        thread.start()
        before = []
        try:
            for number in range(COPIES):
                while done < 100 * (number + 1):
                    over.wait(0.01)
                before.append(done)
                copy_now(server.data_dir, tmp_path / f"copy{number}" / "data")
        finally:
            over.set()
            thread.join()
    for number, least in enumerate(before):
        copy = tmp_path / f"copy{number}"
        with ServerProcess(copy / "data", "--cap=32MiB", "--log-level=error") as again:
            rdy = call(again, f"/v2/{QUEUE.replace('/', '/queues/')}")[1]["rdy"]
            assert rdy >= least, f"{least} were confirmed before the copy, {rdy} are in it"
            got = curbstone("recv", QUEUE, f"--count={least}", "--server", again.url, cwd=tmp_path)
            assert [line.split(".")[0] for line in got.out.splitlines()] == [f"w{n + 1}" for n in range(least)]
            assert "Traceback" not in again.log


def test_copy_without_redo_files_is_complete_after_a_second(tmp_path: Path) -> None:
    """They share a sync, in a redo file; somebody may copy the files in an order that has the wrong one of those."""
    names = [f"q{number}" for number in range(20)]
    with ServerProcess(tmp_path / "data", "--cap=32MiB", "--log-level=error") as server:
        with StompPeer(server.stomp, HANG_S) as peer:
            for turn in ("first", "second"):
                frames = [
                    encode("SEND", {"destination": f"/queue/{name}"}, f"{turn} {name}".encode()) for name in names
                ]
                peer.send(b"".join(frames[:-1]))
                assert peer.call("SEND", {"destination": f"/queue/{names[-1]}"}, f"{turn} {names[-1]}".encode())
        assert list(server.data_dir.glob("redo.*")), "nothing was shared"

        def are_written() -> bool:
            contents = b"".join(path.read_bytes() for path in server.data_dir.rglob("*.seg"))
            return all(f"second {name}".encode() in contents for name in names)

        wait_until(are_written, "the segments")
        copy_now(server.data_dir, tmp_path / "copy" / "data")
    for path in (tmp_path / "copy" / "data").glob("redo.*"):
        path.unlink()
    with ServerProcess(tmp_path / "copy" / "data", "--cap=32MiB", "--log-level=error") as again:
        for name in names:
            assert call(again, f"/v2/default/queues/{name}")[1]["rdy"] == 2
