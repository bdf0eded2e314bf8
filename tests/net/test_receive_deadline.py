"""The deadline of what a client has begun to send."""

from __future__ import annotations

from curbstone.net.receive_deadline import ReceiveDeadline

LIMIT_MS = 1000


def begun(size: int = 5, *, completed: bool = False, now_ms: int = 0) -> ReceiveDeadline:
    progress = ReceiveDeadline(LIMIT_MS, 100)
    progress.unfinished(size, completed, now_ms)
    return progress


def test_idle_connection_has_no_deadline() -> None:
    progress = begun()
    progress.unfinished(0, True, 10)
    assert not progress.is_begun
    assert not progress.is_late(1_000_000)


def test_started_input_must_complete_despite_trickling() -> None:
    progress = begun()
    progress.unfinished(6, False, 900)
    assert progress.is_begun
    assert not progress.is_late(LIMIT_MS - 1)
    assert progress.is_late(LIMIT_MS)


def test_deadline_restarts_after_completed_input() -> None:
    progress = begun()
    progress.unfinished(5, True, 900)
    assert not progress.is_late(LIMIT_MS)
    assert progress.is_late(900 + LIMIT_MS)


def test_large_input_may_take_long_while_bytes_arrive() -> None:
    progress = begun(5000)
    for second in range(1, 10):
        progress.unfinished(5000 + second * 100, False, second * LIMIT_MS - 1)
        assert not progress.is_late(second * LIMIT_MS)
    assert progress.is_late(10 * LIMIT_MS - 1)


def test_earlier_bytes_do_not_extend_the_deadline_of_the_last() -> None:
    progress = begun(6_000_000)
    progress.unfinished(6_000_099, False, 500)
    assert not progress.is_late(LIMIT_MS - 1)
    assert progress.is_late(LIMIT_MS)


def test_deadline_pauses_while_not_reading() -> None:
    progress = begun()
    progress.reading(False, 500)
    assert not progress.is_late(5000)
    progress.reading(True, 6000)
    assert not progress.is_late(6000 + LIMIT_MS - 1)
    assert progress.is_late(6000 + LIMIT_MS)


def test_deadline_is_checked_often_enough() -> None:
    assert begun().tick_ms == LIMIT_MS
    assert ReceiveDeadline(60_000, 1).tick_ms == 5000
    assert ReceiveDeadline(0, 1).tick_ms == 1
