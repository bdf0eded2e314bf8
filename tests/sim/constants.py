"""Constants of the engine in a simulated run: drawn again for each life of the server.

What happens only beyond some large number happens early then. The default of a cap, and with it the size of segments,
is drawn by `tests.sim.directories`.
"""

from __future__ import annotations

from random import Random
from types import ModuleType

from curbstone.core.engine import turns
from curbstone.core.engine.broker import Broker
from curbstone.core.engine.compaction import relocate
from curbstone.core.engine.delivery import dead_letters, dispatch
from curbstone.core.engine.index import keys, level
from curbstone.core.engine.log import room
from curbstone.core.wal import sync_group
from curbstone.core.wal.redo_format import RECORDS_AT
from tests.kit.simulated import SimHost

OF_MODULES: list[tuple[ModuleType, str, list[int]]] = [
    (room, "AMPLE", [4, 4, 1]),
    (relocate, "COPY_BYTES_MAX", [128 * 1024, 4 * 1024]),
    (dispatch, "DISPATCH_MAX", [512, 3]),
    (dead_letters, "AT_ONCE", [100, 2]),
    (keys, "ENTRIES_MAX", [262_144, 3]),
    (keys, "KEYS_MAX", [100_000, 100_000, 2]),
    (level, "STEPS_AT_ONCE", [2048, 3]),
    (sync_group, "PLAIN_BYTES_MAX", [32 * 1024, 32 * 1024, 2048]),
    (sync_group, "REPORTED_AT_ONCE", [8, 1]),
    (sync_group, "REPORT_US_MAX", [50_000, 0]),
    (turns, "TURNS_AT_ONCE", [16, 1]),
    (turns, "TURN_US_MAX", [50_000, 0]),
]
REDO_BYTES = [0, 2048, 2048, 4096, 16 * 1024]
CACHE_BYTES = [64 * 1024 * 1024, 64 * 1024 * 1024, 20_000, 0]
THREADS = [1 << 60, 1 << 60, 8, 2, 1]


class Constants:
    """Those of one run; the engine has its own again when the run has ended."""

    def __init__(self, seed: int, focus: str) -> None:
        self._redo_bytes = [2048, 2048, 4096] if focus == "share" else REDO_BYTES
        self._rng = Random(f"constants {seed}")
        self._before: list[int] | None = None

    def __enter__(self) -> None:
        self._before = [getattr(module, name) for module, name, _ in OF_MODULES]

    def __exit__(self, *_error: object) -> None:
        assert self._before is not None
        for (module, name, _), value in zip(OF_MODULES, self._before, strict=True):
            setattr(module, name, value)
        self._before = None

    def draw(self) -> None:
        """Draw those of modules for a life that begins; only once the run has begun."""
        for module, name, values in OF_MODULES if self._before is not None else []:
            setattr(module, name, self._rng.choice(values))

    def give(self, broker: Broker, host: SimHost) -> None:
        """Draw those of a server that has been started."""
        broker.syncer.file_bytes = RECORDS_AT + self._rng.choice(self._redo_bytes)
        broker.shared.cache.bytes_max = self._rng.choice(CACHE_BYTES)
        host.threads = self._rng.choice(THREADS)
