"""A data directory that a server wrote before there were redo files (log format 1) is read, and goes on."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.engine.log.format import FORMAT, FORMAT_WITHOUT_REDO, SEGMENT_BYTES, decode_segment_header
from curbstone.core.host import AsyncioHost
from curbstone.core.message import Delivery, Message
from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions, SyncMode
from tests.engine_end import end_engine

OLD = Path(__file__).with_name("format1.tar.gz")


def formats(root: Path) -> set[int]:
    headers = [decode_segment_header(path.read_bytes()[:SEGMENT_BYTES]) for path in root.glob("queues/*/*.seg")]
    return {header.format for header in headers if header is not None}


def test_what_format_1_held_is_served_and_new_segments_are_of_the_new_format(tmp_path: Path) -> None:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    assert formats(tmp_path) == {FORMAT_WITHOUT_REDO}

    async def main() -> list[bytes]:
        host = AsyncioHost(asyncio.get_running_loop(), threads=2)
        broker = Broker.open(host, OsDisk(tmp_path), defaults=QueueOptions(), sync=SyncMode.parse("always"))
        queues = [broker.get(queue_name(name)) for name in ("orders", "mail")]
        got: list[Delivery] = []
        answers: list[object] = []
        for queue in queues:
            queue.subscribe(got.extend, window=4, on_closed=lambda _error: None)
        for _ in range(12):  # in one turn: of segments of format 1 a redo file must not speak
            for queue in queues:
                queue.publish([Message(bytes(100_000), b"")], lambda error, _f, _n: answers.append(error), atomic=True)
        while len(answers) < 24 or len(got) < 8:
            await asyncio.sleep(0)
        await end_engine(broker, host)
        assert answers == [None] * 24
        return [bytes(delivery.message.body) for delivery in got]

    found = asyncio.run(main())
    assert [body for body in found if body.startswith(b"order")] == [b"order 1", b"order 2", b"order 3", b"order 4"]
    assert b"letter" in found
    assert FORMAT in formats(tmp_path)
