"""Three nodes and two gateways under load, while nodes and gateways are killed, stopped and restarted: nothing that
was confirmed is missing at the end.

`make cluster` runs this for CURBSTONE_CLUSTER_SECONDS.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.cluster.gateway import GatewayProcess
from tests.cluster.load import Load, make_queues
from tests.kit.rabbitmq import Node, Nodes, needs_rabbitmq

SECONDS = float(os.environ.get("CURBSTONE_CLUSTER_SECONDS", "600"))
QUIET_S = 15
STILL_S = 5
MATTERS = ("lost", "phantom", "corrupt")
"""What the judge finds that no engine may do. On a cluster a message may be stored twice, come again after its ack and
be given to two consumers at once when connections are lost; docs/cluster.md says when."""


class Chaos:
    """What is done to the cluster, one thing at a time; each leaves it whole again."""

    def __init__(self, nodes: Nodes, gateways: list[GatewayProcess], dice: Random) -> None:
        self._nodes = nodes
        self._gateways = gateways
        self._dice = dice
        self._next = 0
        self.done: dict[str, int] = {}

    def step(self) -> None:
        steps: list[Callable[[], str]] = [
            self._kill_node, self._kill_gateway, self._stop_node, self._restart_gateway, self._restart_node,
        ]  # fmt: skip
        what = steps[self._next % len(steps)]()
        self._next += 1
        self.done[what] = self.done.get(what, 0) + 1

    def _node(self) -> Node:
        return self._dice.choice(self._nodes.nodes)

    def _kill_node(self) -> str:
        node = self._node()
        node.kill()
        time.sleep(STILL_S)
        node.start()
        node.wait()
        return "nodes killed"

    def _stop_node(self) -> str:
        """It answers nothing, and does not say that it is gone."""
        node = self._node()
        node.send_signal(signal.SIGSTOP)
        time.sleep(self._dice.uniform(3, 25))
        node.send_signal(signal.SIGCONT)
        return "nodes stopped for a while"

    def _restart_node(self) -> str:
        node = self._node()
        node.stop()
        node.start()
        node.wait()
        return "nodes restarted"

    def _kill_gateway(self) -> str:
        gateway = self._dice.choice(self._gateways)
        gateway.kill()
        gateway.restart(same_ports=True)
        return "gateways killed"

    def _restart_gateway(self) -> str:
        gateway = self._dice.choice(self._gateways)
        assert gateway.stop() == 0
        gateway.restart(same_ports=True)
        return "gateways restarted"


def run(home: Path, seconds: float) -> None:
    """Run load and chaos for a while, then judge."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    with Nodes(home / "rabbitmq", 3) as nodes:
        first = GatewayProcess(home / "one", nodes.url)
        with first:
            second = GatewayProcess(home / "two", nodes.url)
            with second:
                gateways = [first, second]
                queues = [f"/queue/kills/q{number}" for number in range(3)]
                make_queues(first, queues)
                load = Load(gateways, queues, seed)
                load.start()
                chaos = Chaos(nodes, gateways, Random(seed))
                end_s = time.monotonic() + seconds
                while time.monotonic() < end_s and not load.failures:
                    time.sleep(STILL_S)
                    chaos.step()
                load.stop()
                load.drain(QUIET_S)
                verdict = load.history.judge()
                print(verdict.figures())
                print(f"{chaos.done}; longest pause of a producer {load.pause_s:.1f} s")
                assert not load.failures, load.failures
                assert verdict.confirmed > 1000
                verdict.problems = {kind: found for kind, found in verdict.problems.items() if kind in MATTERS}
                verdict.check()


@needs_rabbitmq
@pytest.mark.soak
def test_nothing_confirmed_is_lost_while_a_majority_lives(tmp_path: Path) -> None:
    run(tmp_path, SECONDS)
