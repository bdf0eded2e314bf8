"""How long the way of a message is: calls and files from a SEND to its RECEIPT and MESSAGE, from an ACK to its RECEIPT.

A bound that is reached is a reason to look at what was added to the way, and one that is far away to lower it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

from tests.stomp.serving import SUB, World, serving

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SEND_CALLS_MAX = 143
SEND_CORE_CALLS_MAX = 100
SEND_CORE_FILES_MAX = 25
ACK_CALLS_MAX = 133
ACK_CORE_CALLS_MAX = 92
ACK_CORE_FILES_MAX = 22


def is_test(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).is_relative_to(TESTS)


def ours(frame: FrameType) -> str:
    """Return the file of a frame, such as core/engine/queue.py; "" for others' and the tests'."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT) or ".venv" in path.parts or is_test(frame):
        return ""
    return path.relative_to(ROOT).as_posix().removeprefix("curbstone/")


class Trace:
    """Counts the calls of our functions, on the loop's thread."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Trace:
        sys.setprofile(self._event)  # of the event loop; the disk's threads do a handful of calls
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and (file := ours(frame)) and not (frame.f_back and is_test(frame.f_back)):
            self.calls[file, frame.f_code.co_name] += 1

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    @property
    def core_total(self) -> int:
        return sum(count for (file, _), count in self.calls.items() if file.startswith("core/"))

    @property
    def core_files(self) -> set[str]:
        return {file for file, _ in self.calls if file.startswith("core/")}


async def traced(world: World) -> tuple[Trace, Trace]:
    peer = await world.peer()
    await peer.send(SUB)
    best: list[Trace] = []
    for n in range(20):
        with Trace() as sent:
            await peer.send(b"SEND\ndestination:/queue/a\nreceipt:r\n\nbody\0")
            frames = [await peer.frame(), await peer.frame()]
            await asyncio.sleep(0.02)  # what the commit is followed by belongs to the way
        assert {frame.command for frame in frames} == {"RECEIPT", "MESSAGE"}
        ack = next(frame.headers["ack"] for frame in frames if frame.command == "MESSAGE")
        with Trace() as acked:
            await peer.send(b"ACK\nid:%b\nreceipt:a\n\n\0" % ack.encode())
            assert (await peer.frame()).command == "RECEIPT"
            await asyncio.sleep(0.02)
        # The first ones make the queue and fill caches; of the others the least disturbed one counts.
        best = (
            [sent, acked]
            if n < 5
            else [min(pair, key=lambda t: t.total) for pair in zip(best, [sent, acked], strict=True)]
        )
    return best[0], best[1]


@pytest.mark.source
def test_calls_of_a_message_and_its_ack_stay_within_budget(tmp_path: Path) -> None:
    async def main() -> tuple[Trace, Trace]:
        async with serving(tmp_path) as world:
            return await traced(world)

    sent, acked = asyncio.run(main())
    for trace, name in ((sent, "SEND"), (acked, "ACK")):
        print(name, trace.total, "calls,", trace.core_total, "of them in", len(trace.core_files), "files of core")
        print(trace.calls.most_common(40))
    assert len(sent.core_files) > 10 < len(acked.core_files), "nothing was traced"
    assert sent.total <= SEND_CALLS_MAX
    assert sent.core_total <= SEND_CORE_CALLS_MAX and len(sent.core_files) <= SEND_CORE_FILES_MAX
    assert acked.total <= ACK_CALLS_MAX
    assert acked.core_total <= ACK_CORE_CALLS_MAX and len(acked.core_files) <= ACK_CORE_FILES_MAX
