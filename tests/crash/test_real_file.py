"""A real file, line by line, through all protocols, while the server is killed again and again.

A quarter of the lines goes in over each protocol and comes out over another: STOMP (with transactions over two
queues) to WebSocket, HTTP to STOMP, WebSocket to MQKS, MQKS to HTTP leases. The cap is so small that the log goes
round many times. Every line that was confirmed must come out as it was, nothing whose ack was confirmed may return,
and the directories never hold more than the cap.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.crash.consumers import Consumer
from tests.crash.directory import Sampler, bytes_at_rest
from tests.crash.history import History, Verdict
from tests.crash.killable import HANG_S, KillableServer, Progress
from tests.crash.line_producers import produce_over_mqks, produce_over_websocket
from tests.crash.mqks_peer import MqksPeer
from tests.crash.producers import produce_over_http, produce_over_stomp
from tests.crash.source import Source
from tests.crash.text import real_lines
from tests.kit.results import recorded
from tests.kit.server import ServerProcess

CAP = 128 * 1024
STOMP_IN, HTTP_IN = "crash/over-stomp", "crash/over-http"
WEBSOCKET_IN, MQKS_IN = "default/over-websocket", "default/over-mqks"
QUEUES = (STOMP_IN, HTTP_IN, WEBSOCKET_IN, MQKS_IN)
EVENT = "lines"
HTTP_PRODUCERS = 3


class Run:
    """One file on its way; see the module's text."""

    def __init__(self, server: KillableServer, lines: int, seed: int) -> None:
        self.server = server
        self.rng = Random(seed)
        self.history = History()
        self.progress = Progress()
        self.lines = real_lines(lines)
        numbered = list(enumerate(self.lines))
        self.sources = [
            Source(
                queue,
                numbered[place :: len(QUEUES)],
                self.history,
                self.progress,
                is_tagged=queue.startswith("default/"),
            )
            for place, queue in enumerate(QUEUES)
        ]
        self.largest_at_rest = 0
        self._threads: list[threading.Thread] = []
        self._consumers: list[Consumer] = []

    def _new_random(self) -> Random:
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

    def run(self, kills: int) -> None:
        """Send and consume everything, with so many kills on the way and one more behind it."""
        for queue in QUEUES:
            self.server.put_queue(queue, {"cap": CAP})
        with MqksPeer(self.server.boot.mqks, HANG_S) as peer:
            peer.call("b", f"rebind --confirm {MQKS_IN.partition('/')[2]} {EVENT}")
        self._produce()
        self._consume()
        for moment in self._moments(kills):
            self._wait_for_progress(moment)
            threading.Event().wait(self.rng.random() * 0.02)
            self._kill()
        self._drain()
        self._kill()  # what returned is what was settled and not confirmed
        self._drain()
        for consumer in self._consumers:
            consumer.done.set()
        for thread in self._threads:
            thread.join(HANG_S)
            assert not thread.is_alive()
        self.progress.check()

    def _produce(self) -> None:
        server = self.server
        over_stomp, over_http, over_websocket, over_mqks = self.sources
        self._spawn(partial(produce_over_stomp, server, over_stomp, over_http, self._new_random()))
        for number in range(HTTP_PRODUCERS):
            self._spawn(partial(produce_over_http, server, over_http, self._new_random(), f"http {number + 1}"))
        self._spawn(partial(produce_over_websocket, server, over_websocket, self._new_random()))
        self._spawn(partial(produce_over_mqks, server, over_mqks, EVENT, self._new_random()))

    def _consume(self) -> None:
        ways = (Consumer.over_websocket, Consumer.over_stomp, Consumer.over_mqks, Consumer.with_leases)
        for source, way in zip(self.sources, ways, strict=True):
            for number in (1, 2):
                consumer = Consumer(self.server, source, f"{way.__name__} {number}", self.history, self._new_random())
                self._consumers.append(consumer)
                self._spawn(partial(way, consumer))

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
            source.server_restarted()
        self.server.start()
        self.server.check_health()

    def _wait_for_progress(self, moment: int) -> None:
        """Wait for so many confirms and settles, or for the end: a kill may take the confirm of a settle along."""
        progress = self.progress
        progress.wait_until(lambda: progress.confirmed + progress.settled >= moment or self._is_drained())

    def _drain(self) -> None:
        """Wait until the producers have nothing left to send and the queues are empty."""
        self.progress.wait_until(self._is_drained)

    def _is_drained(self) -> bool:
        return all(source.is_done for source in self.sources) and not any(map(self.server.count, QUEUES))

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
    with ServerProcess(tmp_path / "data", "--log-level=error") as process:
        server = KillableServer(process)
        with Sampler(process.data_dir) as sampler:
            run = Run(server, lines, seed)
            run.run(kills)
        verdict = run.history.judge()
        print(run.report(verdict, seed, sampler))
        verdict.check()
        assert max(sampler.largest, run.largest_at_rest) <= CAP
        assert sampler.samples
        assert "Traceback" not in process.log
        assert process.stop() == 0
        process.restart()
        after = KillableServer(process)
        assert [after.count(queue) for queue in QUEUES] == [0] * len(QUEUES)


def test_a_real_file_survives_kills(tmp_path: Path) -> None:
    send_a_file(tmp_path, lines=8_000, kills=4)


@pytest.mark.soak
def test_files_survive_kills_for_as_long_as_asked(tmp_path: Path) -> None:
    seconds = float(os.environ.get("CURBSTONE_CRASH_SECONDS", "600"))
    end = time.monotonic() + seconds
    for number in count(1):
        directory = tmp_path / str(number)
        directory.mkdir()
        with recorded("kills", lambda: {"kills": 25, "messages": 60_000}):
            send_a_file(directory, lines=60_000, kills=25)
        if time.monotonic() > end:
            break
