"""Parts of an object store are read ahead: some at a time, in their order, and no more than fit in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from curbstone.standby.part_store import READERS, ReadAhead


class SlowStore:
    """Has parts of one byte, each of which takes until others are read as well."""

    def __init__(self, together: int) -> None:
        self._together = threading.Barrier(together, timeout=60)
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def read(self, name: str, _piece_bytes: int) -> Iterator[bytes]:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self._together.wait()
        with self._lock:
            self._now -= 1
        yield name.encode()


def test_parts_are_read_some_at_a_time_and_in_their_order() -> None:
    store = SlowStore(READERS)
    names = [f"{number:02}" for number in range(3 * READERS)]
    with ReadAhead(store, dict.fromkeys(names, 2)) as ahead:
        assert [b"".join(ahead.read(name, 0)).decode() for name in names] == names
    assert store.most == READERS


def test_parts_that_are_read_ahead_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curbstone.standby.part_store.AHEAD_BYTES_MAX", 5)
    store = SlowStore(2)
    names = [str(number) for number in range(20)]
    with ReadAhead(store, dict.fromkeys(names, 2)) as ahead:
        assert [b"".join(ahead.read(name, 0)).decode() for name in names] == names
    assert store.most == 2


def test_a_part_that_is_larger_than_the_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curbstone.standby.part_store.AHEAD_BYTES_MAX", 1)
    with ReadAhead(SlowStore(1), {"a": 2, "b": 2}) as ahead:
        assert [b"".join(ahead.read(name, 0)) for name in "ab"] == [b"a", b"b"]
