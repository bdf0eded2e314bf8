"""The history of the charts, on a simulated disk and clock: what is recorded, what survives, and what damage does."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from curbstone import charts
from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.names import queue_name
from curbstone.core.snapshots.snapshot import contents
from curbstone.gateway.resources.metrics import recorder as recording
from curbstone.gateway.resources.metrics.chart_file import (
    DAY,
    FILE_BYTES,
    HOUR,
    QUEUES_MAX,
    ROW_BYTES,
    SERVER,
    Ring,
    TimeSeries,
    encode_row,
    means,
    read_series,
)
from curbstone.gateway.resources.metrics.recorder import Recorder
from tests.kit.lab import Lab
from tests.kit.simulated import SimDisk

READY, PUBLISHED = "messages_ready", "messages_published_per_second"


class Recorded(Lab):
    """A lab that records."""

    recorder: Recorder

    def start(self, wall_ms: int) -> None:
        super().start(wall_ms)
        recorder = charts.recorder(self.broker, OpenAuthenticator(self.broker, self.host), self.host)
        assert recorder is not None
        recorder.start()
        self.recorder = recorder
        self.settle()

    def shutdown(self) -> None:
        self.recorder.stop()
        super().shutdown()

    def course(self, uid: str = SERVER, ring: Ring = HOUR, steps: int = 6) -> TimeSeries:
        """Return the last steps of a series."""
        last_s = ring.last(self.host.wall_ms() / 1000)
        times = range(last_s - (steps - 1) * ring.step_s, last_s + 1, ring.step_s)
        error, (course,) = self.answer(lambda done: self.recorder.read(ring, times, [uid], done))
        assert error is None
        found: TimeSeries = course
        return found

    def steps(self, count: int) -> None:
        """Let so many steps of 10 s pass."""
        self.pass_time(10_000 * count)


def test_depths_and_rates_are_recorded_every_ten_seconds_and_each_minute() -> None:
    lab = Recorded()
    queue = lab.queue()
    lab.pass_time(60_000 - lab.host.wall_ms() % 60_000)
    for _ in range(12):
        lab.publish(queue, *"12345")
        lab.steps(1)
    for uid in (queue.uid, SERVER):
        course = lab.course(uid, steps=3)
        assert course[READY] == [50, 55, 60] and course[PUBLISHED] == [0.5, 0.5, 0.5]
        assert course["messages_delivered_per_second"] == [0, 0, 0]
        assert lab.course(uid, DAY, 2) == {**lab.course(uid, DAY, 2), READY: [17.5, 47.5], PUBLISHED: [0.5, 0.5]}


def test_recorder_survives_restarts_with_gaps_at_most() -> None:
    for how in ("shutdown", "kill", "power"):
        for seed in range(20):
            lab = Recorded(seed=seed)
            queue = lab.queue()
            lab.publish(queue, "x")
            lab.steps(12)
            lab.restart(how)
            found = lab.course(queue.uid, steps=30)[READY]
            assert set(found) <= {None, 1} and (how == "power" or found.count(1) >= 11), (how, seed, found)


@pytest.mark.parametrize("damage", ["cut", "garbage", "larger", "flipped"])
def test_damaged_recorder_file_is_reused(damage: str) -> None:
    lab = Recorded()
    queue = lab.queue()
    lab.publish(queue, "x")
    lab.steps(12)
    cache = lab.disk.names[charts.NAME].cache
    if damage == "cut":
        del cache[100:]
    elif damage == "larger":
        cache.extend(bytes(FILE_BYTES))
    elif damage == "garbage":
        cache[:] = Random(0).randbytes(FILE_BYTES)
    else:
        for place in range(20, len(cache), ROW_BYTES):
            cache[place] ^= 1
    lab.restart("kill")
    assert set(lab.course(queue.uid)[READY]) <= {None, 1.0}
    lab.steps(3)
    assert lab.course(queue.uid, steps=2)[READY] == [1, 1]
    assert len(lab.disk.names[charts.NAME].cache) <= FILE_BYTES <= 16 << 20


def test_unopenable_recorder_file_is_logged_once_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = SimDisk.open

    def failing(disk: SimDisk, path: str, *, create: bool = False) -> Any:
        if path == charts.NAME:
            raise IsADirectoryError(21, "Is a directory")
        return opened(disk, path, create=create)

    with monkeypatch.context() as patch:
        patch.setattr(SimDisk, "open", failing)
        lab = Recorded()
        lab.steps(3)
        assert lab.course()[READY] == [None] * 6
    assert [record.getMessage() for record in caplog.records].count(
        "the history of the charts can't be kept: [Errno 21] Is a directory; trying again"
    ) == 1
    lab.steps(2)
    assert lab.course(steps=1)[READY] == [0]


@pytest.mark.parametrize("jump_s", [-86_400, -3600, -7, 7, 3600, 864_000])
def test_clock_jump_makes_gaps_and_no_wrong_values(jump_s: int) -> None:
    lab = Recorded()
    queue = lab.queue()
    lab.publish(queue, "x")
    lab.steps(12)
    lab.host.wall_offset_ms += 1000 * jump_s
    lab.steps(12)
    found = lab.course(queue.uid, steps=12)[READY]
    assert set(found) <= {None, 1.0} and found[-6:] == [1] * 6
    assert all(rate is None or rate <= 0.1 for rate in lab.course(queue.uid, steps=360)[PUBLISHED])


def test_busiest_queues_are_recorded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "QUEUES_MAX", 3)
    lab = Recorded()
    queues = [lab.queue(f"q{number}") for number in range(5)]
    lab.pass_time(60_000 - lab.host.wall_ms() % 60_000)
    for _ in range(6):
        for queue in queues[2:]:
            lab.publish(queue, "x")
        lab.steps(1)
    assert not any(rate and rate > 0.1 for rate in lab.course(queues[4].uid)[PUBLISHED]), "no rate since the start"
    lab.steps(3)
    recorded = [lab.course(queue.uid, steps=1)[READY] != [None] for queue in queues]
    assert recorded == [False, False, True, True, True]
    assert lab.course(steps=1)[READY] == [18], "the server counts all"


def test_record_row_distinguishes_all_recorded_queues(lab: Lab) -> None:
    file = lab.disk.open("rows", create=True)
    series = {f"q{number}": (float(number),) * 6 for number in range(QUEUES_MAX)} | {SERVER: (0.5,) * 6}
    row = encode_row(1_000_000_000, series)
    assert len(row) <= ROW_BYTES
    file.write(HOUR.place(1_000_000_000), [row])
    courses = read_series(file, HOUR, range(1_000_000_000, 1_000_000_011, 10), [*series, "other"])
    assert [course[READY] for course in courses] == [*[[values[0], None] for values in series.values()], [None, None]]


def test_mean_uses_only_known_values() -> None:
    nan = float("nan")
    assert means([{"q": (1.0, nan)}, {"q": (2.0, 5.0)}, {}])["q"] == (1.5, 5.0)


def test_backup_excludes_the_recorder_file() -> None:
    lab = Recorded()
    lab.queue()
    lab.steps(2)
    assert charts.NAME in lab.disk.names
    assert charts.NAME not in {each.path for each in contents(lab.broker)}


def test_queue_deleted_during_recording_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "SLICE", 1)
    lab = Recorded()
    first, second = lab.queue("a"), lab.queue("b")
    lab.publish(first, "x")
    lab.pass_time(10_000 - lab.host.wall_ms() % 10_000 - 1)
    lab.host.pass_time(1)  # the first slice
    lab.broker.delete(queue_name("b"), lambda _: None)
    lab.settle()
    assert second.is_closed
    lab.steps(1)
    assert lab.course(first.uid, steps=2)[READY] == [1, 1]
