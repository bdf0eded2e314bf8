"""The real process, killed at its Nth call to the disk, or with calls that fail, and then judged.

In the quick run a sample of the calls, under `-m soak` every one of a short fixed workload. After each fault the server
is started without a tracer, everything is drained, and the history must be flawless.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.crash.directory import bytes_at_rest
from tests.crash.history import Answered, History, Sent
from tests.crash.killable import HANG_S, KillableServer, Stuck
from tests.crash.producers import VALUE
from tests.crash.stomp_peer import StompPeer, encode
from tests.crash.tracer import CALLS, TracedServer, took_effect
from tests.crash.workload import CAP, A, B, ServerDied, Worker, do_all, drain
from tests.kit.server import NotReady, ServerProcess

pytestmark = pytest.mark.usefixtures("strace")

OPTIONS = (f"--cap={CAP}", "--max-message-size=4096", "--log-level=warning")
REOPEN_ROUNDS = 4
POLL_S = 0.02


class Runs:
    """The boots of one data directory under test, with the record of what happened in them."""

    def __init__(self, data_dir: Path, history: History | None = None, name: str = "first") -> None:
        self.data_dir = data_dir
        self.history = history or History()
        self.name = name
        self.died = False

    def run(self, inject: str, rounds: Callable[[Worker], None], first_boot: int = 1) -> TracedServer | None:
        """Do a workload under strace and kill the server, if it does not die by itself."""
        try:
            process = TracedServer(self.data_dir, *OPTIONS, inject=inject)
        except NotReady as error:  # killed, or a clear word of what failed
            assert error.code == -9 or "Traceback" not in error.log, error
            self.died = True
            return None
        server = KillableServer(process, first_boot)
        worker = Worker(server, self.history, self.name)
        try:
            rounds(worker)
        except ServerDied:
            self.died = True
        finally:
            worker.close()
            process.kill()
        assert "Traceback" not in process.log, process.log
        return process

    def judge(self, first_boot: int = 2) -> str:
        """Recover without a tracer, drain, and check everything; return the figures."""
        for uid, size in bytes_at_rest(self.data_dir).items():
            assert size <= CAP, f"{uid} holds {size} bytes"
        with ServerProcess(self.data_dir, *OPTIONS) as process:
            server = KillableServer(process, first_boot)
            server.check_health()
            with closing(Worker(server, self.history, f"{self.name} after")) as worker:
                drain(worker)
                assert worker.send(A, 1000)
                assert worker.send(B, 0)
                drain(worker)
            verdict = self.history.judge()
            verdict.check()
        assert "Traceback" not in process.log, process.log
        return verdict.figures()


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How many calls of each kind the workload makes when nothing fails."""
    boots = Runs(tmp_path_factory.mktemp("clean") / "data")
    process = boots.run("", do_all)
    assert process is not None
    made = process.calls_made()
    print(made, boots.judge())
    assert all(made[kind] for kind in CALLS if kind != "truncate"), made
    return made


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, History]:
    """A directory that a killed server left behind, and what happened in it."""
    boots = Runs(tmp_path_factory.mktemp("used") / "data", name="before")
    boots.run("", do_all)
    return boots.data_dir, boots.history


def sample(kind: str, most: int, size: int) -> list[int]:
    """Return some numbers from 1 to `most`, the same in every run."""
    rng = Random(kind)
    return sorted(rng.sample(range(1, most + 1), min(size, most)))


def kill_in_fresh_directory(tmp_path: Path, kind: str, number: int) -> bool:
    """Kill the server at its Nth call of a kind and judge what came of it; return whether it came so far."""
    boots = Runs(tmp_path / f"{kind}-{number}" / "data")
    boots.data_dir.parent.mkdir()
    boots.run(f"{CALLS[kind]}:signal=KILL:when={number}", do_all)
    figures = boots.judge()
    print(f"killed at {kind} {number}: {figures if boots.died else 'not reached'}")
    shutil.rmtree(boots.data_dir.parent)
    return boots.died


