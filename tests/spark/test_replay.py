"""`curbstone pipeline replay`: out of a lake and into queues, in order, once per name. Needs no Java."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from curbstone.spark import calls
from curbstone.spark import replay as job
from curbstone.spark.client import Address, Secret
from curbstone.spark.columns import MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.parts import PartWriter, in_project_and_queue
from curbstone.spark.replay import Filter, replay
from curbstone.spark.table import Table
from tests.kit.server import ServerProcess
from tests.spark.kit import call, make_queue, take_all
from tests.spark.test_lake import MORNING, add, rows


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def address(server: ServerProcess) -> Address:
    make_queue(server.url, "shop/again")
    return Address(server.url, Secret(""), retry_s=1)


def stock(lake: str, batch: int, seqs: Sequence[int], queue: str = "shop/a:b") -> None:
    table = Table(lake, MESSAGES)
    writer = PartWriter(table.uri, MESSAGES)
    writer.add(in_project_and_queue(rows(seqs, queue)))
    add(table, writer.close(), batch)


def bodies(seqs: Sequence[int]) -> list[str]:
    return [f"body {seq}" for seq in seqs]


def test_replay_with_the_same_name_publishes_nothing(server: ServerProcess, address: Address, lake: str) -> None:
    stock(lake, 0, range(20, 40))
    stock(lake, 1, range(20))
    late = Filter(queues=("shop/a:b",), where="seq >= 10 AND headers['a'] = 'b' AND octet_length(body) < 100")
    assert replay(lake, "late", address, late, into="shop/again", dry_run=True).messages == 30
    assert call(server.url, "GET", "/v2/shop/queues/again")["rdy"] == 0
    done = replay(lake, "late", address, late, into="shop/again")
    assert (done.messages, done.queues, done.repeated) == (30, 1, False)
    stock(lake, 2, range(100, 110))
    assert replay(lake, "late", address, late, into="shop/again").repeated
    first = call(server.url, "GET", "/v2/shop/queues/again/messages?limit=1")["messages"][0]
    assert (first["x-replayed-from"], first["Content-Type"]) == ("shop/a:b/10", "text/plain")
    assert take_all(server.url, "shop/again") == bodies(range(10, 40))
    with pytest.raises(PipelineError, match="replay late was begun with other options; use another name for this one"):
        replay(lake, "late", address, Filter(), into="shop/again")


def test_replay_names_are_per_lake(server: ServerProcess, address: Address, tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        stock(str(tmp_path / name), 0, range(10 * number, 10 * number + 3))
        assert not replay(str(tmp_path / name), "same", address, Filter(), into="shop/again").repeated
    assert take_all(server.url, "shop/again") == bodies([0, 1, 2, 10, 11, 12])


def test_replay_to_the_original_queues_within_a_time_range(server: ServerProcess, address: Address, lake: str) -> None:
    stock(lake, 0, range(4))
    stock(lake, 1, range(4, 6), "shop/again")
    make_queue(server.url, "shop/a:b")
    until = int(MORNING.timestamp() * 1000) + 2001
    assert replay(lake, "first", address, Filter(until_ms=until)).queues == 2
    assert take_all(server.url, "shop/a:b") == bodies(range(3))
    assert take_all(server.url, "shop/again") == bodies([4, 5])
    assert replay(lake, "none", address, Filter(since_ms=until + 100_000)).messages == 0


def test_killed_replay_continues_with_the_same_rows(
    server: ServerProcess, address: Address, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came into the lake meanwhile would have moved the edges of the pieces."""
    monkeypatch.setattr(job, "PIECE_BYTES", 64)
    stock(lake, 0, range(50, 100))
    commit, commits = calls.commit, []

    def killed(*given: object) -> object:
        commits.append(given[2])
        if len(commits) == 4:
            commit(*given)  # type: ignore[arg-type]
            raise KeyboardInterrupt  # it is on the server, and the lake does not know
        return commit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(calls, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        replay(lake, "all", address, Filter(), into="shop/again")
    stock(lake, 1, range(50))
    done = replay(lake, "all", address, Filter(), into="shop/again")
    assert (done.messages, done.repeated) == (50, False)
    assert len(commits) == len(set(commits)) > 4
    assert take_all(server.url, "shop/again") == bodies(range(50, 100))


def test_mistakes_are_reported_in_one_line(address: Address, lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    stock(lake, 0, range(4))
    common = ("--lake", lake, "--server", address.url)
    for arguments, line in (
        (["bad", "--where", "no_such_column = 1"], "--where: Binder Error: Referenced column"),
        (["bad", "--into", "shop/none"], "no such queue: shop/none"),
        (["bad", "--where", "seq ="], "--where: Parser Error: syntax error"),
    ):
        assert job.main([*arguments, *common]) == 1
        out, err = capsys.readouterr()
        assert out == "" and line in err and err.count("\n") == 1, err
