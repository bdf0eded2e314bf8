"""The world the engine runs in: clocks, the turn of the event loop, and threads for blocking work.

The engine uses only the port `Host`. `AsyncioHost` is the real one; the simulator has its own. The engine runs on one
thread, the host's; only jobs run on others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, Protocol

from curbstone.core.durable_write import DurableWrite

try:
    from curbstone.core.disk_threads import DiskThreads
except ImportError:  # only some builds have it, see setup.py
    DiskThreads = None  # type: ignore[assignment, misc]

logger = logging.getLogger("curbstone.core")

Job = Callable[[], Any]
BeginWrite = Callable[[], DurableWrite | None]
JobDone = Callable[[Any, BaseException | None], None]


class Timer(Protocol):
    """A pending `call_later`."""

    def cancel(self) -> object:
        """Prevent the call; harmless if it has already happened."""


class Host(Protocol):
    """Time, turns and threads, as the engine sees them."""

    def now_ms(self) -> int:
        """Engine time: the wall clock at the start, plus the time since then by a clock that never jumps."""

    def now_us(self) -> int:
        """Microseconds of a clock that never jumps; only differences have a meaning."""

    def wall_ms(self) -> int:
        """Wall-clock milliseconds since the epoch."""

    def call_soon(self, fn: Callable[[], object]) -> object:
        """Call `fn` in the next turn."""

    def call_later(self, delay_ms: int, fn: Callable[[], object]) -> Timer:
        """Call `fn` after `delay_ms`."""

    def submit(self, job: Job, done: JobDone, begin: BeginWrite | None = None) -> None:
        """Run `job` on a worker thread, then `done(result, error)` on the host's thread.

        If there is a `begin`, a host may call it at once. If that returns a write, it is all that `job` does and may be
        made in its place; if that fails, `job` is run all the same.
        """


class ConfirmBarrier(Protocol):
    """Holds back the reports of jobs that have succeeded, for example until another machine has what they wrote.

    Whatever is confirmed is confirmed when the end of a job is reported, so no confirm passes the barrier. A job that
    has failed is reported at once. A mark says how far the writes of a job reach: a barrier that allows a mark allows
    all lower ones.
    """

    def begin(self) -> None:
        """A job begins on this thread."""

    def end(self) -> int:
        """Return the mark of the job that has ended on this thread, or 0 if it may be reported at once."""

    def allows(self, mark: int) -> bool:
        """Return whether the end of a job may be reported; called on the host's thread."""


DONE_AT_ONCE = 8
"""How many finished jobs are always reported before the loop looks at its sockets again."""
DONE_NS_MAX = 50_000_000
"""More jobs are reported until this time has passed, because answers of one turn are sent together."""


