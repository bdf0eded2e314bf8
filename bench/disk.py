"""The bare limit: the rate of a program that only appends a prepared batch to a file and syncs it.

The share of the loop itself is measured by the same loop with empty calls. With a sync of a tenth of a millisecond it
is about one percent, so a loop in C would give the same figures.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.check import bodies
from bench.stats import Percentiles, Weighted, percentiles

MOST_BYTES = 256 << 20
LOOPS_TO_CALIBRATE = 2000


@dataclass(frozen=True, slots=True)
class Limit:
    size: int
    batch: int
    preallocated: bool
    messages_per_s: float
    syncs_per_s: float
    sync: Percentiles
    loop_share: float
    """The share of the measuring loop itself in the time."""


def measure(folder: Path, size: int, batch: int, *, preallocated: bool, seconds: float) -> Limit:
    """Append and sync batches of `batch` bodies in sequence, in a new file that is deleted afterwards.

    A growing file ends the run when it has MOST_BYTES. A preallocated file is then written again from its start, as a
    log of recycled segments is.
    """
    data = b"".join(bodies(0, 0, batch, size))
    room = max(len(data), min(MOST_BYTES, len(data) * 2000 if preallocated else MOST_BYTES))
    path = folder / "bare-limit"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        if preallocated:
            _fill(file, room)
        until = time.perf_counter_ns() + int(seconds * 1e9)
        times = _loop(file, data, room, again=preallocated, until=until, write=os.pwrite, sync=os.fdatasync)
    finally:
        os.close(file)
        path.unlink()
    sync = percentiles(times)
    assert sync
    count, elapsed_s = len(times), sum(time for time, _ in times) / 1e9
    return Limit(
        size, batch, preallocated, count * batch / elapsed_s, count / elapsed_s, sync, _own_share(count, elapsed_s)
    )


def _loop(
    file: int,
    data: bytes,
    room: int,
    *,
    again: bool,
    until: int,
    write: Callable[[int, bytes, int], object],
    sync: Callable[[int], object],
) -> Weighted:
    times: Weighted = []
    at = 0
    now = time.perf_counter_ns()
    while now < until:
        if at + len(data) > room:
            if not again:
                break
            at = 0
        write(file, data, at)
        sync(file)
        at += len(data)
        before, now = now, time.perf_counter_ns()
        times.append((now - before, 1))
    return times


def _own_share(count: int, elapsed_s: float) -> float:
    def nothing(*_: object) -> None:
        pass

    until = time.perf_counter_ns() + 10**9
    times = _loop(0, b"0", LOOPS_TO_CALIBRATE, again=False, until=until, write=nothing, sync=nothing)
    return sum(time for time, _ in times) / len(times) * count / 1e9 / elapsed_s


def _fill(file: int, room: int) -> None:
    """Write the whole file. After fallocate alone, the first write to a block would change metadata."""
    zeros = bytes(1 << 20)
    for at in range(0, room, len(zeros)):
        os.pwrite(file, zeros[: room - at], at)
    os.fsync(file)
