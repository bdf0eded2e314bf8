"""When a confirm may leave a server with a standby, state by state."""

from __future__ import annotations

from curbstone.standby.barrier import ACK_TIMEOUT_MS, BarrierState, StandbyBarrier
from curbstone.standby.frames import Decoder, InSync, Kind
from curbstone.standby.stream import Cursor, Stream

PATIENCE_MS = 10_000


class Pair:
    """A barrier whose clock is the test's, and what its standby would receive."""

    def __init__(self, *, is_alone: bool = False, patience_ms: int | None = PATIENCE_MS) -> None:
        self.now_ms = 0
        self.looked = 0
        self.stream = Stream(lambda: self.now_ms)
        self.barrier = StandbyBarrier(
            self.stream,
            lambda: self.now_ms,
            self.wake,
            patience_ms=patience_ms,
            syncs_always=True,
            is_alone=is_alone,
        )
        self.cursor: Cursor = self.stream.begin(lambda _is_urgent: None)

    def standing(self) -> BarrierState:
        return self.barrier.state

    def wake(self) -> None:
        self.looked += 1

    def write(self) -> int:
        """Change something in a job; return its mark."""
        self.barrier.begin()
        self.stream.write("a", 0, [b"x"])
        return self.barrier.end()

    def pass_time(self, ms: int) -> bool:
        self.now_ms += ms
        return self.barrier.tick()

    def said(self) -> list[int]:
        """Return what the standby was sent of its state."""
        frames = Decoder(0).feed(b"".join(self.cursor.take(1 << 30)))
        return [frame.flag for frame in frames if frame.kind is Kind.STATE]

    def in_sync(self) -> None:
        self.barrier.standby_attached()
        self.barrier.acknowledge(self.stream.end)
        assert self.standing() is BarrierState.SYNC


def test_start_confirms_nothing_before_the_standby_has_it() -> None:
    """An earlier process may have let its standby believe that it lacks nothing."""
    pair = Pair()
    mark = pair.write()
    assert not pair.barrier.allows(mark)
    pair.barrier.standby_attached()
    assert not pair.barrier.allows(mark)
    pair.barrier.acknowledge(mark)
    assert pair.barrier.allows(mark) and pair.standing() is BarrierState.SYNC
    assert pair.said() == [InSync.ON_DISK]


def test_job_without_changes_does_not_wait() -> None:
    pair = Pair()
    pair.write()
    pair.barrier.begin()
    assert pair.barrier.end() == 0


def test_server_without_a_standby_confirms_alone_until_one_joins() -> None:
    pair = Pair(is_alone=True)
    before = pair.write()
    assert pair.barrier.allows(before)
    pair.barrier.standby_attached()
    assert not pair.barrier.allows(before), "the standby does not have it, and is going to be believed"
    pair.barrier.acknowledge(before - 1)
    assert pair.standing() is BarrierState.JOINING
    pair.barrier.standby_lost()
    assert pair.barrier.allows(pair.write()) and pair.said() == []


def test_server_waits_for_a_lost_standby_and_notifies_it_before_continuing_alone() -> None:
    pair = Pair()
    pair.in_sync()
    pair.barrier.standby_lost()
    mark = pair.write()
    assert pair.pass_time(PATIENCE_MS - 1) and not pair.barrier.allows(mark)
    assert pair.pass_time(1) and pair.barrier.allows(mark)
    assert pair.said() == [InSync.ON_DISK, InSync.NO] and not pair.barrier.may_be_in_sync


def test_resumed_standby_is_in_sync_when_it_has_caught_up() -> None:
    pair = Pair()
    pair.in_sync()
    pair.barrier.standby_lost()
    mark = pair.write()
    pair.barrier.standby_attached()
    assert pair.standing() is BarrierState.JOINING
    pair.barrier.standby_lost()
    assert pair.standing() is BarrierState.WAITING, "it may still believe that it lacks nothing"
    pair.barrier.standby_attached()
    pair.barrier.acknowledge(mark)
    assert pair.standing() is BarrierState.SYNC


def test_silent_standby_is_disconnected() -> None:
    pair = Pair()
    pair.in_sync()
    assert pair.pass_time(ACK_TIMEOUT_MS)
    pair.barrier.acknowledge(pair.stream.end)
    assert pair.pass_time(ACK_TIMEOUT_MS)
    assert not pair.pass_time(1)


def test_without_patience_the_server_never_continues_alone() -> None:
    pair = Pair(patience_ms=None)
    mark = pair.write()
    assert pair.pass_time(1_000_000_000) and not pair.barrier.allows(mark)


def test_waiter_is_called_when_more_confirms_are_allowed() -> None:
    pair = Pair()
    pair.barrier.standby_attached()
    looked = pair.looked
    pair.barrier.acknowledge(pair.write())
    assert pair.looked > looked
