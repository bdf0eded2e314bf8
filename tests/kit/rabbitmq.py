"""Real RabbitMQ nodes for tests: on this machine, loopback only, with directories and ports of their own.

Nothing of a RabbitMQ that the system runs is touched: own names, own cookie, own port mapper (epmd), own processes,
which are ended by their ids.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("CURBSTONE_RABBITMQ", "/usr/lib/rabbitmq/bin"))
"""Where the scripts of the version are that is tested. Those in /usr/sbin change the user."""
SERVER = FOLDER / "rabbitmq-server"
CONTROL = FOLDER / "rabbitmqctl"
START_S_MAX = 120
STOP_S_MAX = 30

ERLANG_ARGS = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
"""Few schedulers that do not spin: the tests share the machine."""


def missing() -> str:
    """Return why no node can be started here, or an empty text."""
    if not SERVER.exists():
        return f"there is no {SERVER}; `make test` brings RabbitMQ by apt-get where it runs as root"
    if shutil.which("epmd") is None:
        return "there is no epmd, Erlang's port mapper"
    return "" if os.geteuid() == 0 else "RabbitMQ's scripts want root or their own user"


def free_port() -> int:
    """Return a free port of the loopback."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Node:
    """One node, running when the constructor of `Nodes` returns."""

    def __init__(self, nodes: Nodes, number: int) -> None:
        self.name = f"{nodes.prefix}{number}@localhost"
        self.port = free_port()
        self.distribution_port = free_port()
        self._nodes = nodes
        self._home = nodes.home / str(number)
        self._home.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the Erlang machine."""
        return int((self._home / "pid").read_text(encoding="ascii"))

    @property
    def log(self) -> str:
        """What the node has written."""
        return (self._home / "output").read_text(encoding="utf-8", errors="replace")

    def environment(self) -> dict[str, str]:
        """Return what the scripts of RabbitMQ need to know."""
        home = self._home
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))},
            "HOME": str(self._nodes.home),
            "ERL_EPMD_PORT": str(self._nodes.mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG_ARGS,
            "RABBITMQ_CTL_ERL_ARGS": ERLANG_ARGS,
        }

    def start(self) -> None:
        """Start it; it may take 10 s until it answers, see `wait`."""
        home = self._home
        peers = [
            f"cluster_formation.classic_config.nodes.{place} = {node.name}"
            for place, node in enumerate(self._nodes.nodes, 1)
        ]
        (home / "rabbitmq.conf").write_text(
            "\n".join(
                [
                    f"listeners.tcp.1 = 127.0.0.1:{self.port}",
                    "loopback_users = none",
                    "heartbeat = 10",
                    "cluster_partition_handling = pause_minority",
                    "consumer_timeout = 691200000",
                    "cluster_formation.peer_discovery_backend = classic_config",
                    *peers,
                    "",
                ]
            ),
            encoding="ascii",
        )
        (home / "enabled_plugins").write_text(f"[{self._nodes.plugins}].", encoding="ascii")
        with (home / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [str(SERVER)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(),
                cwd=home,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it takes connections."""
        deadline_s = time.monotonic() + START_S_MAX
        assert self.process is not None
        while True:
            assert self.process.poll() is None, f"RabbitMQ ended while it started:\n{self.log}"
            assert time.monotonic() < deadline_s, f"RabbitMQ did not start in {START_S_MAX} s:\n{self.log}"
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
                    sock.sendall(b"AMQP\x00\x00\x09\x01")
                    if sock.recv(1):
                        return
            except OSError:
                time.sleep(0.1)

    def send_signal(self, number: int) -> None:
        """Send a signal to the Erlang machine."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL, as the loss of its machine would."""
        self.send_signal(signal.SIGKILL)
        self._gone()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        if self.process is not None and self.process.poll() is None:
            try:
                self.send_signal(signal.SIGCONT)
                self.send_signal(signal.SIGTERM)
            except (OSError, ValueError):
                self.process.kill()
            self._gone()

    def _gone(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session of its own
            self.process.wait()
        self.process = None

    def control(self, *words: str) -> str:
        """Run `rabbitmqctl`; takes seconds."""
        done = subprocess.run(
            [str(CONTROL), "-q", "-n", self.name, *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class Nodes:
    """A cluster of `count` nodes in `home`; a context manager that ends them all."""

    def __init__(self, home: Path, count: int = 1, plugins: str = "") -> None:
        self.home = home
        self.prefix = f"cs{os.getpid()}n"
        self.plugins = plugins
        self.mapper_port = free_port()
        home.mkdir(exist_ok=True)
        cookie = home / ".erlang.cookie"
        cookie.write_text(f"curbstone{os.urandom(8).hex()}", encoding="ascii")
        cookie.chmod(0o400)
        self._mapper = subprocess.Popen(
            ["epmd", "-port", str(self.mapper_port), "-address", "127.0.0.1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.nodes: list[Node] = []
        try:
            self.nodes.extend(Node(self, number) for number in range(1, count + 1))
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                node.wait()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """What `--engine` takes."""
        return "amqp://guest:guest@" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.stop()
        self._mapper.kill()
        self._mapper.wait()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


needs_rabbitmq = pytest.mark.skipif(
    bool(missing()) and not os.environ.get("CURBSTONE_REQUIRE_RABBITMQ"), reason=missing()
)
"""For tests on a real node: left out with the reason, unless CI demands them."""


@contextmanager
def shared_node(root: Path) -> Iterator[str]:
    """Start one node for all processes that run tests, or use the one that another of them has started.

    The process that started it waits at its end until it is unused. Yields the value of `--engine`.
    """
    book = root / "rabbitmq.json"
    nodes: Nodes | None = None
    with _locked(root):
        if book.exists():
            said = json.loads(book.read_text(encoding="ascii"))
        else:
            nodes = Nodes(Path(tempfile.mkdtemp(prefix="curbstone-rabbitmq-")))
            said = {"url": nodes.url, "users": 0}
        book.write_text(json.dumps({**said, "users": said["users"] + 1}), encoding="ascii")
    try:
        yield said["url"]
    finally:
        _leave(root, book)
        if nodes is not None:
            _stop_when_unused(root, book, nodes)


def _leave(root: Path, book: Path) -> None:
    with _locked(root):
        said = json.loads(book.read_text(encoding="ascii"))
        book.write_text(json.dumps({**said, "users": said["users"] - 1}), encoding="ascii")


def _stop_when_unused(root: Path, book: Path, nodes: Nodes) -> None:
    while True:
        with _locked(root):
            if not json.loads(book.read_text(encoding="ascii"))["users"]:
                book.unlink()
                nodes.stop()
                shutil.rmtree(nodes.home, ignore_errors=True)
                return
        time.sleep(0.2)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    with (root / "rabbitmq.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