def kill_in_used_directory(tmp_path: Path, used: tuple[Path, History], kind: str, number: int) -> bool:
    """The same in a directory that has a past: the first calls are those of the recovery."""
    boots = Runs(tmp_path / f"{kind}-{number}" / "data", History(used[1]), "second")
    shutil.copytree(used[0], boots.data_dir)
    boots.run(f"{CALLS[kind]}:signal=KILL:when={number}", lambda worker: do_all(worker, REOPEN_ROUNDS), first_boot=2)
    figures = boots.judge(first_boot=3)
    print(f"killed at {kind} {number} of a reopening: {figures if boots.died else 'not reached'}")
    shutil.rmtree(boots.data_dir.parent)
    return boots.died


@pytest.mark.parametrize(("kind", "size"), [("sync", 3), ("write", 3), ("remove", 2), ("rename", 2), ("sync_dir", 1)])
def test_killed_at_a_call(tmp_path: Path, counts: Counter[str], kind: str, size: int) -> None:
    reached = [kill_in_fresh_directory(tmp_path, kind, number) for number in sample(kind, counts[kind], size)]
    assert any(reached)


@pytest.mark.parametrize(("kind", "number"), [("sync", 1), ("write", 2), ("truncate", 2), ("remove", 1)])
def test_killed_at_a_call_after_reopening(tmp_path: Path, used: tuple[Path, History], kind: str, number: int) -> None:
    assert kill_in_used_directory(tmp_path, used, kind, number)


@pytest.mark.soak
@pytest.mark.parametrize("kind", CALLS)
def test_killed_at_every_call(tmp_path: Path, counts: Counter[str], kind: str) -> None:
    reached = [kill_in_fresh_directory(tmp_path, kind, number) for number in range(1, counts[kind] + 1)]
    assert sum(reached) >= len(reached) - 3  # what is grouped into one commit can differ a little


@pytest.mark.soak
@pytest.mark.parametrize("kind", CALLS)
def test_killed_at_every_call_after_reopening(tmp_path: Path, used: tuple[Path, History], kind: str) -> None:
    for number in count(1):
        if not kill_in_used_directory(tmp_path, used, kind, number):
            break


# --- calls that fail


def failing_once(tmp_path: Path, kind: str, error: str, number: int) -> tuple[bool, bool]:
    """Have one call fail and judge what came of it; return whether it failed, and whether the server reported it."""
    boots = Runs(tmp_path / f"{kind}-{number}" / "data")
    boots.data_dir.parent.mkdir()
    process = boots.run(f"{CALLS[kind]}:error={error}:when={number}", do_all)
    assert process is None or not boots.died
    has_failed = took_effect(boots.data_dir)
    is_reported = process is None or "failed" in process.log
    print(f"{kind} {'failed' if has_failed else 'was to fail'} with {error} at {number}: {boots.judge()}")
    shutil.rmtree(boots.data_dir.parent)
    return has_failed, is_reported


def test_interrupted_calls_are_retried(tmp_path: Path, counts: Counter[str]) -> None:
    """EINTR, as a signal causes it, at each call of a kind now and then: it is made again, and nobody notices."""
    for kind in ("sync", "write", "truncate", "sync_dir"):
        boots = Runs(tmp_path / kind / "data")
        boots.data_dir.parent.mkdir()
        process = boots.run(f"{CALLS[kind]}:error=EINTR:when=2+3", do_all)
        assert process is not None and not boots.died and "failed" not in process.log
        assert took_effect(boots.data_dir), f"no {kind} was interrupted"
        boots.judge()


def test_recovery_killed_again_and_again_completes(tmp_path: Path, used: tuple[Path, History]) -> None:
    boots = Runs(tmp_path / "data", History(used[1]), "second")
    shutil.copytree(used[0], boots.data_dir)
    faults = [("truncate", 1), ("sync", 1), ("remove", 1), ("write", 1), ("sync", 2), ("sync_dir", 1)]
    for boot, (kind, number) in enumerate(faults, start=2):
        boots.name, boots.died = f"boot {boot}", False
        boots.run(f"{CALLS[kind]}:signal=KILL:when={number}", lambda worker: do_all(worker, 1), first_boot=boot)
        assert boots.died, f"there was no {kind} {number}"
    print(boots.judge(first_boot=2 + len(faults)))


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.soak)])
def test_disk_that_hangs_stops_only_confirms(tmp_path: Path, seconds: int) -> None:
    """While a sync hangs, heart-beats and health continue, also for those who wait; then all is confirmed."""
    for hangs_s in (seconds, 30):  # a busy machine may need longer to see what continues
        most, beats = while_it_hangs(Runs(tmp_path / f"data {hangs_s}"), hangs_s)
        if min(most, beats) > 10:
            break
    assert most > 10, "the disk did not hang, or everything hung with it"
    assert beats > 10


