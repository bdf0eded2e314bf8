"""Records the figures of the charts: those of the server and of its busiest queues every 10 s, means each minute.

All queues are read, a few in each turn of the event loop, because there may be thousands. Of more than `QUEUES_MAX`
queues, only those with the most messages published, delivered and acknowledged in the previous minute are recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest
from math import nan
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.host import Host, Timer
from curbstone.core.stats import Stats
from curbstone.gateway.resources.metrics.chart_file import (
    DAY,
    HOUR,
    QUEUES_MAX,
    SERVER,
    File,
    Ring,
    Step,
    TimeSeries,
    Values,
    encode_row,
    means,
    read_series,
    unknown,
)

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator

SLICE = 25
"""How many queues are read in one turn."""

Opened = Callable[[bool], File | None]
"""Opens the file, on a worker thread. With True a missing file is created, else None is returned. May raise OSError."""

logger = logging.getLogger("curbstone.gateway")


class Recorder:
    """See the module's docstring. Called on the host's thread."""

    def __init__(self, authenticator: Authenticator, host: Host, open_file: Opened) -> None:
        self._broker = authenticator.everyone.broker
        self._host = host
        self._open_file = open_file
        self._file: File | None = None
        self._is_writing = False
        self._has_failed = False
        self._timer: Timer | None = None
        self._sampled_ms = host.now_ms()
        self._last: dict[str, Counters] = {}
        """By uid, the counters of the recorded queues at the last step."""
        self._total: Counters = (0, 0, 0)
        self._chosen: set[str] | None = None
        """The queues that are recorded, by uid; None for all."""
        self._activity: dict[str, int] = {}
        """By uid, the sum of each queue's counters when the busiest were last chosen; empty if all are recorded."""
        self._minute = self._host.wall_ms() // (1000 * DAY.step_s)
        self._steps: list[Step] = []
        """The steps of this minute."""

    def start(self) -> None:
        """Begin to record. The previous contents of the file can be read a little later."""
        self._is_writing = True
        self._host.submit(lambda: self._open_file(False), self._done)
        self._wait(HOUR.last(self._host.wall_ms() / 1000))

    def stop(self) -> None:
        """Record nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def read(
        self,
        ring: Ring,
        times: range,
        uids: Sequence[str],
        on_done: Callable[[CurbstoneError | None, list[TimeSeries]], None],
    ) -> None:
        """Read the series of these uids, or `SERVER`: `on_done(error, the time series of each)`."""
        file = self._file

        def job() -> list[TimeSeries]:
            return read_series(file, ring, times, uids) if file is not None else [unknown(times) for _ in uids]

        def done(found: list[TimeSeries] | None, error: BaseException | None) -> None:
            if found is None:
                on_done(Unavailable(f"the history of the charts can't be read: {error}"), [])
            else:
                on_done(None, found)

        self._host.submit(job, done)

    # --- sampling

    def _wait(self, time_s: int) -> None:
        """Sample at the next step after `time_s`; a step later if the clock has jumped."""
        step_ms = 1000 * HOUR.step_s
        delay_ms = 1000 * time_s + step_ms - self._host.wall_ms()
        self._timer = self._host.call_later(delay_ms if 0 < delay_ms <= step_ms else step_ms, self._begin)

    def _begin(self) -> None:
        # A timer may be a little early.
        time_s = HOUR.last(self._host.wall_ms() / 1000 + HOUR.step_s / 2)
        self._proceed(time_s, self._sample(time_s))

    def _proceed(self, time_s: int, sampling: Iterator[None]) -> None:
        for _ in sampling:
            self._host.call_soon(lambda: self._proceed(time_s, sampling))
            return
        self._wait(time_s)

    def _sample(self, time_s: int) -> Iterator[None]:
        """Record one step; yield after each slice of the queues."""
        now_ms = self._host.now_ms()
        passed_s = max(now_ms - self._sampled_ms, 1) / 1000
        self._sampled_ms = now_ms
        queues = [*self._broker.queues(), *self._broker.private_queues()]
        ready = unacked = delayed = 0
        published, delivered, acked = _counters(self._broker.past)
        last: dict[str, Counters] = {}
        series: dict[str, Values] = {}
        activity: dict[str, int] = {}
        for index, queue in enumerate(queues, 1):
            counts, counters = queue.counts(), _counters(queue.stats)
            ready, unacked, delayed = ready + counts.rdy, unacked + counts.wip, delayed + counts.delayed
            published, delivered, acked = published + counters[0], delivered + counters[1], acked + counters[2]
            if not queue.name.is_private:
                uid = queue.uid
                if len(queues) > QUEUES_MAX:
                    activity[uid] = sum(counters)
                if (self._chosen is None or uid in self._chosen) and len(last) < QUEUES_MAX:
                    series[uid] = (counts.rdy, counts.wip, counts.delayed, *self._rates(uid, counters, passed_s))
                    last[uid] = counters
            if index % SLICE == 0:
                yield
        total = published, delivered, acked
        series[SERVER] = (ready, unacked, delayed, *_rates(total, self._total, passed_s))
        self._last, self._total = last, total
        self._steps.append(series)
        self._write(time_s, activity)

    def _rates(self, uid: str, counters: Counters, passed_s: float) -> Values:
        """Return a queue's rates; unknown for one that was not recorded before, unless it is new."""
        before = self._last.get(uid)
        if before is None and self._chosen is not None:
            return (nan,) * len(counters)
        return _rates(counters, before or (0, 0, 0), passed_s)

    def _choose(self, activity: dict[str, int]) -> None:
        """Choose the queues of the next minute."""
        if activity:
            busy = nlargest(QUEUES_MAX, activity, key=lambda uid: activity[uid] - self._activity.get(uid, 0))
            self._chosen = set(busy)
        else:
            self._chosen = None
        self._activity = activity

    # --- the file

    def _write(self, time_s: int, activity: dict[str, int]) -> None:
        """Write the row of a step and, if a minute has ended with it, that of the minute."""
        steps = self._steps
        is_whole = time_s // DAY.step_s != self._minute
        if is_whole:
            self._minute, self._steps = time_s // DAY.step_s, []
            self._choose(activity)
        if self._is_writing:  # the disk hangs: these rows are gaps
            return
        self._is_writing = True

        def job() -> File | None:
            file = self._file or self._open_file(True)
            assert file is not None
            file.write(HOUR.place(time_s), [encode_row(time_s, steps[-1])])
            if is_whole:
                minute_s = DAY.last(time_s)
                file.write(DAY.place(minute_s), [encode_row(minute_s, means(steps))])
            return file

        self._host.submit(job, self._done)

    def _done(self, file: File | None, error: BaseException | None) -> None:
        self._is_writing = False
        if error is None:
            self._file = file
        elif not self._has_failed:
            logger.warning("the history of the charts can't be kept: %s; trying again", error)
        self._has_failed = error is not None


Counters = tuple[int, int, int]
"""Messages published, delivered and acknowledged since the start."""


def _counters(stats: Stats) -> Counters:
    return stats.published, stats.delivered, stats.acked


def _rates(now: Counters, before: Counters, passed_s: float) -> Values:
    # The counters of the server may decrease if a queue is deleted while the others are read.
    return tuple([max(after - earlier, 0) / passed_s for after, earlier in zip(now, before, strict=True)])
