"""`curbstone check` on directories that the simulated disk made: what is live, what is missing, what is to come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curbstone.core.engine.log.format import SEGMENT_BYTES
from curbstone.core.wal.redo_format import RECORDS_AT
from tests.core.staging.lab import commit, stage
from tests.kit.commands import curbstone
from tests.kit.lab import Lab, Peer, message

DAMAGED = 6


def directory(lab: Lab, tmp_path: Path) -> Path:
    """Write what the lab's disk holds now to a real one."""
    data = tmp_path / "data"
    for path, inode in lab.disk.names.items():
        file = data / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(inode.cache))
    return data


def checked(data: Path, tmp_path: Path) -> tuple[int, dict[str, Any]]:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    done = curbstone("check", str(data), "--json", cwd=tmp_path)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before, "check writes nothing"
    assert done.err == ""
    return done.code, done.json[0]


def segments(data: Path) -> list[Path]:
    return sorted(data.glob("queues/*/*.seg"))


def test_live_messages_are_distinguished_from_records_and_by_group(lab: Lab, tmp_path: Path) -> None:
    queue = lab.queue("a", groups=["g"])
    lab.publish(queue, *[b"%d" % number for number in range(10)])
    lab.publish(queue, "named", groups=("h",))
    for _ in range(4):
        lab.pop(queue)
    assert lab.pop(queue, "g") == b"0"
    code, found = checked(directory(lab, tmp_path), tmp_path)
    (of_queue,) = found["queues"]
    assert (code, of_queue["messages"], of_queue["live"]) == (0, 11, 10), "one is settled in both groups"
    assert of_queue["pending"] == {"": 6, "g": 9, "h": 1}


def test_live_messages_are_counted_over_copies_and_dropped_segments(tmp_path: Path) -> None:
    lab = Lab(cap=64 * 1024)
    queue = lab.queue("a")
    (kept,) = lab.publish(queue, "kept")
    peer = Peer(lab, queue)
    for _ in range(200):
        peer.ack(*lab.publish(queue, b"x" * 1000))
    data = directory(lab, tmp_path)
    code, found = checked(data, tmp_path)
    (of_queue,) = found["queues"]
    assert segments(data)[0].name != "0000000001.seg"
    assert (code, of_queue["live"], of_queue["pending"]) == (0, 1, {"": 1})
    assert lab.bodies(queue) == [b"kept"] and kept == 1


@pytest.mark.parametrize(
    ("gone", "text"),
    [
        ([4], "segment 4 is missing"),
        ([4, 5], "segment 5 is missing, with all between it and segment 3"),
        ([1], "segment 1 is missing"),
    ],
)
def test_a_missing_segment_is_damage(lab: Lab, tmp_path: Path, gone: list[int], text: str) -> None:
    queue = lab.queue("a")
    for _ in range(60):
        lab.publish(queue, b"x" * 9000)
    data = directory(lab, tmp_path)
    assert len(segments(data)) > 5
    for path in segments(data):
        if int(path.stem) in gone:
            path.unlink()
    code, found = checked(data, tmp_path)
    (of_queue,) = found["queues"]
    assert (code, [line.partition(": ")[2] for line in of_queue["damage"]]) == (DAMAGED, [text])
    assert of_queue["live"] == of_queue["messages"] < 60


def test_damaged_header_hides_preceding_messages(lab: Lab, tmp_path: Path) -> None:
    queue = lab.queue("a")
    for _ in range(60):
        lab.publish(queue, b"x" * 9000)
    data = directory(lab, tmp_path)
    _, _, _, missing, broken, *_ = segments(data)
    missing.unlink()
    broken.write_bytes(bytes(SEGMENT_BYTES) + broken.read_bytes()[SEGMENT_BYTES:])
    code, found = checked(data, tmp_path)
    (text,) = found["queues"][0]["damage"]
    assert code == DAMAGED
    assert text.endswith("are read; which segments lay between it and segment 3 is not known")


def test_pending_journal_transactions_are_counted_and_reported(lab: Lab, tmp_path: Path) -> None:
    first, second = lab.queue("a"), lab.queue("b")
    lab.publish(first, "old", "older")
    peer = Peer(lab, first)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    transaction.publish(second, message("new"))
    transaction.publish(second, message("newer"))
    transaction.commit(lambda _error: None)
    while "journal" not in lab.disk.names or not lab.disk.names["journal"].cache:
        assert lab.host.turn() or lab.host.work()
    data = directory(lab, tmp_path)
    code, found = checked(data, tmp_path)
    assert (code, found["journal"]) == (0, {"transactions": 1, "damage": [], "notes": []})
    queues = {queue["queue"]: queue for queue in found["queues"]}
    assert {name: queue["live"] for name, queue in queues.items()} == {"default/a": 1, "default/b": 2}
    assert queues["default/b"]["messages"] == 0, "it is not in the log yet"
    assert "adds 2 messages and settles 0" in queues["default/b"]["notes"][0]
    assert "adds 0 messages and settles 1" in queues["default/a"]["notes"][0]
    lab.restart("kill")
    assert [len(lab.bodies(lab.reopened(queue))) for queue in (first, second)] == [1, 2], "as a start has it"


def test_applied_journal_is_not_pending(lab: Lab, tmp_path: Path) -> None:
    first, second = lab.queue("a"), lab.queue("b")
    transaction = lab.broker.transaction()
    transaction.publish(first, message("m"))
    transaction.publish(second, message("m"))
    lab.answer(transaction.commit)
    code, found = checked(directory(lab, tmp_path), tmp_path)
    assert (code, found["journal"]["transactions"]) == (0, 1)
    assert [(queue["live"], queue["notes"]) for queue in found["queues"]] == [(1, [])] * 2