def while_it_hangs(boots: Runs, seconds: int) -> tuple[int, int]:
    """Publish while a sync takes so long; return how often health was told meanwhile, and how many heart-beats came."""
    inject = f"{CALLS['sync']}:delay_enter={seconds * 1_000_000}:when=12"
    with TracedServer(boots.data_dir, *OPTIONS, inject=inject) as process:
        server = KillableServer(process)
        most = 0
        with StompPeer(process.stomp, HANG_S, heart_beat="0,100") as peer:
            for number in range(15):
                sent = Sent(str(number), A, b"x" * 100, "slow", "")
                boots.history.append(sent)
                headers = {"destination": f"/queue/{A}", "receipt": sent.value, VALUE: sent.value}
                peer.send(encode("SEND", headers, sent.body))
                answered = 0
                while True:
                    try:
                        if peer.read(0.05):
                            break
                    except TimeoutError:
                        pass
                    assert server.get("/healthz")[0] == 200
                    answered += 1
                most = max(most, answered)
                boots.history.append(Answered(sent.value, True))
            beats = peer.beats
        process.kill()
    assert took_effect(boots.data_dir), "no sync took long"
    print(boots.judge())
    return most, beats


FAILURES = [("sync", "EIO"), ("write", "ENOSPC"), ("write", "EIO")]


@pytest.mark.parametrize(("kind", "error"), FAILURES)
def test_call_fails_once(tmp_path: Path, counts: Counter[str], kind: str, error: str) -> None:
    numbers = sample(f"{kind} {error}", counts[kind], 2)
    assert any([all(failing_once(tmp_path, kind, error, number)) for number in numbers])


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "error"), [*FAILURES, ("truncate", "EIO"), ("remove", "EIO"), ("rename", "EIO")])
def test_every_call_fails_once(tmp_path: Path, counts: Counter[str], kind: str, error: str) -> None:
    failed = [failing_once(tmp_path, kind, error, number)[0] for number in range(1, counts[kind] + 1)]
    assert sum(failed) >= len(failed) - 3  # what is grouped into one commit can differ a little


@pytest.fixture
def broken_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[TracedServer, Runs]]:
    """A server in the middle of its work whose disk fails from some call on, until it is healed."""
    kind, error = request.param
    boots = Runs(tmp_path / "data")
    process = TracedServer(boots.data_dir, *OPTIONS, inject=f"{CALLS[kind]}:error={error}:when=25+")
    try:
        yield process, boots
    finally:
        process.kill()


def readiness(server: KillableServer, wanted: int) -> list[str]:
    """Wait until /readyz answers with a status, and return the reasons it gives."""
    for _ in range(int(HANG_S / POLL_S)):
        status, said = server.get("/readyz")
        assert status in (200, 503)
        if status == wanted:
            return list(said.get("reasons", []))
        threading.Event().wait(POLL_S)
    raise Stuck(f"/readyz does not become {wanted}")


@pytest.mark.parametrize("broken_disk", FAILURES, indirect=True, ids="-".join)
def test_disk_that_fails_from_now_on_is_reported_and_recovers(broken_disk: tuple[TracedServer, Runs]) -> None:
    process, boots = broken_disk
    server = KillableServer(process)
    worker = Worker(server, boots.history, boots.name)
    confirmed = 0
    while worker.send(A, 500):
        confirmed += 1
        assert confirmed < 100
    assert took_effect(boots.data_dir)
    reasons = readiness(server, 503)
    assert any(f"queue {A}" in reason for reason in reasons), reasons
    for _ in range(3):
        assert not worker.send(A, 500)
        assert worker.post(A, 500) in (503, 507)
    assert server.get("/healthz")[0] == 200
    worker.collect()
    if worker.held:  # reading continues; settling does not
        assert not worker.ack(list(worker.held)[:3])
    process.heal()
    assert readiness(server, 200) == []
    assert worker.send(A, 500)
    assert worker.post(A, 500) == 201
    do_all(worker, 2)
    worker.close()
    process.kill()
    print(boots.judge())
