"""A server and its standby on two machines whose cable is cut: in namespaces of the network, so only as root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.processes import Process
from tests.kit.server import ServerProcess, bodies, call
from tests.kit.waiting import wait_until
from tests.standby.load import Load, confirms, wait_in_sync
from tests.standby.standby_process import StandbyProcess

PORT = 8080
OPTIONS = (f"--http-addr=0.0.0.0:{PORT}", "--stomp-addr=", "--mqks-addr=", "--insecure", "--cap=64MiB")
SYNC = ("--standby-backlog=1MiB", "--confirm-with=standby", "--standby-patience=never")
NOBODY = "02:00:00:00:00:99"
"""A hardware address that no machine has: what is sent there is lost."""


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


def why_not() -> str:
    """Return why there can be no namespaces here, or "" if there can."""
    if os.geteuid() != 0:
        return "namespaces of the network need root"
    name = f"curbstone-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except FileNotFoundError:
        return "there is no ip command (iproute2)"
    except subprocess.CalledProcessError as error:
        return f"there are no namespaces of the network: {error.stderr.decode().strip()}"
    return ""


class Network:
    """Two machines with a cable between them. The tests reach each of them in another way, which is never cut."""

    def __init__(self) -> None:
        number = os.getpid()
        self.names = [f"curbstone-{number}-{which}" for which in "ab"]
        self._net = f"10.212.{number % 250}"
        self._way = [f"cs{number}{which}" for which in "ab"]
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.names
        ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
        for place, name in enumerate(self.names):
            ip("link", "add", self._way[place], "type", "veth", "peer", "name", "way", "netns", name)
            ip("addr", "add", f"{self._net}.{4 * place + 1}/30", "dev", self._way[place])
            ip("link", "set", self._way[place], "up")
            ip("-n", name, "addr", "add", f"{self._net}.{4 * place + 2}/30", "dev", "way")
            ip("-n", name, "addr", "add", f"10.211.0.{place + 1}/24", "dev", "cable")
            for interface in ("lo", "way", "cable"):
                ip("-n", name, "link", "set", interface, "up")

    def outside(self, place: int) -> str:
        """Return the URL of a machine for the tests."""
        return f"http://{self._net}.{4 * place + 2}:{PORT}"

    @staticmethod
    def inside(place: int) -> str:
        """Return the URL of a machine for the other one."""
        return f"http://10.211.0.{place + 1}:{PORT}"

    def cut(self, what: str) -> None:
        """Cut the cable: pull it out, or lose what goes one way."""
        if what == "pulled out":
            ip("-n", self.names[0], "link", "set", "cable", "down")
        for place in (0, 1):
            if what == f"deaf {1 - place}":
                lost = f"10.211.0.{2 - place}"
                ip(*("-n", self.names[place], "neigh", "replace", lost, "lladdr", NOBODY, "dev", "cable"))

    def mend(self) -> None:
        ip("-n", self.names[0], "link", "set", "cable", "up")
        for name in self.names:
            ip("-n", name, "neigh", "flush", "dev", "cable", "nud", "all")

    def close(self) -> None:
        for way in self._way:  # at once: what is in a namespace goes some time after it
            ip("link", "del", way)
        for name in self.names:
            ip("netns", "del", name)


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := why_not():
        pytest.skip(reason)
    made = Network()
    try:
        yield made
    finally:
        made.close()


class Machine(ServerProcess):
    """A server in a namespace."""

    def __init__(self, network: Network, place: int, data: Path, *args: str) -> None:
        self._network = network
        self._place = place
        super().__init__(data, *OPTIONS, *args)

    def command(self) -> list[str]:
        return ["ip", "netns", "exec", self._network.names[self._place], *super().command()]

    @property
    def url(self) -> str:
        return self._network.outside(self._place)


class StandbyMachine(StandbyProcess):
    """A standby in a namespace, of the server in the other one."""

    def __init__(self, network: Network, place: int, data: Path, *args: str) -> None:
        self._network = network
        self._place = place
        super().__init__(data, network.inside(1 - place), *OPTIONS, *args)

    def command(self) -> list[str]:
        return ["ip", "netns", "exec", self._network.names[self._place], *super().command()]

    def read_addresses(self, process: Process) -> None:
        """It has none before it is promoted."""

    @property
    def url(self) -> str:
        return self._network.outside(self._place)


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param("pulled out"),
        pytest.param("deaf 0", marks=pytest.mark.soak),  # the server hears nothing of the standby
        pytest.param("deaf 1", marks=pytest.mark.soak),
    ],
)
def test_nothing_is_confirmed_during_a_network_partition_and_service_resumes_after(
    network: Network, tmp_path: Path, cut: str
) -> None:
    with (
        Machine(network, 0, tmp_path / "one", *SYNC) as server,
        StandbyMachine(network, 1, tmp_path / "two", *SYNC, "--standby-patience=1") as standby,
    ):
        wait_in_sync(server)
        call(server, "PUT", "/v2/default/queues/q", {})
        load = Load(server.url)
        with load.running():
            load.wait_for_progress()
            network.cut(cut)
            wait_until(lambda: confirms(server) == "waiting")
            before = len(load.confirmed)
            network.mend()
            wait_in_sync(server)
            load.wait_for_progress()
            assert call(server, "GET", "/v2/standby")["resumes"] >= 1, "it went on where it was"
            server.kill()
            assert standby.promote().code == 0
            load.urls.append(standby.url)
            load.wait_for_progress()
        assert before < len(load.confirmed) and set(load.confirmed) <= set(bodies(standby))


@pytest.mark.parametrize(
    "order", [pytest.param("promoted, then mended"), pytest.param("mended, then promoted", marks=pytest.mark.soak)]
)
def test_only_one_of_two_partitioned_servers_confirms(network: Network, tmp_path: Path, order: str) -> None:
    with (
        Machine(network, 0, tmp_path / "one", *SYNC) as server,
        StandbyMachine(network, 1, tmp_path / "two", *SYNC, "--standby-patience=1") as standby,
    ):
        wait_in_sync(server)
        call(server, "PUT", "/v2/default/queues/q", {})
        cut_off, load = Load(server.url, timeout_s=2), Load(server.url, timeout_s=5)
        with load.running():
            load.wait_for_progress()
            network.cut("pulled out")
            wait_until(lambda: confirms(server) == "waiting")
            load.urls[:] = [standby.url]
            if order.startswith("mended"):
                network.mend()
            done = standby.promote()
            assert done.code == 0 and "nothing that was confirmed is missing" in done.out
            with cut_off.running():  # the clients that still reach the former server
                load.wait_for_progress()
            network.mend()
        assert not cut_off.confirmed, "the former server has no standby, and its patience never ends"
        server.kill()
        with StandbyMachine(network, 0, tmp_path / "one", *SYNC) as former:
            wait_in_sync(standby)
            assert former.state()["term"] == 2 and (tmp_path / "one.kept-1").is_dir()
            assert set(load.confirmed) <= set(bodies(standby))
            standby.kill()
            # That nothing is missing is certain only within the patience of the killed server, 1 s.
            # The command may take longer to start.
            assert former.promote("--accept-loss").code == 0
            assert set(load.confirmed) <= set(bodies(former))
