"""Archives that nobody's server has made: each is refused with one line, after little work, and leaves nothing."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from curbstone.backup.archive import PAX_BYTES_MAX
from curbstone.backup.files import INDEX, INDEX_BYTES_MAX, SUMS, BackupError, encode_index, encode_sums
from curbstone.backup.receive import extract, pass_on, receive, unpacked
from tests.backup.test_backup import backup, here, publish
from tests.kit.server import ServerProcess

GIB = 1024**3
SEGMENT = "data/queues/q/1.seg"
END = bytes(2 * tarfile.BLOCKSIZE)


def entry(name: str, data: bytes = b"", *, size: int | None = None, kind: bytes = b"0", **pax: str) -> bytes:
    """Return an entry whose header may claim another size than it has."""
    info = tarfile.TarInfo(name)
    info.size = len(data) if size is None else size
    info.type = kind
    info.pax_headers = {key.replace("__", "."): value for key, value in pax.items()}
    return info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def header_of(kind: bytes, size: int) -> bytes:
    """Return a header of an extension, as of a long name."""
    info = tarfile.TarInfo("x")
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def complete_archive(*files: tuple[str, bytes], index: bytes | None = None, sums: bytes | None = None) -> bytes:
    content = dict([(INDEX, encode_index({"queues": 0, "files": 0, "bytes": 0}) if index is None else index), *files])
    if sums is None:
        sums = encode_sums({name: hashlib.sha256(data).hexdigest() for name, data in content.items()})
    return b"".join([entry(name, data) for name, data in content.items()]) + entry(SUMS, sums) + END


GOOD = complete_archive((SEGMENT, b"segment"))

SPARSE = b"2\n0\n1\n8589934591\n1\n".ljust(tarfile.BLOCKSIZE, b"\0") + bytes(tarfile.BLOCKSIZE)
CRAFTED: dict[str, tuple[bytes, str]] = {
    "sparse, GNU": (entry(SEGMENT, size=8 * GIB - 1, kind=tarfile.GNUTYPE_SPARSE), "not a file"),
    "sparse, pax": (
        entry(SEGMENT, SPARSE, GNU__sparse__major="1", GNU__sparse__minor="0", GNU__sparse__realsize="8589934592"),
        "is sparse",
    ),
    "a path that is long": (entry("/".join(["d"] * 600)), "which no data directory has"),
    "a link": (entry(SEGMENT, kind=tarfile.SYMTYPE), "not a file"),
    "a global header": (header_of(tarfile.XGLTYPE, 5 * GIB), "not a file"),
    "a long name": (header_of(tarfile.GNUTYPE_LONGNAME, 5 * GIB), "not a file"),
    "a pax header that is large": (header_of(tarfile.XHDTYPE, 5 * GIB), f"more than {PAX_BYTES_MAX}"),
    "a negative size": (header_of(tarfile.REGTYPE, -1), "negative size"),
    "an offset that is no number": (entry(SEGMENT, CURBSTONE__offset="x"), "bad number"),
    "an offset of many digits": (entry(SEGMENT, CURBSTONE__offset="9" * 5000), "bad number"),
    "an offset below 0": (entry(SEGMENT, CURBSTONE__offset="-1"), "bad number"),
    "a file twice": (entry(SEGMENT) * 2, "twice"),
    "an index that is deep": (complete_archive(index=b"[" * 100_000), "is damaged"),
    "an index that is large": (entry(INDEX, size=INDEX_BYTES_MAX + 1), "bytes, more than"),
    "no index": (entry(SEGMENT) + entry(SUMS, encode_sums({SEGMENT: hashlib.sha256().hexdigest()})), "no index.json"),
    "checksums that are large": (entry(INDEX, b"{}") + entry(SUMS, size=5 * GIB), "bytes, more than"),
    "checksums of nothing": (entry(SUMS, b"x" * 100), "more than 0"),
    "garbage": (b"garbage " * 1000, "not an archive"),
    "nothing": (b"", "ends before its"),
}


class Counting(io.RawIOBase):
    """An archive that continues for ever, of which hardly anything may be read."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)
        self.count = 0

    def read(self, size: int = -1, /) -> bytes:
        self.count += max(size, 0)
        assert 0 <= size <= 2 * 1024 * 1024 and self.count < 8 * 1024 * 1024
        return self._file.read(size).ljust(size, b"\0") if len(self._file.getbuffer()) else b""


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_archive_is_refused_in_one_line_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    data, text = CRAFTED[name]
    (tmp_path / "b.tar").write_bytes(data)
    code, said = here("restore", tmp_path / "b.tar", tmp_path / "new")
    assert code == 6, said
    assert said.startswith("curbstone: the backup can't be used: ") and said.count("\n") == 1 and text in said
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


