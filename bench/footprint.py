"""The cost of an idle server: the time of its start, its memory, and its CPU with idle clients connected."""

import time
from pathlib import Path

from bench.server import Server, curbstone_command
from bench.stomp_load import Account, DrainJob, subscribe

CLIENTS = 100
SETTLE_S = 1.0
"""The wait until all work of the connecting clients is over."""


def measure(folder: Path, cap: int, seconds: float) -> dict[str, float]:
    """Return start_to_accept_s and rss_mb, and rss_mb and CPU (% of a core) with CLIENTS subscribed connections."""
    server = Server(curbstone_command(folder / "footprint", cap), folder / "footprint.log")
    figures = {"start_to_accept_s": server.start_s, "idle_rss_mb": server.rss() / 1e6}
    try:
        account = Account(server.stomp)
        wires = [account.connect() for _ in range(CLIENTS)]
        for number, wire in enumerate(wires):
            subscribe(wire, DrainJob(account, f"/queue/idle-{number % 10}", (0,), 0, 100), receipt=True)
        time.sleep(SETTLE_S)
        before, started = server.cpu_s(), time.monotonic()
        time.sleep(seconds)
        used = (server.cpu_s() - before) / (time.monotonic() - started)
        figures[f"idle_cpu_percent_{CLIENTS}_clients"] = used * 100
        figures[f"rss_mb_{CLIENTS}_clients"] = server.rss() / 1e6
        for wire in wires:
            wire.close()
        return figures
    finally:
        server.stop()
