"""Checks the staged transactions for `curbstone check`: their parts, their markers, and the ids that were committed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from curbstone.core.disk import Disk
from curbstone.core.errors import StagedDamaged
from curbstone.core.staging.committed import LOST, PATHS, CommittedId, decode_ids
from curbstone.core.staging.files import (
    MARKER,
    ROOT,
    PartFile,
    check_part,
    decode_marker,
    find_parts,
    load_part,
    read_file,
)


@dataclass
class CheckedStaging:
    """The findings under `staging/`."""

    staged: int = 0
    """Transactions that are not committed yet."""
    committing: int = 0
    """Transactions whose commit the next start will finish."""
    committed: int = 0
    """Stored ids of committed transactions."""
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_staging(disk: Disk) -> CheckedStaging:
    """Read and check every byte that is staged."""
    checked = CheckedStaging()
    try:
        names = sorted(disk.list_dir(ROOT))
    except FileNotFoundError:
        return checked
    except NotADirectoryError:
        checked.damage.append(f"{ROOT} is not a directory (symbolic links are not followed)")
        return checked
    committed = _check_committed(disk, checked)
    for name in names:
        directory = f"{ROOT}/{name}"
        if name.startswith("gone-"):
            checked.notes.append(f"{directory}: its removal was not finished")
        elif not re.fullmatch("[0-9a-f]{32}", name):
            if directory not in PATHS:
                checked.notes.append(f"{directory}: left over")
        elif bytes.fromhex(name) in committed:
            checked.notes.append(f"{directory}: committed, but not removed yet")
        else:
            _check_transaction(disk, directory, checked)
    return checked


def _check_committed(disk: Disk, checked: CheckedStaging) -> set[bytes]:
    """Read the two files of the ids that were committed; return the ids."""
    first, second = (read_file(disk, path) for path in PATHS)
    if first is None and second is None:
        return set()
    found: list[CommittedId] = []
    ids = decode_ids(first[0] if first else b"", second[0] if second else None, found.append)
    lost = max((each.messages for each in found if each.hashed == LOST), default=0) + ids.lost
    known = {each.hashed for each in found} - {LOST}
    checked.committed = len(known)
    if ids.healed:
        checked.damage.append(f"{PATHS[0]} is damaged in {ids.healed} places; the next start repairs it from its copy")
    if lost:
        checked.damage.append(
            f"{lost} ids in {PATHS[0]} are lost: a transaction committed again under one is published twice"
        )
    return known


def _check_transaction(disk: Disk, directory: str, checked: CheckedStaging) -> None:
    marker_file = read_file(disk, f"{directory}/{MARKER}")
    if marker_file is not None:
        checked.committing += 1
        written = marker_file[0]
        marker = decode_marker(written)
        if marker is None:
            text = "its checksum does not match: it is unknown what was committed, and none of it is published"
            checked.damage.append(f"{directory}/{MARKER}: {text}")
            return
        half = written[: len(written) // 2]
        if 2 * half != written and decode_marker(half + half) != decode_marker(written[len(half) :] * 2):
            checked.damage.append(f"{directory}/{MARKER}: one of its two copies is damaged, the other is used")
        for file in marker.files:
            _check_part(disk, directory, file if file.crc is not None else _end_of(disk, directory, file), checked)
        return
    checked.staged += 1
    found = find_parts(disk, directory)
    checked.notes += [f"{directory}/{name}: left over, the next start removes it" for name in found.needless]
    for part in found.parts.values():
        if part.is_damaged:
            checked.damage.append(f"{directory}/{part.file}: its end is damaged; it has to be staged again")
        else:
            _check_part(disk, directory, part.frames, checked)


def _end_of(disk: Disk, directory: str, file: PartFile) -> PartFile:
    """Return a part with the checksum at the end of its file, because markers of the first release have none."""
    try:
        part = load_part(disk, directory, file.name)
    except FileNotFoundError:
        return file
    return file if part.is_damaged else part.frames


def _check_part(disk: Disk, directory: str, file: PartFile, checked: CheckedStaging) -> None:
    try:
        check_part(disk, directory, file)
    except StagedDamaged as error:
        checked.damage.append(str(error))
