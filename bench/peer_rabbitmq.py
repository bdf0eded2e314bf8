"""RabbitMQ over its STOMP plugin, with classic durable and with quorum queues: the same load as for curbstone."""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Target
from bench.peer import Measured, free_port, started
from bench.server import Process, cpu_seconds
from bench.stomp_load import Account, DrainJob, subscribe
from bench.workloads import Plan, run_groups

BEHIND = "/usr/lib/rabbitmq/bin/rabbitmq-server"
WORKLOADS = {"send-1", "send-1000", "drain", "pipe", "pingpong", "producers-16"}
CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
stomp.listeners.tcp.1 = 127.0.0.1:{stomp}
"""
QUORUM = b"x-queue-type:quorum\ndurable:true\nauto-delete:false\n"


def measure(program: str, folder: Path, sizes: Sequence[int], plan: Plan) -> Measured:
    # Debian's script on PATH changes the user and uses the system's folders; the one behind it does not.
    if Path(BEHIND).exists():
        program = BEHIND
    address = ("127.0.0.1", free_port())
    environment = _environment(folder, address[1])
    try:
        with started([program], folder, address, environment) as process:
            process.pid = _await_beam(process)
            login = Account(address, ("guest", "guest"), host="/", send_headers=b"persistent:true\n")
            quorum = Account(address, ("guest", "guest"), "/", b"persistent:true\n" + QUORUM, QUORUM)
            for name, account in [("RabbitMQ classic durable", login), ("RabbitMQ quorum", quorum)]:
                target = RabbitTarget(name, process, account)
                yield name, [one for size in sizes for one in run_groups(target, WORKLOADS, size, plan)]
    finally:
        # Erlang's name server starts by itself and would stay; this one is on a port of its own.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, timeout=10, check=False)


class RabbitTarget(Target):
    def new_queue(self) -> str:
        """Declared before anyone sends: sixteen first sends at once to a missing quorum queue cut connections."""
        name = f"{super().new_queue()}-{'quorum' if self.account.subscribe_headers else 'classic'}"
        wire = self.account.connect()
        subscribe(wire, DrainJob(self.account, f"/queue/{name}", (0,), 0, 1), receipt=True)
        wire.close()
        return name


def _environment(folder: Path, stomp: int) -> dict[str, str]:
    (folder / "rabbitmq.conf").write_text(CONFIG.format(amqp=free_port(), stomp=stomp))
    (folder / "enabled_plugins").write_text("[rabbitmq_stomp].\n")
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
    """The pid of the Erlang machine that the start script started: it has the session's most CPU time."""
    session = process.popen.pid
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    own = [pid for pid in pids if _session_of(pid) == session]
    return max(own, key=cpu_seconds, default=session)


def _session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return -1
