"""A real server process for tests: started on free ports, killed, restarted and stopped by its own handle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from tests.kit.processes import COMMAND, SETTINGS, Process, start

READY_S_MAX = 60
STOP_S_MAX = 60

PORT_ATTEMPTS = 30
LISTENERS = ("stomp", "http", "mqks")


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without settings of Curbstone, and with `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)} | more


class NotReady(AssertionError):
    """The process ended before its ready line; `code` is its exit code, `log` its stderr."""

    def __init__(self, code: int, log: str) -> None:
        super().__init__(f"the server ended with code {code} before it was ready:\n{log}")
        self.code = code
        self.log = log


class ServerProcess:
    """`curbstone serve` with its data in `data_dir`; running and listening when the constructor returns.

    `args` are added to the command line; a listener that they do not name gets a free port of this machine. A context
    manager: at the end the process is stopped if it still runs. Its stderr is in `log_file`, over all restarts.
    """

    stomp: tuple[str, int]
    http: tuple[str, int]
    mqks: tuple[str, int]

    def __init__(
        self, data_dir: Path, *args: str, env: dict[str, str] | None = None, log_file: Path | None = None
    ) -> None:
        self.data_dir = data_dir
        self.args = args
        self.env = clean_environment() if env is None else env
        self.log_file = log_file or data_dir.with_name(data_dir.name + ".log")
        self.ready_line = ""
        self.addresses: dict[str, tuple[str, int]] = {}
        """Where each listener is, by its name, and how where it is not plain TCP: `stomp`, `tls://http`."""
        self.process = self._start([])

    @property
    def url(self) -> str:
        """The HTTP base URL, without a slash at the end."""
        host, port = self.http
        return f"http://{host}:{port}"

    @property
    def log(self) -> str:
        """What the server has written to stderr so far."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def command(self) -> list[str]:
        """The command line; a subclass may put a tracer in front of it."""
        return [*COMMAND, "serve", "--data", str(self.data_dir)]

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL, and wait until it is gone."""
        self.process.kill()
        self._wait()

    def stop(self) -> int:
        """Ask it to stop with SIGTERM, wait until it is gone, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def restart(self, *, same_ports: bool = False) -> None:
        """Start it again on the same data, after killing it if it runs; with new ports unless asked otherwise."""
        if self.process.poll() is None:
            self.kill()
        again = [name for name in LISTENERS if same_ports and hasattr(self, name)]
        for attempt in range(PORT_ATTEMPTS):
            try:
                self.process = self._start(again)
                return
            except NotReady as error:  # a client elsewhere on the machine may have the port for a moment
                if "Address already in use" not in str(error) or attempt == PORT_ATTEMPTS - 1:
                    raise
                time.sleep(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if self.process.poll() is None:
            code = self.stop()
        else:  # the test ended it, and knows how
            self._wait()
            code = 0
        print(f"--- log of the server\n{self.log}")  # pytest shows it when the test failed
        if kind is None:
            assert code == 0, f"the server stopped with code {code}"

    def _start(self, again: Sequence[str]) -> Process:
        """Start it; the listeners named in `again` listen where they did."""
        options = {f"--{name}-addr": f"--{name}-addr=127.0.0.1:0" for name in LISTENERS}
        same = {f"--{name}-addr": f"--{name}-addr={_address(getattr(self, name))}" for name in again}
        args = [arg for arg in self.args if arg.partition("=")[0] not in same]
        for arg in args:
            options.pop(arg.partition("=")[0], None)
        listeners = {**options, **same}.values()
        with self.log_file.open("ab") as log:
            # Not in the checkout: what is imported is what is installed.
            process = start([*self.command(), *listeners, *args], self.env, self.data_dir.parent, log)
        self.read_addresses(process)
        return process

    def read_addresses(self, process: Process) -> None:
        """Wait for the ready line, and take the addresses from it."""
        assert process.stdout is not None
        self.ready_line = _first_line(process, process.stdout)
        if not self.ready_line:
            process.stdout.close()
            raise NotReady(process.wait(STOP_S_MAX), self.log)
        words = self.ready_line.split()[2:]
        if self.ready_line.startswith("{"):  # --log-format json
            listeners = json.loads(self.ready_line)["listeners"]
            words = [f"{name}={address}" for name, addresses in listeners.items() for address in addresses]
        for word in words:
            name, _, address = word.partition("=")
            way, mark, address = address.rpartition("://")
            host, _, port = address.rpartition(":")
            self.addresses[f"{way}{mark}{name}"] = host.strip("[]"), int(port)
            if not way:
                setattr(self, name, (host.strip("[]"), int(port)))

    def _wait(self) -> int:
        try:
            code = self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
        return code


def _address(pair: tuple[str, int]) -> str:
    host, port = pair
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _first_line(process: Process, stdout: IO[str]) -> str:
    """Return the first line, "" if the process ends without one. A process that hangs is killed."""
    deadline = threading.Timer(READY_S_MAX, process.kill)
    deadline.start()
    try:
        return stdout.readline().rstrip("\n")
    finally:
        deadline.cancel()
        deadline.join()


def call(server: ServerProcess, method: str, path: str, body: object = None) -> Any:
    """Send JSON to a server, and return the JSON of its answer, or None if it has none."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(server.url + path, data=data, method=method)
    with urllib.request.urlopen(request, timeout=60) as reply:
        text = reply.read()
    return json.loads(text) if text else None


def publish(server: ServerProcess, *bodies: str) -> None:
    """Publish in one batch to the queue q, which is created where it is missing."""
    call(server, "PUT", "/v2/default/queues/q", {})
    call(server, "POST", "/v2/default/queues/q/messages/batch", [{"message": body} for body in bodies])


def bodies(server: ServerProcess, queue: str = "default/queues/q") -> list[str]:
    """Return the bodies of what waits in a queue, in order."""
    found: list[str] = []
    after = ""
    while page := call(server, "GET", f"/v2/{queue}/messages?limit=1000&after={after}")["messages"]:
        found += [message["message"] for message in page]
        after = page[-1]["id"]
    return found
