"""Servers that are killed or stopped, connections that are reset, processes that fork: nothing confirmed is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from curbstone_client import Stale, Unknown
from tests.client.proxy import Proxy
from tests.client.shells import SHELLS, Shell
from tests.kit.server import ServerProcess, clean_environment

WAYS = [(shell, way) for shell in SHELLS for way in ("http", "stomp")]


def url_of(server: ServerProcess, way: str) -> str:
    host, port = server.http if way == "http" else server.stomp
    return f"{way}://{host}:{port}"


def drain(shell: Shell, queue: str, count: int) -> Counter[bytes]:
    """Take messages until so many different ones came, and ack them."""
    messages = shell.consume(queue)
    found: Counter[bytes] = Counter()
    while len(found) < count:
        message = shell.take(messages)
        found[message.body] += 1
        shell.settle(message, "ack")
    return found


class Producer(threading.Thread):
    """Publishes until it is stopped, at most `count` messages."""

    def __init__(self, shell: Shell, count: int) -> None:
        super().__init__()
        self.sent: list[Any] = []
        self._shell = shell
        self._count = count
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        while len(self.sent) < self._count and not self._stop_asked.is_set():
            self.sent.append(self._shell.send("jobs", b"%d" % len(self.sent)))

    def stop(self) -> list[Any]:
        self._stop_asked.set()
        self.join()
        self._shell.flush()
        return self.sent


def check_all_there(shell: Shell, sent: list[Any]) -> None:
    """All were confirmed and are there, once each, in order."""
    stored = [shell.result(confirm) for confirm in sent]
    assert not any(each.maybe_repeated for each in stored)
    shell.publish("jobs", b"end")
    found = drain(shell, "jobs", len(sent) + 1)
    assert list(found) == [*(b"%d" % number for number in range(len(sent))), b"end"]
    assert set(found.values()) == {1}


def kill_while_publishing(server: ServerProcess, shell: Shell, kills: int) -> None:
    for kill in range(kills):
        before = shell.client.stats.confirmed
        producer = Producer(shell, 100_000)
        while shell.client.stats.confirmed < before + 250:
            pass
        server.kill()
        server.restart(same_ports=True)
        check_all_there(shell, producer.stop())
        assert shell.client.stats.reconnects > kill


@pytest.mark.parametrize(("name", "way"), [WAYS[0], WAYS[-1]])
def test_killed_server_loses_nothing_confirmed(server: ServerProcess, name: str, way: str) -> None:
    with SHELLS[name](url_of(server, way), window=500) as shell:
        kill_while_publishing(server, shell, 1)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "way"), WAYS)
def test_many_kills_lose_nothing(server: ServerProcess, name: str, way: str) -> None:
    with SHELLS[name](url_of(server, way)) as shell:
        kill_while_publishing(server, shell, 10)


def consume_all(shell: Shell, count: int, kill: Any, kills: int) -> None:
    """Ack each message and wait for the disk, while the server is killed: what was confirmed never comes again."""
    acked: set[bytes] = set()
    deliveries: Counter[tuple[str, int, int]] = Counter()
    messages = shell.consume("jobs", 50)
    killed = 0
    while len(acked) < count:
        message = shell.take(messages)
        assert message.body not in acked, "an ack that was confirmed came to nothing"
        deliveries[message.id, message.tries, message.epoch] += 1
        try:
            shell.result(shell.settle(message, "ack"))
        except (Stale, Unknown):
            pass
        else:
            acked.add(message.body)
        if killed < kills and len(acked) >= (killed + 1) * count // (kills + 1):
            killed += 1
            kill()
    assert max(deliveries.values()) == 1, "a handler would have started twice on one delivery"


@pytest.mark.parametrize("name", SHELLS)
def test_confirmed_acks_are_never_lost(server: ServerProcess, name: str) -> None:
    with SHELLS[name](url_of(server, "http")) as shell:
        for number in range(60):
            shell.send("jobs", b"%d" % number)
        shell.flush()

        def kill() -> None:
            server.kill()
            server.restart(same_ports=True)

        consume_all(shell, 60, kill, 1)


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_reset_connections_lose_nothing(server: ServerProcess, name: str, way: str) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    target = server.http if way == "http" else server.stomp
    with Proxy(target, random.Random(seed), 20_000) as proxy:
        proxy.resets_left = 5
        with SHELLS[name](f"{way}://127.0.0.1:{proxy.port}") as shell:
            for _ in range(10):
                producer = Producer(shell, 500)
                producer.join()
                check_all_there(shell, producer.stop())
                if not proxy.resets_left:
                    break
            assert proxy.resets == 5


@pytest.mark.parametrize("name", SHELLS)
def test_client_waits_for_a_paused_server(server: ServerProcess, name: str) -> None:
    with SHELLS[name](url_of(server, "http")) as shell:
        shell.publish("jobs", b"0")
        os.kill(server.process.pid, signal.SIGSTOP)
        sent = [shell.send("jobs", b"%d" % number) for number in range(1, 100)]
        with pytest.raises(Unknown, match="may still arrive"):
            shell.publish("jobs", b"100", timeout=0.2)
        os.kill(server.process.pid, signal.SIGCONT)
        shell.flush()
        for confirm in sent:
            shell.result(confirm)
        assert set(drain(shell, "jobs", 101).values()) == {1}


@pytest.mark.soak
@pytest.mark.parametrize("name", SHELLS)
def test_client_leaves_a_silent_server(server: ServerProcess, name: str) -> None:
    with SHELLS[name](url_of(server, "http")) as shell:
        shell.publish("jobs", b"0")
        link = shell.client._links[0]
        os.kill(server.process.pid, signal.SIGSTOP)
        while link.is_up:
            pass
        assert "nothing received from the server for 20 s" in str(link.last_failure)
        os.kill(server.process.pid, signal.SIGCONT)
        shell.publish("jobs", b"1")


def test_close_gives_up_after_its_timeout(server: ServerProcess) -> None:
    for make in SHELLS.values():
        shell = make(url_of(server, "http"))
        os.kill(server.process.pid, signal.SIGSTOP)
        confirm = shell.send("jobs", b"x")
        shell.call("close", 0.1)
        os.kill(server.process.pid, signal.SIGCONT)
        with pytest.raises(Unknown, match="closed before"):
            confirm.stored()
        shell.close()


FORKING = """
import os, sys
from curbstone_client.sync import Client
with Client(sys.argv[1], project="shop") as client:
    queue = client.queue("forks")
    queue.publish("parent")
    child = os.fork()
    if not child:
        queue.publish("child")
        client.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    queue.publish("parent again")
    print(client.stats.reconnects, queue.info()["rdy"])
"""


def test_forked_child_opens_its_own_connections(server: ServerProcess, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, server.url],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("0 3\n", 0), done.stderr
