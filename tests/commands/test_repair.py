"""`curbstone repair`: a damaged directory before, and the queue that a server finds afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import httpx
import pytest

from curbstone.cli.check import ReadOnlyDisk, check_queue
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import SEGMENT_BYTES, decode_batch_header
from curbstone.repair import repair
from curbstone.repair.dry_recovery import DryRecovery
from tests.core.recovery.stored_queues import KINDS, StoredQueues, damaged, is_whole
from tests.core.recovery.test_damage import with_a_damaged_first_commit
from tests.core.test_directories import two_of_one_name
from tests.kit.commands import curbstone
from tests.kit.lab import Lab, message
from tests.kit.server import ServerProcess


@pytest.fixture(scope="module")
def stored() -> StoredQueues:
    return StoredQueues()


def store(files: dict[str, bytes], root: Path) -> None:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def load(root: Path) -> dict[str, bytes]:
    """Return the files a server would read."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] != repair.DAMAGED_DIR
    }


def damage_in(root: Path, directory: str) -> list[str]:
    disk = ReadOnlyDisk(root)
    return check_queue(disk, directory, DryRecovery(disk)).damage


def mended(files: dict[str, bytes], root: Path) -> dict[str, bytes]:
    """Return the files after a repair, behind which nothing is left to repair, and every old byte is still there."""
    store(files, root)
    plans = list(repair.plan(ReadOnlyDisk(root)))
    assert load(root) == files, "a plan changes nothing"
    for made in plans:
        repair.apply(root, made)
    everything = {path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert set(files.values()) <= everything, "something was deleted"
    for made in repair.plan(ReadOnlyDisk(root)):
        assert not made.files and not made.asides
        assert all("can't be filled" in text for text in made.unrepairable)
        assert made.unrepairable or not damage_in(root, made.directory)
    return load(root)


def batches(stored: StoredQueues, path: str) -> list[tuple[int, int]]:
    """Return where the commits of a segment begin and end."""
    segment = next(segment for segment in stored.queue.log.segments if segment.path == path)
    found, offset = [], SEGMENT_BYTES
    while offset < segment.end:
        header = decode_batch_header(stored.files[path], offset)
        assert header is not None
        found.append((offset, offset + header.length))
        offset += header.length
    return found


def test_one_flipped_bit_anywhere_is_repaired(stored: StoredQueues, tmp_path: Path) -> None:
    """Where it is in a length the commit's end is known from the next one; the very last commit has none."""
    dice = Random(1)
    for number, segment in enumerate(list(stored.queue.log.segments)):
        ends = batches(stored, segment.path)
        last = ends[-1][1] if segment is not stored.queue.log.active else ends[-1][0]
        for turn in range(25):
            place = dice.randrange(last)
            data = bytearray(stored.files[segment.path])
            data[place] ^= 1 << dice.randrange(8)
            root = tmp_path / f"{number}.{turn}"
            queue = stored.found(mended({**stored.files, segment.path: bytes(data)}, root))
            assert stored.seqs(queue) == stored.live, f"byte {place} of {segment.path}"
            assert not queue.damaged


def test_flipped_bit_in_the_last_commit_is_repaired(stored: StoredQueues, tmp_path: Path) -> None:
    path = stored.queue.log.active.path
    start, end = batches(stored, path)[-1]
    for place in (start, start + 70, end - 1):
        data = bytearray(stored.files[path])
        data[place] ^= 4
        queue = stored.found(mended({**stored.files, path: bytes(data)}, tmp_path / str(place)))
        assert stored.seqs(queue) == stored.live


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "flip"])
def test_only_damaged_messages_are_lost_and_the_queue_works(stored: StoredQueues, kind: str, tmp_path: Path) -> None:
    dice = Random(kind)
    for segment in list(stored.queue.log.segments):
        for turn in range(20):
            place = dice.randrange(SEGMENT_BYTES, segment.end)
            data, stop = damaged(stored.files[segment.path], kind, place, segment.end, dice)
            root = tmp_path / f"{segment.number}.{turn}"
            queue = stored.found(mended({**stored.files, segment.path: data}, root))
            assert stored.live - stored.seqs(queue) <= stored.touched(segment.path, place, stop), f"{place} to {stop}"
            assert not queue.damaged or kind == "stale"  # pieces of a good commit among damage can leave no room


def test_segments_without_headers_are_repaired(stored: StoredQueues, tmp_path: Path) -> None:
    files = dict(stored.files)
    for segment in list(stored.queue.log.segments):
        files[segment.path] = bytes(SEGMENT_BYTES) + files[segment.path][SEGMENT_BYTES:]
    queue = stored.found(mended(files, tmp_path))
    assert stored.seqs(queue) == stored.live and not queue.damaged


