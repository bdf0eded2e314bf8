"""How a test ends an engine that it runs in its own process."""

from __future__ import annotations

import asyncio

from curbstone.core.engine.broker import Broker
from curbstone.core.host import AsyncioHost

END_S_MAX = 60


async def end_engine(broker: Broker, host: AsyncioHost) -> None:
    """Shut it down in order, and let its threads finish."""
    stopped = asyncio.Event()
    broker.shutdown(stopped.set)
    await asyncio.wait_for(stopped.wait(), END_S_MAX)
    host.close()
