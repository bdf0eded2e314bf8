"""Waiting for one of several events."""

from __future__ import annotations

import asyncio

import pytest

from curbstone.waiting import one_of


@pytest.mark.parametrize("which", [0, 1])
def test_waiting_ends_with_one_event(which: int) -> None:
    async def wait() -> bool:
        events = [asyncio.Event(), asyncio.Event()]
        asyncio.get_running_loop().call_soon(events[which].set)
        found = await one_of(*events, timeout_s=60)
        assert len(asyncio.all_tasks()) == 1, "nobody waits for the other any more"
        return found

    assert asyncio.run(wait())


def test_waiting_ends_without_events() -> None:
    assert not asyncio.run(one_of(asyncio.Event(), timeout_s=0.01))
