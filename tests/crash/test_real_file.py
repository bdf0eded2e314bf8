"""A real file, line by line, through all protocols, while the server is killed again and again.

Half of the lines goes in over STOMP and comes out over WebSocket, the other half goes in over HTTP and comes out over
STOMP. The cap is so small that the log goes round many times. Every line that was confirmed must come out as it was,
nothing whose ack was confirmed may come back, and the directories never hold more than the cap.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.crash.consumers import Consumer
from tests.crash.directory import Sampler, bytes_at_rest
from tests.crash.history import History, Verdict
from tests.crash.mortal import HANG_S, MortalServer, Progress
from tests.crash.producers import produce_over_http, produce_over_stomp
from tests.crash.source import Source
from tests.crash.text import real_lines
from tests.server import ServerProcess

CAP = 128 * 1024
STOMP_IN, HTTP_IN = "crash/over-stomp", "crash/over-http"
HTTP_PRODUCERS = 3


class Run:
    """One file on its way; see the module's text."""

    def __init__(self, server: MortalServer, lines: int, seed: int) -> None:
        self.server = server
        self.rng = Random(seed)
        self.history = History()
        self.progress = Progress()
        self.lines = real_lines(lines)
        numbered = list(enumerate(self.lines))
        self.sources = [
            Source(STOMP_IN, numbered[0::2], self.history, self.progress),
            Source(HTTP_IN, numbered[1::2], self.history, self.progress),
        ]
        self.largest_at_rest = 0
        self._threads: list[threading.Thread] = []
        over_stomp, over_http = self.sources
        self._consumers = [self._consumer(over_stomp, f"websocket {n}") for n in (1, 2)]
        self._consumers += [self._consumer(over_http, f"subscriber {n}") for n in (1, 2)]

    def _consumer(self, source: Source, name: str) -> Consumer:
        return Consumer(self.server, source, name, self.history, self._dice())

    def _dice(self) -> Random:
        return Random(self.rng.getrandbits(64))

    def _spawn(self, work: Callable[[], None]) -> None:
        def watched() -> None:
            try:
                work()
            except BaseException as error:
                self.progress.fail(error)

        thread = threading.Thread(target=watched, daemon=True)
        self._threads.append(thread)
        thread.start()

    def go(self, kills: int) -> None:
        """Send and consume everything, with so many kills on the way and one more behind it."""
        for queue in (STOMP_IN, HTTP_IN):
            self.server.put_queue(queue, {"cap": CAP})
        over_stomp, over_http = self.sources
        self._spawn(partial(produce_over_stomp, self.server, over_stomp, self._dice()))
        for number in range(HTTP_PRODUCERS):
            self._spawn(partial(produce_over_http, self.server, over_http, self._dice(), f"http {number + 1}"))
        for consumer in self._consumers:
            self._spawn(consumer.over_websocket if consumer.queue == STOMP_IN else consumer.over_stomp)
        for moment in self._moments(kills):
            self.progress.reach(moment)
            threading.Event().wait(self.rng.random() * 0.02)
            self._kill()
        self.progress.reach(2 * len(self.lines))
        self._drain()
        self._kill()  # what came back is what was settled and not confirmed
        self._drain()
        for consumer in self._consumers:
            consumer.done.set()
        for thread in self._threads:
            thread.join(HANG_S)
            assert not thread.is_alive()
        self.progress.reach(0)

    def _moments(self, kills: int) -> list[int]:
        """Return after how many confirms and settles to kill; some come right behind another."""
        done = 2 * len(self.lines)
        moments = sorted(self.rng.randrange(done // 50, done - done // 50) for _ in range(kills))
        for index in range(1, kills):
            if self.rng.random() < 0.2:
                moments[index] = moments[index - 1] + self.rng.randrange(200)
        return sorted(moments)

    def _kill(self) -> None:
        self.server.kill()
        self.largest_at_rest = max(self.largest_at_rest, *bytes_at_rest(self.server.process.data_dir).values())
        for source in self.sources:
            source.next_life()
        self.server.start()
        self.server.check_health()

    def _drain(self) -> None:
        """Wait until the producers have nothing left to send and the queues are empty."""
        while not all(source.is_done for source in self.sources) or any(map(self.server.count, (STOMP_IN, HTTP_IN))):
            self.progress.wait_for_room(1)
            self.progress.reach(0)

    def report(self, verdict: Verdict, seed: int, sampler: Sampler) -> str:
        """Return the figures of the run."""
        return (
            f"seed={seed} lines={len(self.lines)} kills={self.server.kills} {verdict.figures()} | cap={CAP}"
            f" largest_directory={sampler.largest} (of {sampler.samples} samples) at_rest={self.largest_at_rest}"
        )


def seed_of_run() -> int:
    """Return the seed to use: CURBSTONE_CRASH_SEED, or a new one."""
    return int(os.environ.get("CURBSTONE_CRASH_SEED") or SystemRandom().randrange(1 << 32))


def send_a_file(tmp_path: Path, lines: int, kills: int) -> None:
    seed = seed_of_run()
    print(f"CURBSTONE_CRASH_SEED={seed}")
    with ServerProcess(tmp_path / "data", "--log-level=warning") as process:
        server = MortalServer(process)
        with Sampler(process.data_dir) as sampler:
            run = Run(server, lines, seed)
            run.go(kills)
        verdict = run.history.judge()
        print(run.report(verdict, seed, sampler))
        verdict.check()
        assert max(sampler.largest, run.largest_at_rest) <= CAP
        assert sampler.samples
        assert "Traceback" not in process.log
        assert process.stop() == 0
        process.restart()
        after = MortalServer(process)
        assert [after.count(queue) for queue in (STOMP_IN, HTTP_IN)] == [0, 0]


def test_a_real_file_survives_kills(tmp_path: Path) -> None:
    send_a_file(tmp_path, lines=20_000, kills=4)


@pytest.mark.soak
def test_a_long_real_file_survives_many_kills(tmp_path: Path) -> None:
    send_a_file(tmp_path, lines=120_000, kills=25)
