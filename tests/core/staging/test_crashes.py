"""Staged transactions and crashes: at every call of the disk, and at random, with whatever else continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from curbstone.core.errors import AlreadyCommitted, CurbstoneError, NoSuchTransaction
from curbstone.core.staging import apply
from tests.core.staging.lab import commit, stage, staged_files, state
from tests.kit.lab import Lab, Peer, numbered
from tests.kit.simulated import Crash

CAP = 256 * 1024
PARTS = {
    "0": {"a": numbered(60, 700), "b": numbered(5, 100)},
    "1": {"b": [b"large" * 4000], "a": [b"last"]},
}
WANTED = {
    "a": [*numbered(60, 700), b"last"],
    "b": [*numbered(5, 100), b"large" * 4000],
}


def everything(lab: Lab) -> dict[str, list[bytes]]:
    return {name: lab.bodies(name) for name in WANTED}


NOTHING: dict[str, list[bytes]] = {"a": [], "b": []}


def run(lab: Lab, identifier: str = "t") -> None:
    """What a client does that does not know how far it got: commit; where nothing is there, stage first."""
    try:
        error, _, _ = commit(lab, identifier, sorted(PARTS), passing_ms=60_000)
    except NoSuchTransaction:
        for part, contents in PARTS.items():
            stage(lab, identifier, part, contents, per_frame=7)
        error, _, _ = commit(lab, identifier, sorted(PARTS), passing_ms=60_000)
    assert error is None


def calls_of(action: Callable[[Lab], None]) -> int:
    """Return how many calls of the disk an action makes."""
    lab = prepared(0)
    before = lab.disk.ops
    action(lab)
    return lab.disk.ops - before


def prepared(seed: int) -> Lab:
    lab = Lab(seed=seed, cap=CAP)
    for name in WANTED:
        lab.queue(name)
    return lab


@pytest.mark.parametrize(
    ("how", "window", "identifier"),
    [
        ("power", apply.WINDOW_BYTES, "t"),
        ("power", 2000, "t"),
        ("power", apply.WINDOW_BYTES, "series@7"),
        ("kill", 2000, "series@7"),
    ],
)
def test_crash_at_any_disk_call_is_atomic_and_the_client_can_finish(
    how: str, window: int, identifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "WINDOW_BYTES", window)
    monkeypatch.setattr(apply, "AHEAD_BYTES", 2 * window)
    count = calls_of(run)
    assert count > 40
    seen = Counter[str]()
    for crash_in in range(count):
        lab = prepared(crash_in)
        lab.disk.crash_in = crash_in
        with suppress(Crash):  # with another order of jobs it may take some calls less
            run(lab, identifier)
            assert crash_in > count // 2
            continue
        lab.disk.crash_in = -1
        lab.restart(how)
        lab.pass_time(5000)
        found = everything(lab)
        assert found in (NOTHING, WANTED), f"crash in {crash_in}"
        before = state(lab, identifier)
        seen[before] += 1
        assert (found == WANTED) == (before == "committed"), f"crash in {crash_in}: {before}"
        run(lab, identifier)
        assert everything(lab) == WANTED, f"crash in {crash_in}"
        lab.restart("power")
        assert everything(lab) == WANTED, f"crash in {crash_in}"
        assert commit(lab, identifier)[:2] == (None, True)
        assert commit(lab, "series@6" if "@" in identifier else "t")[:2] == (None, True)
        assert not staged_files(lab) and lab.broker.staging.bytes == 0
        assert all(not queue.log.room.notes_bytes and queue.log.room.reserved == 0 for queue in lab.broker.queues())
    assert set(seen) == {"", "staged", "committed"}, seen


def test_crashes_during_recovery_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "WINDOW_BYTES", 2000)
    for crash_in in range(10, calls_of(run), 3):
        lab = prepared(crash_in)
        lab.disk.crash_in = crash_in
        with suppress(Crash):  # with another order of jobs it may take some calls less
            run(lab)
            assert crash_in > 20
        for again in (1, 4, 2, 9, 6, 3):
            lab.disk.crash()
            lab.disk.crash_in = again
            try:
                lab.start(lab.host.wall_ms() + 1000)
                lab.pass_time(1000)
            except Crash:
                continue
        lab.disk.crash_in = -1
        lab.restart("power")
        lab.pass_time(5000)
        assert everything(lab) in (NOTHING, WANTED), f"crash in {crash_in}"
        run(lab)
        assert everything(lab) == WANTED, f"crash in {crash_in}"


def test_restart_at_any_turn_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "WINDOW_BYTES", 2000)
    for turns in range(0, 150, 2):
        lab = prepared(turns)
        for part, contents in PARTS.items():
            stage(lab, "t", part, contents, per_frame=7)
        answers: list[tuple[CurbstoneError | None, bool, int]] = []
        lab.broker.staging.commit(
            "default", "t", sorted(PARTS), lambda *given, reported=answers: reported.append(given)
        )
        for _ in range(turns):
            lab.host.turn()
            lab.host.work()
        lab.shutdown()
        assert len(answers) == 1
        lab.start(lab.host.wall_ms() + 1000)
        lab.pass_time(5000)
        assert everything(lab) in (NOTHING, WANTED), f"{turns} turns"
        run(lab)
        assert everything(lab) == WANTED, f"{turns} turns"


@pytest.mark.parametrize("seed", range(12))
def test_marks_outlive_their_segments_while_the_transaction_is_unfinished(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other producers and consumers turn the whole log over between two chunks; then the power fails."""
    monkeypatch.setattr(apply, "WINDOW_BYTES", 4000)
    monkeypatch.setattr(apply, "AHEAD_BYTES", 8000)
    lab = Lab(seed=seed, cap=128 * 1024)
    queue = lab.queue("a")
    mine = [b"mine %d " % number + b"x" * 900 for number in range(40)]
    stage(lab, "t", "0", {"a": mine})
    lab.broker.staging.commit("default", "t", None, lambda *_given: None)
    while not _in_log(lab):
        lab.host.turn()
        lab.host.work()
    (unfinished,) = lab.broker.staging._applications
    unfinished.stop()
    lab.settle()
    done = _in_log(lab)
    assert 0 < done < len(mine)
    popped = lab.pop_all(queue)
    first = queue.log.segments[0].number
    while queue.log.segments[0].number < first + 20:
        lab.publish(queue, b"other" * 500)
        lab.pop(queue)
    lab.restart("power")
    lab.pass_time(5000)
    queue = lab.named("a")
    left = [body for body in lab.bodies(queue) if body.startswith(b"mine")]
    assert popped + left == mine
    assert state(lab, "t") == "committed"


