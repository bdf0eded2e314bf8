"""What RabbitMQ goes through beside kills: short of memory, short of disk, and a node that the others can't reach.

`make cluster` runs this: each fault is made by RabbitMQ's own means, and taken back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.cluster.gateway import GatewayProcess
from tests.kit.rabbitmq import Node, Nodes, needs_rabbitmq
from tests.kit.server import ServerProcess

pytestmark = [needs_rabbitmq, pytest.mark.soak]

PATIENCE_S = 180
LOOK_S = 0.2
ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "0.000001"), ("set_vm_memory_high_watermark", "0.4")),
    "disk": (("set_disk_free_limit", "900000000000000"), ("set_disk_free_limit", "50000000")),
}


class Producer:
    """Publishes over HTTP, one message after the other, and knows what was confirmed."""

    def __init__(self, gateway: ServerProcess, queues: list[str]) -> None:
        self._client = httpx.Client(base_url=gateway.url, trust_env=False, timeout=60)
        self._queues = queues
        self._number = 0
        self.confirmed: dict[str, set[str]] = {queue: set() for queue in queues}
        self.refusal = ""
        for queue in queues:
            assert self._client.put(f"/v2/default/queues/{queue}").status_code == 201

    def publish(self) -> bool:
        """Publish one into each queue; tell whether all were confirmed."""
        self._number += 1
        body = str(self._number)
        for queue in self._queues:
            reply = self._client.post(f"/v2/default/queues/{queue}/messages", content=body.encode())
            if reply.status_code != 201:
                assert reply.status_code in (503, 507), reply.text
                self.refusal = reply.json()["detail"]
                return False
            self.confirmed[queue].add(body)
        return True

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Continue publishing until this is so."""
        end_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end_s, f"it did not come; the last refusal: {self.refusal}"
            time.sleep(LOOK_S)

    def judge(self) -> None:
        """Everything that was confirmed is there."""
        for queue, confirmed in self.confirmed.items():
            found: set[str] = set()
            path = f"/v2/default/queues/{queue}/messages/lease"
            options = {"count": 1000, "wait": 1, "seconds": 600}
            while messages := self._client.post(path, json=options).json()["messages"]:
                found |= {message["message"] for message in messages}
            assert confirmed <= found, sorted(confirmed - found)
        self._client.close()

    def ready(self) -> httpx.Response:
        return self._client.get("/readyz")

    def take_one(self) -> None:
        """Take a message, acked, from the first queue."""
        reply = self._client.delete(f"/v2/default/queues/{self._queues[0]}/messages")
        assert reply.status_code == 200, reply.text
        self.confirmed[self._queues[0]].discard(reply.text)


def test_rabbitmq_resource_alarm_refuses_publishes_and_allows_acks(tmp_path: Path) -> None:
    with Nodes(tmp_path / "rabbitmq") as nodes, GatewayProcess(tmp_path / "gateway", nodes.url) as gateway:
        (node,) = nodes.nodes
        producer = Producer(gateway, ["alarms"])
        for what, (raise_it, end_it) in ALARMS.items():
            assert producer.publish()
            node.control(*raise_it)
            producer.wait_until(lambda: not producer.publish() and "accepts no messages" in producer.refusal)
            assert what in producer.refusal
            assert (producer.ready().status_code, what in producer.ready().text) == (503, True)
            producer.take_one()
            node.control(*end_it)
            producer.wait_until(producer.publish)
            producer.wait_until(lambda: producer.ready().status_code == 200)
        producer.judge()


def believe(node: Node, others: list[Node], cookie: str, then: str = "ok") -> None:
    """Have a node think that this is the cookie of the others: with a wrong one no connection between them begins."""
    names = ",".join(f"'{one.name}'" for one in others)
    node.control("eval", f"[begin erlang:set_cookie(N, {cookie}), {then} end || N <- [{names}]].")


def knows_all(node: Node) -> bool:
    """Return whether a node runs, and sees three that do."""
    try:
        status = json.loads(node.control("cluster_status", "--formatter", "json"))
    except AssertionError:  # it paused, as one does that the others can't reach
        return False
    return len(status["running_nodes"]) == 3


def test_partitioned_node_loses_no_confirmed_message(tmp_path: Path) -> None:
    with Nodes(tmp_path / "rabbitmq", 3) as nodes, GatewayProcess(tmp_path / "gateway", nodes.url) as gateway:
        cookie = (nodes.home / ".erlang.cookie").read_text(encoding="ascii")
        producer = Producer(gateway, ["p1", "p2", "p3"])
        for node in nodes.nodes:
            others = [each for each in nodes.nodes if each is not node]
            producer.wait_until(producer.publish)
            believe(node, others, "apart", "erlang:disconnect_node(N)")
            for _ in range(20):
                producer.wait_until(producer.publish)
            believe(node, others, cookie)
            for each in nodes.nodes:
                producer.wait_until(partial(knows_all, each))
            node.wait()
        producer.judge()
