"""Waiting for one of several events."""

from __future__ import annotations

import asyncio


async def one_of(*events: asyncio.Event, timeout_s: float) -> bool:
    """Wait until one of the events is set. Return False if none was within `timeout_s` seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
