"""The answers of an engine that shares its queues with no other server: what it knows is always up to date."""

from __future__ import annotations

from functools import partial

from curbstone.core.engine.fault_barrier import FaultBarrier
from curbstone.core.host import Host
from curbstone.core.values import Done, EngineInfo


class AloneBroker:
    """The part of `core.port.Broker` that is about other servers."""

    host: Host

    @property
    def engine(self) -> EngineInfo:
        """The local engine, which needs nothing but its data directory."""
        return EngineInfo("local")

    @property
    def shares_queues(self) -> bool:
        """False, because no other server uses the data directory."""
        return False

    def catch_up(self, on_done: Done) -> None:
        """Call back in the next turn, because there are no other servers."""
        self.host.call_soon(partial(on_done, None))


class AloneQueue:
    """The part of `core.port.Queue` that is about other servers."""

    __slots__ = ()

    host: FaultBarrier

    def refresh(self, on_done: Done) -> None:
        """Call back in the next turn, because the counts are always up to date."""
        self.host.call_soon(partial(on_done, None))
