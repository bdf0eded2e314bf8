"""RabbitMQ over its STOMP plugin, with classic durable queues and with quorum queues, under the same load as Curbstone.

Curbstone with the same node as its engine is also measured, to compare the two STOMP interfaces of a quorum queue. Its
CPU and memory are those of the gateway and the node together.
"""

import contextlib
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import peer_clients
from bench.measure import Target
from bench.peer import Subject, free_port, started, together
from bench.server import Process, Server, Usage, cpu_seconds, gateway_command
from bench.stomp_load import Account, DrainJob, shown, subscribe
from bench.wire import BenchError
from bench.workloads import run_groups

WORKLOADS = frozenset(
    {
        *("send-1", "send-100", "send-1000", "drain", "pipe", "pingpong", "paced-5000"),
        *("producers-16", "producers-16x100", "queues-100", "queues-100-drain", "fanout-100"),
    }
)
QUORUM_WORKLOADS = WORKLOADS | {"queues-1000", "queues-1000-drain"}
WEB_WORKLOADS = frozenset({"send-1", "send-1000", "drain"})
GATEWAY_WORKLOADS = WORKLOADS - {"fanout-100"}
CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
stomp.listeners.tcp.1 = 127.0.0.1:{stomp}
web_stomp.tcp.listener = 127.0.0.1:{web}
"""
DURABLE = b"durable:true\nauto-delete:false\n"
QUORUM = b"x-queue-type:quorum\n" + DURABLE


@contextlib.contextmanager
def running(program: str, folder: Path) -> Iterator[list[Subject]]:
    address, web = ("127.0.0.1", free_port()), ("127.0.0.1", free_port())
    amqp = ("127.0.0.1", free_port())
    environment = _environment(folder, amqp[1], address[1], web[1])
    try:
        with contextlib.ExitStack() as stack:
            process = stack.enter_context(started([program], folder, web, environment))
            process.pid = _await_beam(process)
            classic = Account(address, ("guest", "guest"), "/", b"persistent:true\n", DURABLE)
            quorum = Account(address, ("guest", "guest"), "/", b"persistent:true\n" + QUORUM, QUORUM)
            over_web = replace(classic, address=web, web_path="/ws")
            loads = peer_clients.of_rabbitmq()
            over_amqp = partial(peer_clients.measured, Target("RabbitMQ", process, Account(amqp)), amqp, loads)
            subjects_of_gateway = stack.enter_context(_gateway(folder, process, amqp[1]))
            yield [
                together(
                    _subject("RabbitMQ quorum", process, quorum, QUORUM_WORKLOADS), peer_clients.names(loads), over_amqp
                ),
                _subject("RabbitMQ classic durable", process, classic, WORKLOADS),
                _subject("RabbitMQ Web-STOMP, classic", process, over_web, WEB_WORKLOADS),
                *subjects_of_gateway,
            ]
    finally:
        # Erlang's name server was started by the node and would stay. It has its own port, so it can be ended.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, timeout=10, check=False)


def _subject(name: str, process: Process, account: Account, workloads: frozenset[str]) -> Subject:
    target = RabbitTarget(name, process, account)
    return Subject(name, lambda size, plan: run_groups(target, set(workloads), size, plan), workloads)


class RabbitTarget(Target):
    """A node whose queues are created and deleted over STOMP, including those of durable topic subscriptions."""

    def name_of_queue(self) -> str:
        return super().name_of_queue() + "".join(re.findall(r"\w", self.name))

    def declare(self, queue: str) -> None:
        """Create the queue before the first send.

        Otherwise sixteen simultaneous first sends to a missing quorum queue would close connections.
        """
        self._make(DrainJob(self.account, f"/queue/{queue}", (0,), 0, 1))

    @property
    def binds(self) -> bool:
        return True

    def bind(self, event: str, queues: Sequence[str]) -> str:
        """Bind the queues to the exchange amq.topic, with the event as the routing key."""
        for queue in queues:
            self._make(self._durable(event, queue))
        return f"/topic/{event}"

    def delete_queue(self, queue: str) -> None:
        """Delete a queue by ending its durable subscription, because an unused quorum queue also uses CPU."""
        wire = self.account.connect()
        subscribe(wire, self._durable(queue, queue))
        name = queue.encode()
        wire.send(
            b"UNSUBSCRIBE\nid:0\ndestination:/topic/%s\nx-queue-name:%s\n%sreceipt:end\n\n\0" % (name, name, DURABLE)
        )
        # A quorum queue may deliver messages again that were acknowledged just before their consumer left.
        while not (frame := wire.receive_until(b"\0").lstrip()).startswith(b"RECEIPT"):
            if not frame.startswith(b"MESSAGE"):
                raise BenchError(f"RabbitMQ does not delete {queue}: {shown(frame)}")
        wire.close()

    def _durable(self, event: str, queue: str) -> DrainJob:
        """Return the job of a durable topic subscription, which creates and keeps this queue."""
        headers = b"x-queue-name:%s\n%s" % (queue.encode(), self.account.subscribe_headers)
        return DrainJob(replace(self.account, subscribe_headers=headers), f"/topic/{event}", (0,), 0, 1)

    def _make(self, job: DrainJob) -> None:
        """Create the queue of a subscription."""
        wire = self.account.connect()
        subscribe(wire, job, receipt=True)
        wire.close()


class GatewayTarget(Target):
    """A gateway, together with the node that stores its messages."""

    def __init__(self, name: str, gateway: Server, node: Process, account: Account) -> None:
        super().__init__(name, gateway, account, gateway.http, gateway.mqks)
        self._node = node

    def usage(self) -> Usage:
        used = super().usage()
        return replace(used, cpu_s=used.cpu_s + self._node.cpu_s())


@contextlib.contextmanager
def _gateway(folder: Path, node: Process, port: int) -> Iterator[list[Subject]]:
    """Return Curbstone on the node, over TCP and over WebSockets; nothing if the required extra is not installed."""
    if importlib.util.find_spec("pika") is None:
        yield []
        return
    gateway = Server(gateway_command(f"amqp://guest:guest@127.0.0.1:{port}/"), folder / "gateway.log")
    try:
        over_tcp = Account(gateway.stomp)
        over_web = Account(gateway.http, web_path="/stomp")
        yield [
            _measured("Curbstone on RabbitMQ quorum", gateway, node, over_tcp, GATEWAY_WORKLOADS),
            _measured("Curbstone on RabbitMQ quorum, WebSocket", gateway, node, over_web, WEB_WORKLOADS),
        ]
    finally:
        gateway.stop()


def _measured(name: str, gateway: Server, node: Process, account: Account, workloads: frozenset[str]) -> Subject:
    target = GatewayTarget(name, gateway, node, account)
    return Subject(name, lambda size, plan: run_groups(target, set(workloads), size, plan), workloads)


def _environment(folder: Path, amqp: int, stomp: int, web: int) -> dict[str, str]:
    (folder / "rabbitmq.conf").write_text(CONFIG.format(amqp=amqp, stomp=stomp, web=web))
    (folder / "enabled_plugins").write_text("[rabbitmq_stomp,rabbitmq_web_stomp].\n")
    return {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(free_port()),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }


def _await_beam(process: Process) -> int:
    """Return the pid of the Erlang VM of the start script: the process with most CPU time in its session."""
    session = process.popen.pid
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    own = [pid for pid in pids if _session_of(pid) == session]
    return max(own, key=cpu_seconds, default=session)


def _session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return -1
