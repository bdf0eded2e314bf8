"""The host of a real server: when the ends of jobs are reported, and which a barrier holds back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from curbstone.core.host import AsyncioHost


class Marks:
    """A barrier. A job gives its mark by `wrote`, on its thread."""

    def __init__(self) -> None:
        self.allowed = 0
        self._of_thread = threading.local()

    def begin(self) -> None:
        self._of_thread.mark = 0

    def wrote(self, mark: int) -> None:
        self._of_thread.mark = mark

    def end(self) -> int:
        mark: int = self._of_thread.mark
        return mark

    def allows(self, mark: int) -> bool:
        return mark <= self.allowed


class Jobs:
    """A host with a barrier, and what was reported of its jobs."""

    def __init__(self, host: AsyncioHost) -> None:
        self.host = host
        self.barrier = host.barrier = Marks()
        self.reported: list[object] = []
        self._changed = asyncio.Event()

    def write(self, mark: int) -> None:
        """Submit a job whose writes reach up to a mark."""
        self.host.submit(lambda: self.barrier.wrote(mark), lambda _result, error: self.report(error or mark))

    def fail(self, mark: int) -> None:
        """Submit a job that fails after it has written."""

        def job() -> None:
            self.barrier.wrote(mark)
            raise OSError("the disk fails")

        self.host.submit(job, lambda _result, error: self.report(str(error)))

    def report(self, what: object) -> None:
        self.reported.append(what)
        self._changed.set()

    def allow(self, mark: int) -> None:
        """Allow more, from another thread, as if an answer had arrived there."""

        def answered() -> None:
            self.barrier.allowed = mark
            self.host.wake()

        thread = threading.Thread(target=answered)
        thread.start()
        thread.join()

    async def wait_until_reported(self, *reported: object) -> None:
        """Wait until just this was reported."""
        async with asyncio.timeout(60):
            while len(self.reported) < len(reported):
                self._changed.clear()
                await self._changed.wait()
        assert self.reported == list(reported)


def run(test: Callable[[Jobs], Awaitable[None]]) -> None:
    async def main() -> None:
        host = AsyncioHost(asyncio.get_running_loop(), threads=1)
        await test(Jobs(host))
        host.close()

    asyncio.run(main())


def test_job_is_reported_when_the_barrier_reaches_its_mark() -> None:
    async def test(jobs: Jobs) -> None:
        jobs.write(7)
        jobs.write(5)
        jobs.write(0)  # one that only reads
        await jobs.wait_until_reported(0)
        jobs.allow(5)
        await jobs.wait_until_reported(0, 5)
        jobs.write(6)
        jobs.write(4)
        await jobs.wait_until_reported(0, 5, 4)
        jobs.allow(7)
        await jobs.wait_until_reported(0, 5, 4, 6, 7)

    run(test)


def test_failed_job_is_reported_without_the_barrier() -> None:
    async def test(jobs: Jobs) -> None:
        jobs.fail(7)
        await jobs.wait_until_reported("the disk fails")

    run(test)


def test_exclusive_job_waits_for_jobs_behind_the_barrier() -> None:
    """A backup must not hold what is not confirmed, nor lack what is."""

    async def test(jobs: Jobs) -> None:
        jobs.write(7)
        jobs.host.submit_alone(lambda: lambda: None, lambda _result, error: jobs.report(error or "alone"), 60_000)
        jobs.write(0)
        jobs.write(8)
        await asyncio.to_thread(lambda: None)
        assert not jobs.reported
        jobs.allow(7)
        await jobs.wait_until_reported(7, "alone", 0)
        jobs.allow(8)
        await jobs.wait_until_reported(7, "alone", 0, 8)

    run(test)


def test_without_a_barrier_every_job_is_reported_when_it_has_ended() -> None:
    async def test(jobs: Jobs) -> None:
        jobs.host.barrier = None
        jobs.host.submit(lambda: "result", lambda result, _error: jobs.report(result))
        await jobs.wait_until_reported("result")

    run(test)
