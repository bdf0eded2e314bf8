"""A switchover that a server has begun ends in one of two ways: it continues, or it has handed over and shuts down."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from curbstone.core.errors import Conflict, Unavailable
from curbstone.standby import handover
from curbstone.standby.handover import Handover
from tests.standby.test_second_copy import FakeEnding


def begin(ending: FakeEnding, give: Any) -> Handover:
    state = SimpleNamespace(term=1, wants_full_copy=False)
    files: Any = SimpleNamespace(state=state, change=lambda **_: None)
    standby: Any = SimpleNamespace(name="other", acknowledged=0, is_closed=True, take_over=lambda: None)
    stream: Any = SimpleNamespace(end=0)
    return Handover(stream, files, standby, ending, lambda: False, give)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "END_S", 0)


def test_server_shuts_down_after_a_switchover() -> None:
    async def switch_over() -> FakeEnding:
        ending = Ending()
        await begin(ending, lambda: None).switch_over()
        await ending.is_over.wait()
        return ending

    ending = asyncio.run(switch_over())
    assert ending.terms == [2] and ending.is_frozen


def test_server_continues_after_a_failed_switchover() -> None:
    ending = FakeEnding()

    def give() -> None:
        raise Unavailable("no store")

    with pytest.raises(Unavailable, match="no store"):
        asyncio.run(begin(ending, give).switch_over())
    assert not ending.terms and not ending.is_frozen


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_that_leaves_does_not_stop_a_switchover(fails: bool) -> None:
    """The server confirmed again while it was handing over, and continued after that: there were two servers."""
    has_begun, may_end = threading.Event(), threading.Event()

    def give() -> None:
        has_begun.set()
        may_end.wait()
        if fails:
            raise Conflict("another server has the lease")

    async def switch_over() -> FakeEnding:
        ending = Ending()
        call = asyncio.create_task(begin(ending, give).switch_over())
        await asyncio.to_thread(has_begun.wait)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ending.is_frozen and not ending.terms
        may_end.set()
        await ending.is_over.wait()
        return ending

    ending = asyncio.run(switch_over())
    assert (ending.terms, ending.is_frozen) == (([], False) if fails else ([2], True))


class Ending(FakeEnding):
    """Reports when the server continues or shuts down."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = asyncio.Event()

    def thaw(self) -> None:
        super().thaw()
        self.is_over.set()

    def __call__(self, term: int) -> None:
        super().__call__(term)
        self.is_over.set()