def _in_log(lab: Lab) -> int:
    """Return how many messages of the one transaction that is being applied are in the log of queue a."""
    facts = lab.named("a").facts
    return sum(facts.staged(application.marker.number) for application in lab.broker.staging._applications)


@pytest.mark.parametrize("seed", range(60))
def test_random_histories_arrive_exactly_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random transactions, others' messages, consumers, failing disks and crashes; the seed is the whole history."""
    dice = Random(seed)
    print("seed", seed)
    monkeypatch.setattr(apply, "WINDOW_BYTES", dice.choice([1000, 8000, 512 * 1024]))
    lab = Lab(seed=seed, cap=CAP)
    names = ["a", "b", "c"]
    for name in names:
        lab.queue(name)
    settled: dict[str, Counter[bytes]] = {name: Counter() for name in names}
    wanted: dict[str, Counter[bytes]] = {name: Counter() for name in names}
    for number in range(6):
        _one_transaction(lab, dice, number, names, wanted, settled)
        for name in names:
            if dice.random() < 0.7:
                _consume(lab, name, dice, settled[name])
    for name in names:
        found = Counter(lab.bodies(name))
        assert found + settled[name] == wanted[name], name


def _one_transaction(
    lab: Lab,
    dice: Random,
    number: int,
    names: list[str],
    wanted: dict[str, Counter[bytes]],
    settled: dict[str, Counter[bytes]],
) -> None:
    # A process that is killed after a sync that failed leaves what only the system's memory has, and no sync brings to
    # the disk any more: nobody can tell. So it is one or the other.
    fails = number % 2 == 0
    parts: dict[str, dict[str, list[bytes]]] = {}
    for part in range(dice.randrange(1, 4)):
        contents = parts[str(part)] = {}
        for name in dice.sample(names, dice.randrange(1, 4)):
            sizes = [dice.choice([10, 300, 3000]) for _ in range(dice.randrange(1, 12))]
            contents[name] = [
                b"%d %d %s %d " % (number, part, name.encode(), n) + b"x" * s for n, s in enumerate(sizes)
            ]
            wanted[name].update(contents[name])
    for _ in range(100):
        if dice.random() < 0.5:
            lab.disk.crash_in = dice.randrange(60)
        lab.disk.eio_chance = dice.choice([0, 0, 0.1]) if fails else 0
        try:
            if _try_once(lab, f"t{number}", parts, dice):
                lab.disk.crash_in = -1
                lab.disk.eio_chance = 0.0
                lab.pass_time(3000)
                if fails:
                    lab.restart("power")
                return
        except Crash:
            lab.restart("power" if fails else dice.choice(["power", "kill"]))
        lab.disk.crash_in = -1
        lab.disk.eio_chance = 0.0
        lab.pass_time(3000)
        for name in names:  # what has no room gets some
            _consume(lab, name, dice, settled[name])
    raise AssertionError("it never got there")


def _try_once(lab: Lab, identifier: str, parts: dict[str, dict[str, list[bytes]]], dice: Random) -> bool:
    try:
        for part, contents in parts.items():
            stage(lab, identifier, part, contents, per_frame=dice.randrange(1, 9))
        error, _, _ = commit(lab, identifier, list(parts), passing_ms=60_000)
    except AlreadyCommitted:
        return True
    except CurbstoneError:
        return False
    return error is None


def _consume(lab: Lab, name: str, dice: Random, settled: Counter[bytes]) -> None:
    peer = Peer(lab, lab.named(name), window=dice.randrange(1, 60))
    seqs = list(peer.consumer.unsettled)
    if seqs:
        bodies = [peer.consumer.unsettled[seq].message.body for seq in seqs]
        peer.ack(*seqs)
        settled.update(bodies)
    peer.close()
