"""Two queues with a past, as the bytes of their files, to be damaged and looked at again."""

from __future__ import annotations

from random import Random
from zlib import crc32

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import BATCH_BYTES, SEGMENT_BYTES, decode_batch_header, decode_entries
from tests.kit.lab import Lab, Peer, message

KINDS = ("flip", "zeros", "cut", "stale", "noise")


def body(number: int, size: int) -> bytes:
    text = (b"%d:" % number).ljust(size, b"abcdefghij"[number % 10 : number % 10 + 1])
    return b"%08x" % crc32(text) + text


def is_whole(data: bytes) -> bool:
    return data[:8] == b"%08x" % crc32(data[8:])


class StoredQueues:
    """Two queues with a past, as bytes; `again` makes a broker of them, with some bytes changed."""

    def __init__(self, seed: int = 0, publishes: int = 100) -> None:
        self.lab = Lab(seed=seed)
        dice = Random(seed)
        self.queue = self.lab.queue(cap=128 * 1024)
        self.other = self.lab.queue("other")
        self.live: set[int] = set()
        peer = Peer(self.lab, self.queue)
        for number in range(publishes):
            sizes = [dice.choice([20, 300, 1200]) for _ in range(dice.randrange(1, 4))]
            self.live.update(
                self.lab.publish(self.queue, *[body(number * 10 + n, size) for n, size in enumerate(sizes)])
            )
            held = list(peer.consumer.unsettled)
            settled = [seq for seq in held[:-6] if dice.random() < 0.3 or seq < held[-1] - 90]
            if settled:
                peer.ack(*settled)
                self.live.difference_update(settled)
        peer.consumer.hold()
        peer.nack(next(iter(peer.consumer.unsettled)))
        parts = self.lab.broker.transaction()
        parts.publish(self.queue, message(body(9000, 50)))
        parts.publish(self.other, message(body(9001, 50)))
        self.lab.answer(parts.commit)
        self.live.add(self.queue.state.next_seq - 1)
        self.lab.broker.disk.catch_up()
        self.files = self.lab.contents()

    def found(self, files: dict[str, bytes]) -> LocalQueue:
        """Return the queue as it is found in these files."""
        self.lab.load(files)
        self.lab.restart("kill")
        return self.lab.reopened(self.queue)

    def seqs(self, queue: LocalQueue) -> set[int]:
        """Return what is there; every body must be whole."""
        found = self.lab.peek(queue)
        assert all(is_whole(peeked.message.body) for peeked in found), "a corrupt message"
        return {peeked.message.seq for peeked in found}

    def touched(self, path: str, start: int, end: int) -> set[int]:
        """Return the seqs whose batch has one of these bytes of a file."""
        data = self.files[path]
        segment = next(segment for segment in self.queue.log.segments if segment.path == path)
        offset = SEGMENT_BYTES
        seqs: set[int] = set()
        while offset < segment.end:
            header = decode_batch_header(data, offset)
            assert header is not None
            if start < offset + header.length and offset < end:
                entries = decode_entries(data, offset + BATCH_BYTES, header.messages, header.first_seq)
                seqs.update(entry.seq for entry in entries)
            offset += header.length
        return seqs


def damaged(data: bytes, kind: str, place: int, end: int, dice: Random) -> tuple[bytes, int]:
    """Return the bytes with one damage from `place` on, and where it ends."""
    size = min(dice.choice([1, 16, 512, 4096]), end - place)
    if kind == "flip":
        return data[:place] + bytes([data[place] ^ 1 << dice.randrange(8)]) + data[place + 1 :], place + 1
    if kind == "cut":
        return data[:place], end
    if kind == "zeros":
        new = bytes(size)
    elif kind == "stale":  # a block of the same file in another place
        other = dice.randrange(end)
        new = data[other : other + size]
    else:
        new = dice.randbytes(size)
    return data[:place] + new + data[place + len(new) :], place + len(new)