# --- what is staged


def staged(lab: Lab) -> str:
    """Stage a part in a queue of its own; return the directory of the transaction."""
    lab.queue("a")
    stage(lab, "t", "p", {"a": [b"one", b"two"]})
    (name,) = [name for name in lab.disk.list_dir("staging") if len(name) == 32]
    return f"staging/{name}"


def test_staged_messages_are_counted(lab: Lab, tmp_path: Path) -> None:
    staged(lab)
    stage(lab, "u", "p", {"a": [b"three"]})
    commit(lab, "u")
    code, found = checked(directory(lab, tmp_path), tmp_path)
    assert (code, found["staging"]) == (0, {"staged": 1, "committing": 0, "committed": 1, "damage": [], "notes": []})


@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_bit_in_a_part_is_damage(lab: Lab, place: int, tmp_path: Path) -> None:
    at = staged(lab)
    (path,) = [path for path in lab.disk.names if path.startswith(f"{at}/p.")]
    lab.disk.names[path].cache[place] ^= 1
    code, found = checked(directory(lab, tmp_path), tmp_path)
    assert code == DAMAGED and path in found["staging"]["damage"][0]
    repaired = curbstone("repair", str(tmp_path / "data"), cwd=tmp_path)
    assert repaired.code == DAMAGED and path in repaired.out


@pytest.mark.parametrize(
    ("copies", "text"), [(1, "the next start repairs it"), (2, "1 ids in staging/committed are lost")]
)
def test_a_flipped_bit_in_the_list_of_committed_ids_is_damage(lab: Lab, copies: int, text: str, tmp_path: Path) -> None:
    staged(lab)
    commit(lab, "t")
    for path in ("staging/committed", "staging/committed.copy")[:copies]:
        lab.disk.names[path].cache[9] ^= 1
    code, found = checked(directory(lab, tmp_path), tmp_path)
    assert code == DAMAGED and text in found["staging"]["damage"][0]


@pytest.mark.parametrize(("copies", "text"), [(1, "one of its two copies is damaged"), (2, "none of it is published")])
def test_a_flipped_bit_in_a_marker_is_damage(lab: Lab, copies: int, text: str, tmp_path: Path) -> None:
    at = staged(lab)
    lab.broker.staging.commit("default", "t", None, lambda *_: None)
    while f"{at}/commit" not in lab.disk.names:
        if not lab.host.turn():
            assert lab.host.work()
    data = directory(lab, tmp_path)
    marker = data / at / "commit"
    written = bytearray(marker.read_bytes())
    for copy in range(copies):
        written[5 + copy * len(written) // 2] ^= 1
    marker.write_bytes(written)
    code, found = checked(data, tmp_path)
    assert code == DAMAGED and text in found["staging"]["damage"][0] and found["staging"]["committing"] == 1


# --- what is beside a queue's log


def test_a_segment_set_aside_is_damage_until_it_is_repaired(lab: Lab, tmp_path: Path) -> None:
    queue = lab.queue("a", cap=64 * 1024)
    data = directory(lab, tmp_path)
    (data / queue.log.directory / "0000000009.bad").write_bytes(b"x" * 100)
    code, found = checked(data, tmp_path)
    assert code == DAMAGED and "kept for repair" in found["queues"][0]["damage"][0]


def test_bindings_a_cap_that_is_exceeded_and_what_is_no_queue_are_reported(lab: Lab, tmp_path: Path) -> None:
    queue = lab.queue("a", cap=1024 * 1024)
    lab.answer(lambda done: lab.broker.bind("order.made", queue.name, done))
    lab.publish(queue, *[b"x" * 1000] * 100)
    meta = replace(queue.meta, changes={"cap": 64 * 1024})
    lab.disk.names[f"{queue.log.directory}/meta"].cache[:] = meta.encode()
    data = directory(lab, tmp_path)
    (data / "queues" / "lost+found").mkdir()
    code, found = checked(data, tmp_path)
    reported = {of_queue["directory"]: of_queue for of_queue in found["queues"]}
    of_queue = reported[queue.log.directory]
    assert (code, of_queue["bindings"]) == (0, ["order.made"])
    assert "more than its cap of 65536" in of_queue["notes"][0]
    assert "is not the directory of a queue" in reported["queues/lost+found"]["notes"][0]


def test_data_of_a_newer_version_is_named_and_is_no_damage(lab: Lab, tmp_path: Path) -> None:
    queue = lab.queue("a")
    meta = replace(queue.meta, unknown={"shape": 1}, unknown_policy={"colour": "red"})
    lab.disk.names[f"{queue.log.directory}/meta"].cache[:] = meta.encode()
    code, found = checked(directory(lab, tmp_path), tmp_path)
    assert (code, found["queues"][0]["damage"]) == (0, [])
    assert "meta: colour, shape is of a newer version" in found["queues"][0]["notes"][0]


def test_commits_only_in_a_redo_file_are_counted(tmp_path: Path) -> None:
    lab = Lab(seed=3)
    queues = [lab.queue(name) for name in "abc"]
    for number in range(4):
        for queue in queues:
            queue.publish([message(f"m{number}".ljust(600))], lambda *_: None)
        lab.settle()
    lab.disk.crash()
    code, found = checked(directory(lab, tmp_path), tmp_path)
    assert (code, [queue["live"] for queue in found["queues"]]) == (0, [4] * 3)
    (data,) = tmp_path.glob("data/redo.1")
    first = RECORDS_AT
    data.write_bytes(data.read_bytes()[:first] + b"x" + data.read_bytes()[first + 1 :])
    code, found = checked(tmp_path / "data", tmp_path)
    assert code == DAMAGED and "a record does not check" in found["journal"]["damage"][0]
