"""The dead letters of the report, of a server and of a lake. Needs no Java."""

from __future__ import annotations

from pathlib import Path

from curbstone.spark import live
from curbstone.spark.client import Address, Client, Secret
from curbstone.spark.columns import MESSAGES
from curbstone.spark.dead_letters import DeadLetters, dead_letters
from curbstone.spark.parts import PartWriter
from curbstone.spark.report import PAGE, report
from curbstone.spark.sql import database
from curbstone.spark.table import Table
from tests.kit.server import ServerProcess
from tests.spark.kit import call, make_queue, numbered, publish
from tests.spark.test_lake import add

QUEUE = "shop/orders"


def found(address: Address | None, lake: str = "", **limits: int) -> list[DeadLetters]:
    with database() as base:
        return dead_letters(base, server=address, queues=(QUEUE,), lake=lake, **limits)


def test_dead_letters_are_counted_once_by_reason_and_shown(server: ServerProcess, tmp_path: Path) -> None:
    for queue in ("shop/dead", "shop/other"):
        make_queue(server.url, queue)
    make_queue(server.url, QUEUE, dead_letter="dead")
    publish(server.url, QUEUE, numbered(7))
    publish(server.url, "shop/dead", ["no dead letter, though it is there"])
    path = "/v2/shop/queues/orders/messages"
    leased = call(server.url, "POST", f"{path}/lease", {"count": 6})["messages"]
    tokens = [message["ackId"] for message in leased]
    for part, error in ((tokens[:4], "no <price>"), (tokens[4:5], "another")):
        call(server.url, "POST", f"{path}/nack", {"ackIds": part, "reject": True, "error": error})
    address, lake = Address(server.url, Secret(""), retry_s=1), str(tmp_path / "lake")
    many, one = found(address)
    assert (many.queue, many.reason, many.error, many.count) == (QUEUE, "rejected", "no <price>", 4)
    assert len(many.samples) == 3 and {sample.body for sample in many.samples} < set(numbered(4))
    assert (one.error, one.count, one.samples[0].body) == ("another", 1, numbered(7)[4])
    assert one.samples[0].message_id == leased[4]["id"]
    asked = Client(address)
    writer = PartWriter(Table(lake, MESSAGES).uri, MESSAGES)
    for batch in live.messages(asked, "shop", ("shop/dead",)):
        writer.add(batch)
    asked.close()
    add(Table(lake, MESSAGES), writer.close(), 0)
    # All the same, though four died in one millisecond.
    assert found(address, lake) == found(None, lake) == found(address)
    now_ms = round(one.last.timestamp() * 1000)
    assert found(None, lake, until_ms=now_ms - 3_600_000) == []
    assert len(found(None, lake, since_ms=now_ms - 3_600_000, until_ms=now_ms + 1)) == 2
    report(tmp_path / "report", server=address, queues=(QUEUE,), since_ms=now_ms - 3_600_000)
    page = (tmp_path / "report" / PAGE).read_text()
    assert "no &lt;price&gt;" in page and "the preceding range" in page


def test_queue_without_a_dead_letter_queue_has_no_dead_letters(server: ServerProcess) -> None:
    make_queue(server.url, QUEUE, dead_letter="gone")
    assert found(Address(server.url, Secret(""), retry_s=1)) == []
