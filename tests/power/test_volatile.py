"""What a power cut leaves of the files of `volatile`."""

from __future__ import annotations

from random import Random

import pytest

from tests.power.volatile import ROOT, SECTOR, Directory, File, Volume


def with_file(volume: Volume, name: str, data: bytes = b"") -> File:
    file = File()
    volume.make(ROOT, name, file)
    if data:
        file.write(0, data)
    return file


def test_synced_data_survives() -> None:
    volume = Volume()
    file = with_file(volume, "a", b"synced")
    file.sync()
    volume.sync_directory(ROOT)
    file.write(3, b"later")
    volume.cut(None)
    assert bytes(volume.file(volume.find(ROOT, "a")).data) == b"synced"
    assert volume.files_hurt == 1


def test_synced_file_without_synced_name_is_lost() -> None:
    volume = Volume()
    with_file(volume, "a", b"synced").sync()
    volume.cut(None)
    with pytest.raises(FileNotFoundError):
        volume.find(ROOT, "a")
    assert volume.entries_lost == 1


def test_writes_are_torn_by_sector_and_may_be_reordered() -> None:
    seen = set()
    for seed in range(200):
        volume = Volume()
        file = with_file(volume, "a", bytes(3 * SECTOR))
        file.sync()
        volume.sync_directory(ROOT)
        file.write(0, b"1" * 2 * SECTOR)
        file.write(2 * SECTOR, b"2" * SECTOR)
        volume.cut(Random(seed))
        seen.add(bytes(file.data[::SECTOR]))
    assert seen == {bytes(text, "ascii").replace(b"0", b"\0") for text in ("000", "100", "010", "110")} | {
        bytes(text, "ascii").replace(b"0", b"\0") for text in ("002", "102", "012", "112")
    }


def test_unsynced_rename_is_there_or_not() -> None:
    seen = set()
    for seed in range(50):
        volume = Volume()
        with_file(volume, "a")
        other = volume.make(ROOT, "d", Directory())
        volume.sync_directory(ROOT)
        volume.rename(ROOT, "a", other, "b")
        volume.cut(Random(seed))
        seen.add((tuple(volume.directory(ROOT).entries), tuple(volume.directory(other).entries)))
    assert seen == {(("a", "d"), ()), (("d",), ("b",))}


def test_unlinked_file_is_lost_or_returns_with_its_name() -> None:
    volume = Volume()
    with_file(volume, "a", b"x").sync()
    volume.sync_directory(ROOT)
    volume.remove(ROOT, "a")
    volume.cut(None)
    assert bytes(volume.file(volume.find(ROOT, "a")).data) == b"x"
