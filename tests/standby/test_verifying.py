"""A standby compares its copy with the server: what has changed on its disk is copied again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.server import ServerProcess, bodies, call
from tests.kit.waiting import wait_until
from tests.standby.standby_process import StandbyProcess

OPTIONS = ("--standby-backlog=64MiB", "--cap=64MiB")


def segments(data: Path) -> list[Path]:
    """Return the segments of the queue, the newest last."""
    return sorted(data.glob("queues/*/*.seg"))


def spoil(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte[0] ^ 1]))
        os.fsync(opened.fileno())


def fill(server: ServerProcess) -> list[str]:
    """Publish until there are some sealed segments; return the bodies."""
    call(server, "PUT", "/v2/default/queues/q", {})
    sent = []
    while len(segments(server.data_dir)) < 3:
        batch = [os.urandom(50_000).hex() for _ in range(4)]
        call(server, "POST", "/v2/default/queues/q/messages/batch", [{"message": body} for body in batch])
        sent += batch
    return sent


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[tuple[ServerProcess, StandbyProcess]]:
    """A server and a standby that compares its copy. At the end the server is killed, and the standby has all of it."""
    with (
        ServerProcess(tmp_path / "data", *OPTIONS) as server,
        StandbyProcess(tmp_path / "other", server.url, "--verify-every=1s", *OPTIONS) as standby,
    ):
        sent = fill(server)
        standby.has_everything(server)
        yield server, standby
        server.kill()
        assert standby.promote("--accept-loss").code == 0
        assert bodies(standby) == sent


def test_what_has_changed_on_the_disk_of_a_standby_is_copied_again(
    copied: tuple[ServerProcess, StandbyProcess],
) -> None:
    server, standby = copied
    wait_until(lambda: standby.status("/v2/standby")["verified_bytes"] > 0)
    assert standby.status("/v2/standby")["different_blocks"] == 0
    theirs, ours = segments(server.data_dir), segments(standby.data_dir)
    for offset in (100, 300_000, 310_000):
        spoil(ours[0], offset)
    with ours[1].open("r+b") as file:
        file.truncate(300_000)
    wait_until(lambda: all(ours[n].read_bytes() == theirs[n].read_bytes() for n in (0, 1)))
    assert "blocks are missing or different from the server's; they are copied" in standby.log
    assert standby.status("/v2/standby")["different_blocks"] >= 3
    assert call(server, "GET", "/v2/standby")["copies"] == 1, "the copy stayed usable"
    standby.has_everything(server)


def test_segments_that_are_missing_on_a_standby_are_copied_again(copied: tuple[ServerProcess, StandbyProcess]) -> None:
    """Only segments that the standby had were compared, so one that was lost was noticed when it had to serve."""
    server, standby = copied
    theirs, ours = segments(server.data_dir), segments(standby.data_dir)
    for each in ours[:2]:
        each.unlink()
    wait_until(lambda: all(ours[n].exists() and ours[n].read_bytes() == theirs[n].read_bytes() for n in (0, 1)))
    assert call(server, "GET", "/v2/standby")["copies"] == 1, "the copy stayed usable"
    standby.has_everything(server)


def test_what_is_damaged_on_the_server_does_not_replace_the_copy(copied: tuple[ServerProcess, StandbyProcess]) -> None:
    server, standby = copied
    spoil(segments(server.data_dir)[0], 300_000)
    wait_until(lambda: "is different from the server's, which is damaged and not copied: " in standby.log)
    assert standby.status("/v2/standby")["different_blocks"] == 0
    assert "is damaged here, and " in server.log
