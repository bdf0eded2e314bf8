"""`curbstone drill`: what it says of a good disk, of one that is memory, and of a server that loses something."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from curbstone.cli.drill import judge
from curbstone.drill.disk import DiskCheck
from curbstone.drill.load import CAP, Account, body_of
from curbstone.drill.picture import draw
from curbstone.process.file_system import doubts, file_system_of
from tests.kit.commands import curbstone

SECONDS = "4"


def test_drill_passes_and_writes_a_chart(tmp_path: Path) -> None:
    done = curbstone("drill", str(tmp_path), "--seconds", SECONDS, "--json", cwd=tmp_path)
    (facts,) = done.json
    assert facts["wrong"] == [] and facts["kills"] >= 1
    assert facts["confirmed"] <= facts["sent"] and facts["bytes_most"] <= facts["cap"]
    assert (done.code == 0) == facts["ok"] == (not facts["doubts"])
    picture = Path(facts["picture"])
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert facts["verdict"] in picture.read_text()
    assert {path.name for path in picture.parent.iterdir()} == {"drill.svg", "server.log"}


def test_missing_directory_is_reported_in_one_line(tmp_path: Path) -> None:
    done = curbstone("drill", str(tmp_path / "missing"), cwd=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("file_system", "typical_s", "said"),
    [
        ("ext4", 1e-4, ""),
        ("tmpfs", 1e-4, "in memory"),
        ("nfs4", 1e-2, "another machine"),
        ("xfs", 2e-6, "too fast for any disk"),
    ],
)
def test_unreliable_disks_are_reported(file_system: str, typical_s: float, said: str) -> None:
    found = doubts(file_system, typical_s)
    assert said in found[0] if said else not found


def test_file_system_of_a_directory_is_detected() -> None:
    assert file_system_of(Path("/proc")) in ("proc", "?")


def account(*confirmed: str, delivered: tuple[str, ...] = ()) -> Account:
    made = Account(sent={*confirmed, *delivered}, confirmed=set(confirmed))
    for value in delivered:
        made.deliver(body_of(value), 1)
    return made


def test_confirmed_undelivered_message_is_lost() -> None:
    made = account("p0.1", "p0.2", delivered=("p0.1",))
    made.close()
    assert made.wrong == ["lost: message p0.2"]
    verdict, is_good = judge(DiskCheck(), made)
    assert not is_good and verdict.startswith("FAILED")


def test_changed_unknown_and_returned_messages_are_reported() -> None:
    made = account("p0.1", delivered=("p0.1",))
    made.deliver(body_of("p0.1") + b"!", 1)
    made.deliver(b"p9.9 x", 1)
    made.settled["p0.1"] = 1
    made.deliver(body_of("p0.1"), 1)
    made.deliver(body_of("p0.1"), 2)
    assert [text.split(":")[0] for text in made.wrong] == [
        "changed",
        "never sent",
        "redelivered after its ack was confirmed",
    ]


def test_exceeded_cap_and_memory_disk_fail_the_drill() -> None:
    made = account("p0.1", delivered=("p0.1",))
    made.close()
    assert judge(DiskCheck(), made)[1]
    assert judge(DiskCheck(doubts=["tmpfs is memory"]), made) == (
        "UNRELIABLE: 1 confirmed message, 0 kills, nothing lost; but tmpfs is memory",
        False,
    )
    made.bytes_most = CAP + 1
    assert not judge(DiskCheck(), made)[1]


def test_empty_chart_is_valid() -> None:
    assert ElementTree.fromstring(draw(Account(), [], "a < b & c", ["fact"])).tag.endswith("svg")