class AsyncioHost:
    """The host of a real server: an asyncio loop and a few threads for the disk."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 16) -> None:
        self._loop = loop
        self._disk_threads = DiskThreads(threads) if DiskThreads is not None else None
        """Makes writes that need no Python."""
        self._is_watching = False
        """Whether the loop watches for the ends of these."""
        self._started_wall_ms = time.time_ns() // 1_000_000
        self._started_ns = time.monotonic_ns()
        self._jobs: deque[tuple[Job, JobDone] | None] = deque()
        self._idle: list[threading.Lock] = []
        """The locks that idle threads wait for; that of the thread that became idle last is at the end."""
        self._finished: deque[tuple[JobDone, Any, BaseException | None, int]] = deque()
        """Jobs that have ended and are not reported, with their marks."""
        self.barrier: ConfirmBarrier | None = None
        """May be set before the first job is submitted."""
        self._held_back: list[tuple[int, int, JobDone, Any]] = []
        """A heap of the jobs that the barrier holds back: by mark, then in the order in which they were held back."""
        self._holds = 0
        self._wake_pending = False
        self._unfinished = 0
        """How many jobs were submitted and have not been reported as finished."""
        self._is_frozen = False
        """Whether no job is reported, so that nothing is confirmed."""
        self._held: list[tuple[Job, JobDone]] | None = None
        """Jobs that are submitted while another has to run alone; None if none has to."""
        self._alone: Callable[[], None] | None = None
        """Begins the job that has to run alone; to be called when no job is unfinished."""
        self._threads = [
            threading.Thread(target=self._work, name=f"curbstone-disk-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def now_ms(self) -> int:
        return self._started_wall_ms + (time.monotonic_ns() - self._started_ns) // 1_000_000

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_soon(self, fn: Callable[[], object]) -> object:
        return self._loop.call_soon(fn)

    def call_later(self, delay_ms: int, fn: Callable[[], object]) -> Timer:
        return self._loop.call_later(max(delay_ms, 0) / 1000, fn)

    def submit(self, job: Job, done: JobDone, begin: BeginWrite | None = None) -> None:
        if self._held is not None:
            self._held.append((job, done))
            return
        self._unfinished += 1
        may_begin = self._disk_threads is not None and self.barrier is None  # its marks are of threads that run Python
        write = begin() if begin is not None and may_begin else None
        if write is None:
            self._put((job, done))
        else:
            self._submit_write(write, job, done)

    def _submit_write(self, write: DurableWrite, job: Job, done: JobDone) -> None:
        threads = self._disk_threads
        assert threads is not None
        if not self._is_watching:
            self._is_watching = True
            self._loop.add_reader(threads.fileno(), self._drain_writes)
        try:
            threads.submit((write, job, done), write.fd, write.offset, write.buffers)
        except OSError as error:  # no memory, or no thread
            write.end(error, 0, False)
            self._put((job, done))

    def _drain_writes(self) -> None:
        self._end_writes()
        self._drain()

    def _end_writes(self) -> None:
        """Note the ends of the writes that were made without Python."""
        assert self._disk_threads is not None
        for (write, job, done), code, is_written, sync_us in self._disk_threads.finished():
            write.end(OSError(code, os.strerror(code)) if code else None, sync_us, is_written)
            if code:
                self._put((job, done))
            else:
                self._finished.append((done, None, None, 0))

    def submit_alone(self, plan: Callable[[], Job], done: JobDone, wait_ms: int) -> None:
        """Run a job alone: when all other jobs are finished and reported. Jobs that are submitted meanwhile wait.

        `plan` is called at that moment, on the host's thread, and returns the job. If the jobs before it take longer
        than `wait_ms`, or another job is already waiting to be alone, it is given up: `done(None, TimeoutError)`.
        """
        if self._held is not None:
            self._loop.call_soon(done, None, TimeoutError("another job has to be alone"))
            return
        self._held = []

        def begin() -> None:
            self._alone = None
            given_up.cancel()
            try:
                job = plan()
            except Exception as error:
                self._proceed()
                done(None, error)
                return
            self._unfinished += 1
            self._put((job, ended))

        def ended(result: Any, error: BaseException | None) -> None:
            self._proceed()
            done(result, error)

        def give_up() -> None:
            self._alone = None
            self._proceed()
            done(None, TimeoutError(f"other work on the disk took longer than {wait_ms} ms"))

        given_up = self._loop.call_later(wait_ms / 1000, give_up)
        self._alone = begin
        if not self._unfinished:
            self._loop.call_soon(self._begin_alone)

    def freeze(self) -> None:
        """Report no job from now on, whatever is done, until `thaw`. Call this on the host's thread."""
        self._is_frozen = True

    def thaw(self) -> None:
        """Report jobs again, and those that have ended meanwhile."""
        self._is_frozen = False
        self.wake()

    @property
    def held_back(self) -> int:
        """How many jobs have succeeded and are not reported, because the barrier does not allow it."""
        return len(self._held_back)

    def _begin_alone(self) -> None:
        if self._alone is not None and not self._unfinished:
            self._alone()

    def _proceed(self) -> None:
        held, self._held = self._held, None
        for job, done in held or ():
            self.submit(job, done)

    def close(self) -> None:
        """Let the threads finish all submitted jobs, then end the threads."""
        if self._disk_threads is not None:
            self._disk_threads.close()
            self._end_writes()
            if self._is_watching and not self._loop.is_closed():
                self._loop.remove_reader(self._disk_threads.fileno())
        for _ in self._threads:
            self._put(None)
        for thread in self._threads:
            thread.join()

    def _put(self, item: tuple[Job, JobDone] | None) -> None:
        """Add a job and wake one thread for it: the one that became idle last, because its caches are warm.

        A `queue.SimpleQueue` would wake the threads in turn, and often a second one for nothing.
        """
        self._jobs.append(item)
        with suppress(IndexError):
            self._idle.pop().release()

    def _next(self, wake: threading.Lock) -> tuple[Job, JobDone] | None:
        """Return a job, waiting for one if necessary. `wake` is the calling thread's own lock, which it holds."""
        while True:
            with suppress(IndexError):
                return self._jobs.popleft()
            self._idle.append(wake)
            if self._jobs:  # a job came before this thread could be woken for it
                with suppress(ValueError):  # raised if the thread was woken meanwhile
                    self._idle.remove(wake)
                    continue
            wake.acquire()

    def _work(self) -> None:
        wake = threading.Lock()
        wake.acquire()
        while (item := self._next(wake)) is not None:
            job, done = item
            result: Any = None
            error: BaseException | None = None
            barrier = self.barrier
            if barrier is not None:
                barrier.begin()
            try:
                result = job()
            except BaseException as caught:  # whatever it is, the engine must hear of it
                error = caught
            self._finished.append((done, result, error, 0 if barrier is None else barrier.end()))
            if not self.wake():
                return

    def wake(self) -> bool:
        """Have the loop report jobs, because one has ended or the barrier allows more. Return False if it is closed.

        Called on any thread. One wake-up serves all jobs that finish before the loop looks. The flag is cleared before
        the loop looks, so a job that misses the wake-up sends one of its own.
        """
        if not self._wake_pending:
            self._wake_pending = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                return False
        return True

    def _drain(self) -> None:
        self._wake_pending = False
        if self._is_frozen:
            return
        barrier = self.barrier
        if self._held_back:
            self._release()
        least = DONE_AT_ONCE
        end_ns = time.monotonic_ns() + DONE_NS_MAX
        while self._finished and (least > 0 or time.monotonic_ns() < end_ns):
            least -= 1
            done, result, error, mark = self._finished.popleft()
            if mark and error is None and barrier is not None and not barrier.allows(mark):
                self._holds += 1
                heappush(self._held_back, (mark, self._holds, done, result))
                continue
            try:
                done(result, error)
            except Exception:  # a bug, but the other callbacks must be called all the same
                logger.exception("the end of a job failed")
            self._unfinished -= 1
        if self._finished and not self._wake_pending:
            self._wake_pending = True
            self._loop.call_soon(self._drain)
        if self._alone is not None:
            self._begin_alone()

    def _release(self) -> None:
        """Have the jobs reported that the barrier allows now."""
        released: list[tuple[JobDone, Any, BaseException | None, int]] = []
        while self._held_back and (self.barrier is None or self.barrier.allows(self._held_back[0][0])):
            mark, _, done, result = heappop(self._held_back)
            released.append((done, result, None, mark))
        self._finished.extendleft(reversed(released))