def without(stored: StoredQueues, name: str) -> dict[str, bytes]:
    return {path: data for path, data in stored.files.items() if path != name}


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (lambda good: good.replace(b'"groups"', b'"grOups"'), "default/q"),
        (lambda good: good[:-3], "default/q"),
        (lambda good: good.replace(b'"queue":"q"', b'"queue":"other"'), "default/other.recovered-{uid}"),
        (lambda good: bytes(len(good)), "default/recovered-{uid}"),
        (lambda good: None, "default/recovered-{uid}"),
    ],
    ids=["a flipped bit", "cut", "a name that is taken", "zeros", "missing"],
)
def test_damaged_meta_is_rebuilt_from_its_readable_part(
    stored: StoredQueues, harm: Callable[[bytes], bytes | None], name: str, tmp_path: Path
) -> None:
    directory = stored.queue.log.directory
    path = f"{directory}/meta"
    bad = harm(stored.files[path])
    files = without(stored, path) | ({path: bad} if bad is not None else {})
    files = mended(files, tmp_path)
    lab = stored.lab
    try:
        stored.found(files)
    except Exception as error:
        assert "no such queue" in str(error)
    queue = next(queue for queue in lab.broker.queues() if queue.log.directory == directory)
    assert str(queue.name) == name.format(uid=queue.uid)
    assert stored.seqs(queue) == stored.live


def bound_queue(lab: Lab) -> LocalQueue:
    """Return a queue with options, a group, two bindings, one of them with a filter, and a message."""
    queue = lab.queue(ttl=5000, groups=["g"])
    lab.answer(partial(lab.broker.occupy, queue.name, frozenset({"order.made", "order.paid"}), 60.0))
    lab.answer(partial(lab.broker.bind, "order.paid", queue.name, filter_text="total > 1"))
    lab.publish(queue, "a")
    return queue


def restarted(lab: Lab, files: dict[str, bytes]) -> None:
    """Start the lab's server on these files."""
    lab.load(files)
    lab.disk.dirs = {"", *(str(parent) for path in files for parent in Path(path).parents if str(parent) != ".")}
    lab.disk.durable_dirs = set(lab.disk.dirs)
    lab.restart("kill")


def bit_in_an_event(data: bytes) -> bytes:
    return data.replace(b"order.made", b"order.lade")


def two_bytes_of_an_option(data: bytes) -> bytes:
    return data.replace(b"5000", b"6100")


