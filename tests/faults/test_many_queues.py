"""Many queues and many messages, and a restart: all is found, the server is ready only when it is, memory is bounded.

How many: CURBSTONE_QUEUES and CURBSTONE_MESSAGES, for the long test.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from curbstone.core.disk import OsDisk, OsFile
from curbstone.core.engine.broker import Broker
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.options import MIB, QueueOptions, SyncMode
from tests.faults.witness import call, memory_bytes
from tests.kit.server import ServerProcess
from tests.kit.simulated import SimHost

AT_ONCE = 5000
LARGE = queue_name("large")
BYTES_PER_QUEUE, BYTES_PER_MESSAGE = 12_000, 24
"""What a queue, and a message that waits, may take of memory."""


class Unsynced(OsDisk):
    """A disk that syncs nothing: what a test prepares need not survive a power cut."""

    def sync_dir(self, path: str) -> None:
        """Nothing."""

    def open(self, path: str, *, create: bool = False) -> OsFile:
        file = super().open(path, create=create)
        file.sync = lambda: None  # type: ignore[method-assign]
        return file

    def open_lasting(self, path: str, *, create: bool = False) -> OsFile:  # type: ignore[override]
        return self.open(path, create=create)


def prepare(data: Path, queues: int, messages: int) -> None:
    """Make queues with one message each, and a large one with many, of which every tenth is settled."""
    host = SimHost(Random(1), 1_700_000_000_000)
    defaults = QueueOptions(cap=1 << 40, max_message_size=MIB)
    broker = Broker.open(host, Unsynced(data), defaults=defaults, sync=SyncMode.parse("never"))
    for number in range(queues):
        broker.ensure(queue_name(f"q{number}")).publish([Message(b"%d" % number)], _confirmed)
        host.settle()
    large = broker.ensure(LARGE)
    for start in range(0, messages, AT_ONCE):
        large.publish([Message(b"%d" % number) for number in range(start, min(start + AT_ONCE, messages))], _confirmed)
        host.settle()
    for seq in range(1, messages + 1, 10):
        large.settle_by_id(seq, lambda _error, _was_there: None)
    host.settle()
    ended: list[bool] = []
    broker.shutdown(lambda: ended.append(True))
    while not ended:
        host.settle()
        host.pass_time(10)


def _confirmed(error: object, _first: int, _count: int) -> None:
    assert error is None


def see_all(tmp_path: Path, queues: int, messages: int) -> None:
    prepare(tmp_path / "data", queues, messages)
    with ServerProcess(tmp_path / "none") as empty:
        alone = memory_bytes(empty)
    with ServerProcess(tmp_path / "data", "--cap=1TiB", "--log-level=error") as server:
        for round_ in range(2):
            assert call(server, "/readyz")[0] == 200, "the ready line comes when it is"
            counted = call(server, f"/v2/{LARGE.project}/queues/{LARGE.queue}")[1]["rdy"]
            assert counted == messages - len(range(1, messages + 1, 10))
            for number in {0, queues // 3, queues - 1, *Random(round_).sample(range(queues), min(queues, 30))}:
                assert call(server, f"/v2/default/queues/q{number}")[1]["rdy"] == 1
            held = memory_bytes(server) - alone
            assert held < 20 * MIB + queues * BYTES_PER_QUEUE + messages * BYTES_PER_MESSAGE, f"{held} bytes"
            if not round_:
                server.kill()
                server.restart()


def test_all_queues_and_messages_survive_a_restart(tmp_path: Path) -> None:
    see_all(tmp_path, 200, 30_000)


@pytest.mark.soak
def test_ten_thousand_queues_take_100_MB_and_hold_no_files_open(tmp_path: Path) -> None:
    prepare(tmp_path / "data", 10_000, 0)
    with ServerProcess(tmp_path / "none") as empty:
        alone = memory_bytes(empty)
    with ServerProcess(tmp_path / "data", "--cap=1TiB", "--log-level=error") as server:
        assert call(server, "/v2/default/queues/q9999")[1]["rdy"] == 1
        assert memory_bytes(server) - alone < 100_000_000
        assert len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) < 100


@pytest.mark.soak
def test_hundred_thousand_queues_and_ten_million_messages_survive_a_restart(tmp_path: Path) -> None:
    queues, messages = os.environ.get("CURBSTONE_QUEUES", "100000"), os.environ.get("CURBSTONE_MESSAGES", "10000000")
    see_all(tmp_path, int(queues), int(messages))
