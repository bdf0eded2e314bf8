"""Errors in the log: each is found under its id, and many of the same are two lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from curbstone.mqks.error_log import ErrorLog
from curbstone.net.repeats import INTERVAL_MS, KINDS_MAX, OTHERS

FULL = "queue default/q has too little room left under its cap of 65536 bytes"


class Alarm:
    """A timer that rings when the test says so."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring = ring
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Log:
    """An error log, its timers and what it logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.alarms: list[Alarm] = []
        self.reports = ErrorLog(self._call_later)
        self._caplog = caplog

    def _call_later(self, delay_ms: int, ring: Callable[[], None]) -> Alarm:
        assert delay_ms == INTERVAL_MS
        self.alarms.append(Alarm(ring))
        return self.alarms[-1]

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


def test_a_thousand_refused_publishes_are_two_lines_and_one_id(log: Log) -> None:
    ids = {log.reports.report(f"peer{n % 3}", "", FULL, is_mistake=False).decode() for n in range(1000)}
    (error_id,) = ids
    assert log.lines == [f"error {error_id}: peer0: {FULL}"]
    log.alarms[0].ring()
    assert log.lines[1:] == [f"error {error_id}: repeated 999 times: {FULL}"]
    again = log.reports.report("peer0", "", FULL, is_mistake=False).decode()
    assert again != error_id
    assert log.lines[2:] == [f"error {again}: peer0: {FULL}"]


def test_single_error_is_one_line(log: Log) -> None:
    log.reports.report("a:1", "a", FULL, is_mistake=False)
    log.alarms[0].ring()
    assert len(log.lines) == 1


def test_different_errors_and_clients_have_separate_lines(log: Log) -> None:
    ids = [
        log.reports.report("a:1", "a", "unknown action; it was: 'x'", is_mistake=True),
        log.reports.report("b:1", "b", "unknown action; it was: 'x'", is_mistake=True),
        log.reports.report("a:1", "a", "unknown action; it was: 'y'", is_mistake=True),
        log.reports.report("a:1", "a", FULL, is_mistake=False),
    ]
    assert len(set(ids)) == len(log.lines) == 4
    assert log.reports.report("b:1", "b", "unknown action; it was: 'x'", is_mistake=True) == ids[1]
    assert len(log.lines) == 4


def test_clients_at_the_same_address_share_the_line_of_a_mistake(log: Log) -> None:
    """A stranger with a connection for each bad line filled the log."""
    ids = {log.reports.report(f"10.0.0.1:{port}", "10.0.0.1", "unknown action", is_mistake=True) for port in range(500)}
    assert len(ids) == len(log.lines) == 1


def test_remembered_errors_are_bounded(log: Log) -> None:
    ids = [log.reports.report("a:1", "a", f"mistake {number}", is_mistake=True) for number in range(100)]
    assert len(log.lines) == KINDS_MAX + 1
    assert len(set(ids[KINDS_MAX:])) == 1
    assert log.reports.report("b:1", "b", "mistake 99", is_mistake=True) not in ids
    assert log.reports.report("a:1", "a", "mistake 0", is_mistake=True) == ids[0]
    log.reports.close()
    assert f"repeated {100 - KINDS_MAX - 1} times: {OTHERS}" in log.lines[-1]


def test_counts_are_logged_at_the_end(log: Log) -> None:
    for _ in range(3):
        log.reports.report("a:1", "a", FULL, is_mistake=False)
    log.reports.close()
    assert log.lines[-1].endswith(f": repeated 2 times: {FULL}")
    assert log.alarms[0].is_cancelled


def test_client_input_cannot_break_a_log_line(log: Log) -> None:
    log.reports.report("a:1", "a", "it was\r\n\u20ac", is_mistake=True)
    assert log.lines[0].endswith(": a:1: it was  \\u20ac")
