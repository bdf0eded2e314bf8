"""What a queue is, in one small file: written whole, read back, and refused where it is not understood."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.disk import Disk, OsDisk, OsFile
from curbstone.core.engine.log.meta import META_BYTES_MAX, Meta, load_meta, meta_reserve, store_meta
from curbstone.core.errors import DataDirectoryError, MetaDamaged
from curbstone.core.names import QueueName
from curbstone.core.options import MIB, QueueOptions
from tests.kit.lab import Lab

DEFAULTS = QueueOptions()
PLAIN = Meta("1-2", QueueName("default", "q"), DEFAULTS)
FULL = Meta(
    "1-2", QueueName("default", "q"), DEFAULTS, {"ttl": 5, "groups": ["g", "h"]}, {"g": 3, "h": 9}, {"h": 7},
    frozenset({"g"}), {"e": "", "f": "a = '1'"}, 1.5,
)  # fmt: skip


class Watched(OsDisk):
    """A real disk that knows which files are open, and can lose a sector."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: list[OsFile] = []
        self.closed = 0
        self.is_bad = False

    def open(self, path: str, *, create: bool = False) -> OsFile:
        file = super().open(path, create=create)
        self.opened.append(file)
        close, read = file.close, file.read

        def closing() -> None:
            self.closed += 1
            close()

        def reading(offset: int, size: int) -> bytes:
            if self.is_bad:
                raise OSError(errno.EIO, "a bad sector")
            return read(offset, size)

        file.close, file.read = closing, reading  # type: ignore[method-assign]
        return file


@pytest.fixture
def disk(tmp_path: Path) -> Watched:
    found = Watched(tmp_path)
    found.make_dir("q")
    return found


def written(facts: dict[str, object]) -> bytes:
    line = json.dumps(facts).encode()
    return line + b"\n%08x\n" % crc32(line)


@pytest.mark.parametrize("meta", [PLAIN, FULL], ids=["plain", "full"])
def test_meta_round_trips_over_crash_remains(disk: Watched, meta: Meta) -> None:
    for _ in range(2):
        left = disk.open("q/meta.new", create=True)
        left.write(0, [b"x" * 5000])
        left.close()
        store_meta(disk, "q", meta.encode())
        assert load_meta(disk, "q", DEFAULTS) == meta
    assert disk.list_dir("q") == ["meta"]
    assert disk.closed == len(disk.opened), "a file stayed open"


def test_largest_meta_file_is_read(disk: Disk) -> None:
    meta = Meta("1-2", QueueName("default", "q"), DEFAULTS, bindings={"e" * (META_BYTES_MAX - 100): ""})
    assert META_BYTES_MAX < len(meta.encode()) <= META_BYTES_MAX + 64
    store_meta(disk, "q", meta.encode())
    assert load_meta(disk, "q", DEFAULTS) == meta


def test_unfinished_meta_is_absent(disk: Disk) -> None:
    assert load_meta(disk, "q", DEFAULTS) is None


def test_unreadable_meta_is_damage(disk: Watched) -> None:
    store_meta(disk, "q", PLAIN.encode())
    disk.is_bad = True
    with pytest.raises(MetaDamaged, match="q/meta can't be read"):
        load_meta(disk, "q", DEFAULTS)
    assert disk.closed == len(disk.opened)


def test_changed_newer_or_unknown_meta_is_refused() -> None:
    good = PLAIN.encode()
    facts = json.loads(good.splitlines()[0])
    assert Meta.decode(written(facts), "m", DEFAULTS) == PLAIN
    with pytest.raises(MetaDamaged, match="^m is damaged"):
        Meta.decode(good.replace(b'"q"', b'"p"'), "m", DEFAULTS)
    with pytest.raises(DataDirectoryError, match="^m: format 2 is newer"):
        Meta.decode(written(facts | {"format": 2}), "m", DEFAULTS)
    for wrong in ({key: facts[key] for key in facts if key != "uid"}, facts | {"queue": "a b"}):
        with pytest.raises(MetaDamaged, match="^m is not understood"):
            Meta.decode(written(wrong), "m", DEFAULTS)


@pytest.mark.parametrize(
    ("cap", "kept"), [(1, 1024), (65 * 1024, 1040), (MIB, 16384), (2 * MIB, 32768), (1024 * MIB, 32768)]
)
def test_meta_reserves_a_64th_of_the_cap_within_limits(cap: int, kept: int) -> None:
    assert meta_reserve(cap) == kept


def test_group_keeps_its_start_position() -> None:
    meta = PLAIN.with_group("g", 5, 7, skips=True)
    assert (meta.groups, meta.since, meta.skips) == ({"g": 5}, {"g": 7}, frozenset({"g"}))
    again = meta.with_group("g", 50, 70, skips=False)
    assert (again.groups, again.since, again.skips) == ({"g": 5}, {"g": 7}, frozenset())
    assert meta.with_group("h", 6, 8, skips=False).since == {"g": 7, "h": 8}


def test_removed_group_drops_its_state() -> None:
    meta = PLAIN.with_group("g", 5, 7, skips=True).with_group("h", 6, 8, skips=True)
    left = meta.with_options({"groups": ["h", "i"]}, 9)
    assert (left.groups, left.since, left.skips) == ({"h": 6, "i": 9}, {"h": 8}, frozenset({"h"}))


def test_options_unknown_to_earlier_versions_are_stored_separately() -> None:
    """They refuse to start on a `meta` whose `options` have a name that they don't know."""
    meta = PLAIN.with_options({"ttl": 5, "idempotency_window": 86400}, 1)
    facts = json.loads(meta.encode().partition(b"\n")[0])
    assert facts["options"] == {"ttl": 5}
    again = Meta.decode(meta.encode(), "meta", DEFAULTS)
    assert again == meta
    assert again.options.idempotency_window == 86400


def test_members_and_options_of_a_newer_version_are_kept_and_named() -> None:
    facts = json.loads(PLAIN.encode().partition(b"\n")[0])
    newer = facts | {"policy": {"colour": "red", "x": [1]}, "shape": {"a": 1}}
    meta = Meta.decode(written(newer), "meta", DEFAULTS)
    assert meta.unknown_names == ["colour", "shape", "x"]
    assert meta.options == PLAIN.options
    changed = meta.with_options({"ttl": 5}, 1)
    again = json.loads(changed.encode().partition(b"\n")[0])
    assert again == newer | {"options": {"ttl": 5}}
    assert Meta.decode(changed.encode(), "meta", DEFAULTS) == changed
    with pytest.raises(MetaDamaged, match="^m is not understood"):
        Meta.decode(written(facts | {"policy": 5}), "m", DEFAULTS)


def test_a_queue_with_options_of_a_newer_version_is_served_and_they_are_named(
    lab: Lab, queue: LocalQueue, caplog: pytest.LogCaptureFixture
) -> None:
    lab.publish(queue, "a", "b")
    meta = replace(queue.meta, unknown_policy={"colour": "red"})
    lab.disk.names[f"{queue.log.directory}/meta"].cache[:] = meta.encode()
    lab.restart("kill")
    assert "colour in its meta is of a newer version" in caplog.text
    lab.queue(ttl=5)
    lab.restart("power")
    again = lab.named("q")
    assert (again.meta.unknown_policy, lab.bodies(again)) == ({"colour": "red"}, [b"a", b"b"])