@pytest.mark.parametrize("name", sorted(CRAFTED.keys() - {"an index that is deep"}))
def test_crafted_archive_causes_no_large_reads_or_writes(tmp_path: Path, name: str) -> None:
    """An entry of 1.5 KB had 2.5 GiB written, and checksums of 8 GiB were read into memory."""
    stream = Counting(CRAFTED[name][0])
    with pytest.raises(BackupError):
        extract(stream, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 2 * 1024 * 1024


@pytest.mark.parametrize(
    "passed", [lambda stream, path: receive(stream, path), lambda stream, _path: pass_on(stream, io.BytesIO())]
)
def test_server_responses_are_read_with_the_same_bounds(
    tmp_path: Path, passed: Callable[[io.BytesIO, Path], dict[str, object]]
) -> None:
    assert passed(io.BytesIO(GOOD), tmp_path / "good")["format"] == 1
    for name, (data, _) in CRAFTED.items():
        with pytest.raises(BackupError):
            passed(io.BytesIO(data), tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} <= {"good"}


def test_every_prefix_of_an_archive_is_refused(tmp_path: Path) -> None:
    data = complete_archive((SEGMENT, b"segment" * 300), (SEGMENT + "x", b""))
    end = len(data) - 2 * tarfile.BLOCKSIZE
    for size in {*range(0, end, 97), end - 1}:
        with pytest.raises(BackupError):
            extract(io.BytesIO(data[:size]), tmp_path / str(size))
    extract(io.BytesIO(data), tmp_path / "complete_archive")


def test_offset_without_an_earlier_backup_is_damage(tmp_path: Path) -> None:
    data = entry(INDEX, b"{}") + entry(SEGMENT, b"end", CURBSTONE__offset="4")
    sums = {INDEX: hashlib.sha256(b"{}").hexdigest(), SEGMENT: hashlib.sha256(b"1234end").hexdigest()}
    with pytest.raises(BackupError, match="checksum does not match"):
        extract(io.BytesIO(data + entry(SUMS, encode_sums(sums)) + END), tmp_path)


def test_large_sizes_in_tar_headers_are_read(tmp_path: Path) -> None:
    """Above 8 GiB the size is in the pax header."""
    info = tarfile.TarInfo(SEGMENT)
    info.size = 9 * GIB
    with pytest.raises(BackupError, match="is truncated"):
        extract(io.BytesIO(info.tobuf(tarfile.PAX_FORMAT) + b"x" * 1000), tmp_path)
    assert (tmp_path / SEGMENT).stat().st_size == 1000


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    import os

    before = os.umask(0o022)
    yield request.param
    os.umask(before)


def accessible_to_others(path: Path) -> list[str]:
    """Return what anybody but the owner may do something with, or the owner may not read and write."""
    found = []
    for each in [path, *path.rglob("*")]:
        mode = stat.S_IMODE(each.stat().st_mode)
        if mode != (0o700 if each.is_dir() else 0o600):
            found.append(f"{each} {mode:o}")
    return found


def test_backups_and_restored_files_are_private_to_their_owner(tmp_path: Path, umask: int) -> None:
    """Every user of the machine could read what was restored, and an archive."""
    import os

    with ServerProcess(tmp_path / "data") as server:
        publish(server, "q", "one")
        os.umask(umask)
        backup(server, tmp_path / "b.tar")
        backup(server, tmp_path / "b")
        backup(server, tmp_path / "b2", "--since", tmp_path / "b")
    assert here("restore", tmp_path / "b.tar", tmp_path / "from tar") == (0, "")
    assert here("restore", tmp_path / "b", tmp_path / "from directory") == (0, "")
    assert here("restore", tmp_path / "b", tmp_path / "one queue", "--queue", "p/q") == (0, "")
    os.umask(0o022)
    for name in ("b.tar", "b", "b2", "from tar", "from directory", "one queue"):
        assert accessible_to_others(tmp_path / name) == [], name
    with unpacked(str(tmp_path / "b"), tmp_path / "x") as (data, _):
        assert accessible_to_others(data) == []
