"""One connection that keeps a window of sends unconfirmed."""

import time
from collections.abc import Callable

from bench.stats import Stamps, confirm_times, percentiles
from bench.wire import Wire
from bench.workers import Outcome, Stopwatch


def send_window(
    wire: Wire,
    requests: bytes,
    count: int,
    window: int,
    seconds: float,
    confirmed_now: Callable[[], int],
    stopwatch: Stopwatch,
) -> Outcome:
    """Send `count` concatenated requests, all of the same length. End with the last confirm.

    `confirmed_now` blocks until data arrives, and returns the number of newly confirmed requests. Sending stops after
    `seconds`.
    """
    rest = memoryview(requests)
    length = len(requests) // count
    sent = confirmed = 0
    total = count
    sent_stamps: Stamps = []
    confirm_stamps: Stamps = []
    now = stopwatch.start()
    deadline = now + int(seconds * 1e9)
    while confirmed < total:
        room = min(window - (sent - confirmed), total - sent)
        if room > 0 and now > deadline:
            total = sent
            continue
        if room > 0:
            sent_stamps.append((sent + room, now))
            wire.send(rest[sent * length : (sent + room) * length])
            sent += room
        confirmed += confirmed_now()
        now = time.perf_counter_ns()
        confirm_stamps.append((confirmed, now))
    stopwatch.stop()
    wire.close()
    return Outcome(sent, (sent,), percentiles(confirm_times(sent_stamps, confirm_stamps)))