@pytest.mark.parametrize("harm", [bit_in_an_event, two_bytes_of_an_option])
def test_readable_meta_keeps_its_bindings(lab: Lab, harm: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """They were dropped without a word, and events were confirmed and stored nowhere."""
    queue = bound_queue(lab)
    files = lab.contents()
    path = f"{queue.log.directory}/meta"
    restarted(lab, mended({**files, path: harm(files[path])}, tmp_path))
    again = lab.broker.get(queue.name)
    assert again.meta.bindings == {"order.made": "", "order.paid": "total > 1"} and again.meta.unused_s == 60
    assert again.meta.groups == queue.meta.groups and again.options.groups == ("g",)
    assert lab.broker.health().reasons == []
    assert lab.answer(lambda done: lab.broker.publish_event("order.made", [message("event")], done))[0] is None
    assert lab.bodies(again) == [b"a", b"event"]


def test_lost_bindings_are_reported_until_rebound(lab: Lab, tmp_path: Path) -> None:
    queue = bound_queue(lab)
    files = lab.contents()
    path = f"{queue.log.directory}/meta"
    store({**files, path: files[path].replace(b'"bindings":[', b'"bandings":{')}, tmp_path)
    shown = curbstone("repair", str(tmp_path), cwd=tmp_path)
    assert shown.code == 6 and "its bindings (events it was bound to are not stored" in shown.out
    assert curbstone("repair", str(tmp_path), "--apply", cwd=tmp_path).code == 0
    restarted(lab, load(tmp_path))
    (found,) = lab.broker.queues()
    for _ in range(2):
        assert any("its bindings" in reason for reason in lab.broker.health().reasons)
        lab.restart("power")
        (found,) = lab.broker.queues()
    lab.answer(partial(lab.broker.bind, "order.made", found.name))
    lab.restart("power")
    assert lab.broker.health().reasons == []


@pytest.mark.parametrize("was_started", [False, True])
def test_older_of_two_directories_of_one_queue_is_renamed(lab: Lab, was_started: bool, tmp_path: Path) -> None:
    """As earlier versions could leave them; a start that was made before sets the older aside."""
    old, new = two_of_one_name(lab)
    if was_started:
        lab.start(lab.host.wall_ms())
        lab.shutdown()
    store(lab.contents(), tmp_path)
    found = curbstone("check", str(tmp_path), cwd=tmp_path)
    assert found.code == 6 and ("was set aside" if was_started else "both hold queue default/q") in found.out
    assert curbstone("repair", str(tmp_path), "--apply", cwd=tmp_path).code == 0
    assert curbstone("repair", str(tmp_path), cwd=tmp_path).out == "nothing to repair\n"
    assert curbstone("check", str(tmp_path), cwd=tmp_path).code == 0
    restarted(lab, load(tmp_path))
    bodies = {str(queue.name): lab.bodies(queue) for queue in lab.broker.queues()}
    assert bodies == {"default/q": [b"new"], f"default/q.recovered-{old.uid}": [b"old"]}
    assert lab.broker.left == {} and lab.broker.get(new.name).uid == new.uid


def test_symlinked_directory_is_reported_and_not_followed(lab: Lab, tmp_path: Path) -> None:
    queue = lab.queue()
    lab.publish(queue, "a")
    store(lab.contents(), tmp_path)
    directory = tmp_path / queue.log.directory
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    for command in (["check"], ["repair", "--apply"]):
        done = curbstone(command[0], str(tmp_path), *command[1:], cwd=tmp_path)
        assert done.code == 6 and "is not a directory" in done.out
    with ServerProcess(tmp_path) as server:
        ready = httpx.get(f"{server.url}/readyz", trust_env=False)
        assert ready.status_code == 200 and queue.log.directory in ready.text
        assert httpx.get(f"{server.url}/v2/default/queues/q", trust_env=False).status_code == 404


def test_missing_and_garbage_segments_are_reported_and_the_rest_served(lab: Lab, tmp_path: Path) -> None:
    queue = lab.queue(cap=64 * 1024)
    for number in range(30):
        lab.publish(queue, b"%d" % number * 500)
    before = lab.contents()
    noisy = queue.log.segments[1].path
    store({**before, noisy: Random(1).randbytes(len(before[noisy]))}, tmp_path)
    (made,) = [made for made in repair.plan(ReadOnlyDisk(tmp_path)) if not made.is_empty]
    assert any("unreadable" in text for file in made.files for text in file.notes)
    repair.apply(tmp_path, made)
    assert not damage_in(tmp_path, made.directory)
    (tmp_path / noisy).unlink()
    (made,) = [made for made in repair.plan(ReadOnlyDisk(tmp_path)) if not made.is_empty]
    assert made.unrepairable == [f"{made.directory}: segment 2 is missing"]


def test_messages_of_a_quarantined_file_are_exported_as_jsonl(tmp_path: Path) -> None:
    lab, queue = with_a_damaged_first_commit()
    lab.pop_all(queue)
    for number in range(20):
        lab.publish(queue, b"%d" % number * 300)
        lab.pop(queue)
    store(lab.contents(), tmp_path)
    assert list(tmp_path.glob("queues/*/*.bad"))
    (made,) = [made for made in repair.plan(ReadOnlyDisk(tmp_path)) if not made.is_empty]
    repair.apply(tmp_path, made)
    assert not list(tmp_path.glob("queues/*/*.bad"))
    (saved,) = tmp_path.glob("damaged/*/*.jsonl")
    bodies = [json.loads(line)["message"] for line in saved.read_text().splitlines()]
    assert bodies and all(body.partition(":")[2].strip("x") == "" for body in bodies)
    assert list(tmp_path.glob("damaged/*/*.bad"))


def test_repair_leaves_a_directory_that_a_server_opens(tmp_path: Path) -> None:
    sent = "\n".join(f"line {number} " + "x" * 200 for number in range(200))
    data = tmp_path / "data"
    with ServerProcess(data) as server:
        assert curbstone("repair", str(data), cwd=tmp_path).err.count("\n") == 1
        for mode in ([], ["--apply"]):
            refused = curbstone("repair", str(data), *mode, cwd=tmp_path)
            assert (refused.code, refused.err.count("\n")) == (1, 1) and "in use by process" in refused.err
        httpx.put(f"{server.url}/v2/default/queues/q", trust_env=False)
        assert curbstone("send", "q", "--server", server.url, cwd=tmp_path, stdin=sent.encode()).code == 0
        server.stop()
        (segment,) = data.glob("queues/*/*.seg")
        content = bytearray(segment.read_bytes())
        content[content.index(b"line 77")] ^= 1
        segment.write_bytes(content)
        shown = curbstone("repair", str(data), cwd=tmp_path)
        assert shown.code == 6 and "one bit was wrong" in shown.out and "nothing was changed" in shown.out
        assert segment.read_bytes() == content
        done = curbstone("repair", str(data), "--apply", "--json", cwd=tmp_path)
        assert (done.code, done.err) == (0, "") and done.json[0]["applied"]
        assert curbstone("repair", str(data), cwd=tmp_path).out == "nothing to repair\n"
        assert curbstone("check", str(data), cwd=tmp_path).code == 0
        server.restart()
        got = curbstone("recv", "q", "--count=0", "--ack", "--server", server.url, cwd=tmp_path)
        assert got.out.splitlines() == sent.splitlines()


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_other_directory_is_reported_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    done = curbstone("repair", str(tmp_path / name), "--apply", cwd=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert not (tmp_path / name / "lock").exists()


def test_fixture_bodies_are_whole(stored: StoredQueues) -> None:
    assert all(is_whole(peeked.message.body) for peeked in stored.lab.peek(stored.found(stored.files)))
