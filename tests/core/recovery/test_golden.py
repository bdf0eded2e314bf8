"""Data directories that earlier versions wrote, up to a power cut: all that they hold is found, and goes on.

`golden.py` made them. Each has dead letters, delayed messages, ordering keys, groups with acks and losses, leases and
tries, idempotency keys, numbered producers, a log that has turned over, a transaction whose second part is missing, a
journal with an unfinished record, and staged transactions: open ones, committed ones, and one whose messages are in the
log in part. Later ones also have a redo file with commits that are in no segment, and an undo; that of 0.2.0 has
priorities, the options that decide which message is next, and filters; that of 0.3.0 has unique names, messages that
have replaced others, and the options for keys; that of 0.4.0 has batches.
"""

from __future__ import annotations

import json
import logging
import tarfile
from pathlib import Path
from typing import Any

import pytest

from curbstone.access import tokens
from curbstone.backup import files
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import FORMAT, FORMAT_WITHOUT_REDO, SEGMENT_BYTES, decode_segment_header
from curbstone.core.engine.log.meta import META_FORMAT
from curbstone.core.errors import CurbstoneError, NoSuchTransaction, NumberGap
from curbstone.core.names import queue_name
from curbstone.core.options import KIB
from curbstone.core.values import IdempotencyKey, Numbered, Peeked, producer_key
from curbstone.core.wal.redo_format import REDO_FORMAT
from curbstone.standby import history
from tests.core.recovery.golden import KEYS, PRODUCERS, STAGED, names_in, policy_of, text
from tests.core.staging.lab import commit, stage
from tests.kit.lab import Lab, Peer, message
from tests.kit.room_check import check_room

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
FIRST, LAST = "0.1.0", "0.5.0"
ALL = [FIRST, "0a679af", "0.2.0", "0.3.0", "0.4.0", LAST]
VERSIONS = pytest.mark.parametrize("version", ALL)
HOUR_MS = 3_600_000


def wanted(version: str) -> dict[str, Any]:
    """Return what must be found; `wall_ms` says when."""
    found: dict[str, Any] = json.loads((HERE / f"golden-{version}.json").read_text())
    return found


def unpacked(version: str) -> Lab:
    """Return a machine that is off and has the directory of a version on its disk."""
    lab = Lab(cap=256 * KIB, max_message_size=64 * KIB)
    lab.shutdown()
    with tarfile.open(HERE / f"golden-{version}.tar.gz") as archive:
        for member in archive:
            if member.isdir():
                if member.name not in lab.disk.dirs:
                    lab.disk.make_dir(member.name)
            else:
                file = archive.extractfile(member)
                assert file is not None
                lab.disk.open(member.name, create=True).write(0, [file.read()])
    while not lab.disk.sync_all(""):  # not every system can, so that of the simulator only can now and then
        pass
    return lab


def opened(version: str) -> Lab:
    """Return a machine that has started on the directory of a version."""
    lab = unpacked(version)
    lab.start(wanted(version)["wall_ms"])
    lab.pass_time(0)
    return lab


def queue_of(lab: Lab, name: str) -> LocalQueue:
    return lab.named(name)


def describe(lab: Lab) -> dict[str, Any]:
    """Return what is found, in the form of the JSON file."""
    found: dict[str, Any] = {"queues": {}, "keys": [], "producers": [], "staged": {}}
    for queue in sorted(lab.broker.queues(), key=lambda queue: str(queue.name)):
        groups: dict[str, Any] = {}
        for info in [*queue.reading.infos(), None]:
            name = info.group if info is not None else ""
            groups[name] = {
                "position": [*info[2:6], *info[6:9]] if info is not None else [],
                "messages": [as_json(each) for each in peeked(lab, queue, name)],
            }
        events = sorted(lab.broker.bindings(queue.name))
        found["queues"][str(queue.name)] = {"id": queue.uid, "next": queue.reading.next, "events": events, **groups}
        found["queues"][str(queue.name)] |= policy_of(queue)
    for name, key, content in KEYS:
        error, first, _ = publish_under(lab, queue_of(lab, name), IdempotencyKey(key, content.encode()))
        found["keys"].append([name, key, content, error, first])
    for name, producer in PRODUCERS:
        last = queue_of(lab, name).last_number(producer_key("", producer))
        if last is not None:
            found["producers"].append([name, producer, *last[:2]])
    if queue_name("named") in [queue.name for queue in lab.broker.queues()]:
        found["names"] = names_in(lab, queue_of(lab, "named"))
    for identifier in STAGED:
        try:
            status = lab.broker.staging.status("default", identifier)
        except NoSuchTransaction:
            found["staged"][identifier] = None
        else:
            found["staged"][identifier] = [status.state.value, status.parts, status.messages]
    return found


def peeked(lab: Lab, queue: LocalQueue, group: str) -> list[Peeked]:
    (found,) = lab.answer(lambda done: queue.peek(1000, done, group=group))
    return list(found)


def as_json(found: Peeked) -> list[object]:
    message = found.message
    return [message.seq, text(message), found.tries, found.state, found.due_ms, message.expires_ms]


def publish_under(lab: Lab, queue: LocalQueue, key: IdempotencyKey) -> tuple[Any, ...]:
    """Publish under a key that was used; return the answer."""
    return lab.answer(lambda done: queue.publish([message("?")], done, key=key))


