"""Transactions over two queues while the gateway that commits them is killed: whole, or not at all."""

from __future__ import annotations

import secrets
import threading
import time
from pathlib import Path

import httpx

from tests.cluster.gateway import GatewayProcess
from tests.crash.stomp_peer import StompPeer, encode
from tests.kit.server import ServerProcess

PATIENCE_S = 120
LIVES, ENOUGH = 2, 40
"""How often the gateway is killed, and how many commits it has confirmed before that."""


class Committer(threading.Thread):
    """Commits one transaction after the other, a message into each queue, until the gateway is gone."""

    def __init__(self, gateway: ServerProcess, queues: tuple[str, str], boot: int) -> None:
        super().__init__(daemon=True)
        self._address = gateway.stomp
        self._queues = queues
        self._boot = boot
        self.confirmed: list[str] = []
        self.has_enough = threading.Event()

    def run(self) -> None:
        try:
            with StompPeer(self._address, PATIENCE_S) as peer:
                for number in range(100_000):
                    body = f"{self._boot}-{number}"
                    begin = encode("BEGIN", {"transaction": body})
                    sends = [
                        encode("SEND", {"destination": f"/queue/{queue}", "transaction": body}, body.encode())
                        for queue in self._queues
                    ]
                    peer.send(b"".join([begin, *sends]))
                    assert peer.call("COMMIT", {"transaction": body}).command == "RECEIPT"
                    self.confirmed.append(body)
                    if len(self.confirmed) == ENOUGH:
                        self.has_enough.set()
        except OSError:
            pass  # the gateway was killed
        finally:
            self.has_enough.set()


def bodies(gateway: ServerProcess, queue: str) -> set[str]:
    """Take all that there is in a queue now; a busy node may need longer to bring the rest."""
    found: set[str] = set()
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False) as client:
        path = f"/v2/default/queues/{queue}/messages/lease"
        while messages := client.post(path, json={"count": 1000, "wait": 1, "seconds": 600}).json()["messages"]:
            found |= {message["message"] for message in messages}
    return found


def test_killed_gateway_leaves_transactions_atomic(node_url: str, tmp_path: Path) -> None:
    name = secrets.token_hex(3)
    queues = (f"tx-{name}-a", f"tx-{name}-b")
    confirmed: list[str] = []
    with GatewayProcess(tmp_path / "stays", node_url) as stays, GatewayProcess(tmp_path / "dies", node_url) as dies:
        for queue in queues:
            assert httpx.put(f"{stays.url}/v2/default/queues/{queue}", trust_env=False).status_code == 201
        for boot in range(LIVES):
            committers = [Committer(dies, queues, 10 * boot + number) for number in range(3)]
            for committer in committers:
                committer.start()
            for committer in committers:
                assert committer.has_enough.wait(PATIENCE_S)
            dies.kill()
            for committer in committers:
                committer.join(PATIENCE_S)
                confirmed += committer.confirmed
            dies.restart()
        first, second = set[str](), set[str]()
        end_s = time.monotonic() + PATIENCE_S
        while (first != second or not set(confirmed) <= first) and time.monotonic() < end_s:
            first |= bodies(stays, queues[0])
            second |= bodies(stays, queues[1])
    assert len(confirmed) >= LIVES * ENOUGH
    assert first == second, "half of a transaction"
    assert set(confirmed) <= first, "committed and lost"
