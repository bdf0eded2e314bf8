"""The way for Spark that docs/cluster.md names: a queue that gets a copy of all, and a local server that takes it over.

What Spark asks of that server is GET …/browse, so that is what is asked here.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.cluster.gateway import GatewayProcess
from tests.kit.processes import COMMAND
from tests.kit.server import ServerProcess, clean_environment

PATIENCE_S = 60
BATCH = 50


@contextmanager
def following(gateway: GatewayProcess, queue: str, server: ServerProcess, cwd: Path) -> Iterator[None]:
    """Run `curbstone move --follow`, and interrupt it at the end, while it may be settling what has arrived."""
    words = ["move", "--from", queue, "--to", queue, "--to-server", server.url, "--create", "--follow"]
    process = subprocess.Popen(
        [*COMMAND, *words, "--server", gateway.url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=cwd,
        env=clean_environment(),
    )
    try:
        yield
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def publish(gateway: GatewayProcess, event: str, first: int) -> list[str]:
    """Publish a batch to an event; return its bodies."""
    bodies = [f"{number:04}" for number in range(first, first + BATCH)]
    path = f"{gateway.url}/v2/default/events/{event}/messages/batch"
    reply = httpx.post(path, json=[{"message": body} for body in bodies], timeout=PATIENCE_S, trust_env=False)
    assert reply.status_code == 201, reply.text
    return bodies


def arrived(server: ServerProcess, queue: str, last: str) -> list[str]:
    """Return the bodies by position, once `last` has come."""
    path = f"{server.url}/v2/default/queues/{queue}"
    bodies: list[str] = []
    position = 1
    with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
        while last not in bodies:
            settlement = {"wait": PATIENCE_S // 3, "after": position}
            there = client.get(f"{path}/offsets", params=settlement).json()
            assert there["next"] > position, f"{last} did not come; there are {len(bodies)}"
            page = client.get(f"{path}/browse", params={"from": position})
            bodies += [json.loads(line)["message"] for line in page.text.splitlines()]
            position = int(page.headers["next-offset"])
    return bodies


def test_bridge_copies_a_cluster_to_a_local_server_in_order(
    gateway: GatewayProcess, server: ServerProcess, tmp_path: Path
) -> None:
    event, lake, work = (f"{what}-{secrets.token_hex(3)}" for what in ("news", "lake", "work"))
    assert httpx.put(f"{server.url}/v2/default/queues/{lake}", trust_env=False).status_code == 201
    for queue in (lake, work):
        assert httpx.put(f"{gateway.url}/v2/default/queues/{queue}", timeout=60, trust_env=False).status_code == 201
        path = f"{gateway.url}/v2/default/events/{event}/queues/{queue}"
        assert httpx.put(path, timeout=PATIENCE_S, trust_env=False).is_success
    bodies = publish(gateway, event, 0)
    with following(gateway, lake, server, tmp_path):
        bodies += publish(gateway, event, BATCH)
        arrived(server, lake, bodies[-1])
        bodies += publish(gateway, event, 2 * BATCH)
        arrived(server, lake, bodies[-1])
    bodies += publish(gateway, event, 3 * BATCH)
    with following(gateway, lake, server, tmp_path):
        found = arrived(server, lake, bodies[-1])
    assert list(Counter(found)) == bodies, "each was there first in its order"
    assert max(Counter(found).values()) <= 2, "what an interruption left may come twice"
    info = httpx.get(f"{gateway.url}/v2/default/queues/{work}", timeout=PATIENCE_S, trust_env=False).json()
    assert info["rdy"] == len(bodies), "who works on it notices nothing"
