"""Files that are read again: one at a time, the last one counts, and each who asked hears of what it asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from curbstone.access.reloading import CHECK_EVERY_MS, Reloading, Reloads
from curbstone.core.errors import CurbstoneError
from tests.kit.simulated import SimHost


class ManualHost(SimHost):
    """A host whose jobs begin at once and end when the test says so, in any order."""

    def __init__(self) -> None:
        super().__init__(Random(0), 0)
        self.ends: list[Callable[[], None]] = []

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None], begin: object = None
    ) -> None:
        result = job()
        self.ends.append(lambda: done(result, None))


def reloading(host: SimHost, file: Path, taken: list[str]) -> Reloading[str]:
    def read() -> str:
        text = file.read_text()
        if text == "bad":
            raise ValueError("it is bad")
        return text

    return Reloading(host, "file", [file], read, taken.append)


def test_latest_read_wins_whichever_finishes_first(tmp_path: Path) -> None:
    """Two reloads ran at once, and that of the older file could be the last to count."""
    host, file, taken, reported = ManualHost(), tmp_path / "file", list[str](), list[str]()
    file.write_text("one")
    it = reloading(host, file, taken)
    it.reload(lambda error: reported.append(f"first {error}"))
    file.write_text("two")
    it.reload(lambda error: reported.append(f"second {error}"))
    it.reload(lambda error: reported.append(f"third {error}"))
    while host.ends:
        host.ends.pop()()
    assert taken == ["one", "two"]
    assert reported == ["first None", "second None", "third None"]


def test_reload_error_is_reported_to_the_caller_and_the_old_file_stays(tmp_path: Path) -> None:
    host, file, taken, reported = SimHost(Random(0), 0), tmp_path / "file", list[str](), list[CurbstoneError | None]()
    file.write_text("good")
    all_of_it = Reloads()
    all_of_it.add(reloading(host, file, taken))
    other = tmp_path / "other"
    other.write_text("bad")
    all_of_it.add(reloading(host, other, taken))
    all_of_it.reload(reported.append)
    host.settle()
    assert taken == ["good"]
    assert [str(error) for error in reported] == ["file: not reloaded: it is bad"]


def test_file_change_is_detected_once(tmp_path: Path) -> None:
    host, file, taken = SimHost(Random(0), 0), tmp_path / "file", list[str]()
    file.write_text("one")
    it = reloading(host, file, taken)
    for text in ("one", "changed", "changed", "bad", "good again"):
        if file.read_text() != text:
            file.write_text(text)
        host.pass_time(CHECK_EVERY_MS)
        host.settle()
    assert taken == ["changed", "good again"]
    del it
