"""The format of a backup: files of a data directory, an index, and checksums; as a directory or as a tar archive.

::

    index.json      format, version, when it was taken, what the server promised
    data/...        the files, by their paths in the data directory, each cut to the bytes that count
    SHA256SUMS      of all of the above, as sha256sum(1) writes and checks it

On the wire, and in an archive, the files are in this order. If the receiver has the beginning of a file, only the rest
is sent. The entry then has the offset of the rest (`OFFSET`), and the checksum is that of the whole file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

FORMAT = 1
INDEX = "index.json"
SUMS = "SHA256SUMS"
DATA = "data"
OFFSET = "CURBSTONE.offset"
"""The pax header of an entry that has only the rest of a file."""

PIECE_BYTES = 1024 * 1024
INDEX_BYTES_MAX = 1024 * 1024
PATH_CHARS_MAX, PATH_PARTS_MAX = 500, 10

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_NAME = re.compile(r"[A-Za-z0-9_.~%+:@-]+")


class BackupError(Exception):
    """A backup is damaged or incomplete. The text says how."""


class TargetTaken(Exception):
    """The target of a backup or a restore exists already; the backup is not damaged."""


class NotInBackup(Exception):
    """The requested queue is not in the backup."""


class PresentPart(NamedTuple):
    """The beginning of a file that the receiver has already."""

    size: int
    sha256: str


def checked_path(path: str) -> str:
    """Return the path if it is below the directory that it is written to. Raise BackupError."""
    if path.count("/") >= PATH_PARTS_MAX or len(path) > PATH_CHARS_MAX:
        raise BackupError(f"it has a path of {len(path)} characters, {path[:100]!r}…, which no data directory has")
    if not all(_NAME.fullmatch(part) and part not in (".", "..") for part in path.split("/")):
        raise BackupError(f"it has a file {path[:200]!r}, which no data directory has")
    return path


def encode_sums(sums: Mapping[str, str]) -> bytes:
    """Encode `SHA256SUMS`."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(sums.items())).encode()


def check_size(name: str, size: int, names: Iterable[str]) -> None:
    """Raise BackupError if the index, or the checksums of these files, are too large."""
    most = sum(len(path.encode()) + 67 for path in names) if name == SUMS else INDEX_BYTES_MAX
    if size > most:
        raise BackupError(f"its {name} has {size} bytes, more than {most}")


def decode_sums(data: bytes) -> dict[str, str]:
    """Decode the checksums, by path. Raise BackupError if the data are malformed."""
    found: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise BackupError(f"{SUMS} has a line {line[:100]!r}")
        found[checked_path(match[2])] = match[1]
    return found


def encode_index(facts: Mapping[str, object]) -> bytes:
    """Encode the index."""
    return json.dumps({"format": FORMAT, **facts}, indent=1).encode() + b"\n"


def decode_index(data: bytes) -> dict[str, object]:
    """Decode an index. Raise BackupError if its format is newer."""
    try:
        facts = json.loads(data)
        number = int(facts["format"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BackupError(f"its {INDEX} is damaged") from None
    if number > FORMAT:
        raise BackupError(f"it has format {number}, which is newer than this version supports")
    return dict(facts)
