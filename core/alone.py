"""What an engine answers that shares its queues with no other server: all it knows is so now."""

from __future__ import annotations

from functools import partial

from curbstone.core.breakdown import QueueHost
from curbstone.core.host import Host
from curbstone.core.values import Done, EngineInfo


class AloneBroker:
    """The part of `core.port.Broker` that is about other servers."""

    host: Host

    @property
    def engine(self) -> EngineInfo:
        """It needs nothing but its data directory."""
        return EngineInfo("local")

    @property
    def shares_queues(self) -> bool:
        """The data directory is its own."""
        return False

    def catch_up(self, on_done: Done) -> None:
        """There is nobody else."""
        self.host.call_soon(partial(on_done, None))


class AloneQueue:
    """The part of `core.port.Queue` that is about other servers."""

    __slots__ = ()

    host: QueueHost

    def refresh(self, on_done: Done) -> None:
        """The counts are what is so now."""
        self.host.call_soon(partial(on_done, None))