def formats(lab: Lab) -> set[int]:
    segments = [bytes(inode.cache) for path, inode in lab.disk.names.items() if path.endswith(".seg")]
    headers = [decode_segment_header(data[:SEGMENT_BYTES]) for data in segments]
    return {header.format for header in headers if header is not None}


def test_golden_directories_have_their_formats() -> None:
    assert formats(unpacked(FIRST)) == {FORMAT_WITHOUT_REDO}
    lab = unpacked(LAST)
    assert FORMAT_WITHOUT_REDO not in formats(lab)
    with_late = [path for path, inode in lab.disk.names.items() if b"in the last second" in inode.cache]
    assert with_late == ["redo.1"]


@VERSIONS
def test_data_of_an_earlier_version_is_found(version: str) -> None:
    lab = opened(version)
    expected = wanted(version)
    del expected["wall_ms"]
    assert json.loads(json.dumps(describe(lab))) == expected
    assert queue_of(lab, "grouped").facts.acked("audit") == 3
    for queue in lab.broker.queues():
        check_room(queue)


@VERSIONS
@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_second_start_finds_the_same_without_repairs(version: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    lab = opened(version)
    found = describe(lab)
    lab.restart(how, after_ms=0)
    lab.restart(how, after_ms=0)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        lab.restart(how, after_ms=0)
    assert caplog.messages == []
    assert lab.broker.health().reasons == []
    assert describe(lab) == found


@VERSIONS
def test_repeats_of_earlier_version_messages_are_recognised(version: str) -> None:
    lab = opened(version)
    before = describe(lab)
    for name, key, content in KEYS:
        queue = queue_of(lab, name)
        again = IdempotencyKey(key, content.encode()), IdempotencyKey(key, b"other content")
        first, other = [publish_under(lab, queue, each)[0] for each in again]
        assert first is None and isinstance(other, CurbstoneError)
    for name, producer in PRODUCERS if version != FIRST else []:
        queue, who = queue_of(lab, name), producer_key("", producer)
        last = queue.last_number(who)
        assert last is not None
        for number, error in ((last.number, None), (last.number + 2, NumberGap)):
            numbered = Numbered(who, number, number - 1)
            (found, _, _) = lab.answer(lambda d, q=queue, n=numbered: q.publish([message("?")], d, numbered=n))  # type: ignore[misc]
            assert found is None if error is None else isinstance(found, error)
    staged = {name: look for name, look in before["staged"].items() if look and look[0] == "committed"}
    assert len(staged) == (2 if version == FIRST else 4)
    for identifier, (_, _, messages) in staged.items():
        assert commit(lab, identifier) == (None, True, messages)
    assert describe(lab) == before


@VERSIONS
def test_state_of_an_earlier_version_remains_in_effect(version: str) -> None:
    lab = opened(version)
    peer = Peer(lab, queue_of(lab, "ordered"))
    assert peer.seqs == [2, 3], "the fourth has the key of the second"
    peer.ack(2)
    assert peer.seqs == [2, 3, 4]
    assert commit(lab, "open") == (None, False, 2)
    stage(lab, "more", "p", {"bulk": [b"more"]})
    assert commit(lab, "more") == (None, False, 1)
    lab.restart("power")
    bodies = lab.pop_all(queue_of(lab, "bulk"))
    assert bodies[-3:] == [b"open", b"open", b"more"]
    assert lab.pop_all(queue_of(lab, "delayed"))[-1] == b"in the last second"
    lab.pass_time(HOUR_MS)
    assert lab.pop_all(queue_of(lab, "delayed")) == [b"later"], "the others have expired"


@VERSIONS
def test_commits_of_many_queues_continue_in_old_segments_and_in_new_ones(version: str) -> None:
    """A redo file must not speak of segments of format 1: a program that knows only that would miss what is there."""
    lab = opened(version)
    names = ["jobs", "keyed", "leased", "one"]
    answers: list[object] = []
    for size in (10, 50_000):
        for name in names:
            queue_of(lab, name).publish([message(b"%d" % size + bytes(size))], lambda error, *_: answers.append(error))
        lab.settle()
    assert answers == [None] * 8
    lab.restart("power")
    for name in names:
        assert [len(body) for body in lab.bodies(queue_of(lab, name))[-2:]] == [12, 50_005]
    assert FORMAT in formats(lab)


def rows_of_page(title: str) -> list[list[str]]:
    """Return the rows of the table under a title of the page on upgrades."""
    page = (REPOSITORY / "docs/upgrades.md").read_text()
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"][
        2:
    ]


def test_upgrade_page_lists_the_tested_versions_and_formats() -> None:
    versions = [row[0].split()[0] for row in rows_of_page("From one version to another")]
    assert versions == ALL
    assert sorted(path.name for path in HERE.glob("golden-*.tar.gz")) == sorted(f"golden-{v}.tar.gz" for v in versions)
    formats = {row[0]: (row[2], row[3]) for row in rows_of_page("Formats")}
    assert formats == {
        "segment": (f"{FORMAT}", f"{FORMAT_WITHOUT_REDO} to {FORMAT}"),
        "meta": (f"{META_FORMAT}", f"{META_FORMAT}"),
        "redo file": (f"{REDO_FORMAT}", f"1 to {REDO_FORMAT}"),
        "tokens": (f"{tokens.FORMAT}", f"{tokens.FORMAT}"),
        "backup": (f"{files.FORMAT}", f"{files.FORMAT}"),
        "history": (f"{history.FORMAT}", f"{history.FORMAT}"),
    }
