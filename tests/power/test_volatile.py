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


def test_what_was_synced_stays() -> None:
    volume = Volume()
    file = with_file(volume, "a", b"synced")
    file.sync()
    volume.sync_directory(ROOT)
    file.write(3, b"later")
    volume.cut(None)
    assert bytes(volume.file(volume.find(ROOT, "a")).data) == b"synced"
    assert volume.files_hurt == 1


def test_a_synced_file_is_gone_if_its_name_was_not_synced() -> None:
    volume = Volume()
    with_file(volume, "a", b"synced").sync()
    volume.cut(None)
    with pytest.raises(FileNotFoundError):
        volume.find(ROOT, "a")
    assert volume.entries_lost == 1


def test_a_write_is_torn_by_sectors_and_a_later_one_may_be_there_without_it() -> None:
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


def test_a_rename_is_there_or_not() -> None:
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


def test_a_file_without_a_name_is_forgotten_by_a_cut_and_may_return_with_its_name() -> None:
    volume = Volume()
    with_file(volume, "a", b"x").sync()
    volume.sync_directory(ROOT)
    volume.remove(ROOT, "a")
    volume.cut(None)
    assert bytes(volume.file(volume.find(ROOT, "a")).data) == b"x"
