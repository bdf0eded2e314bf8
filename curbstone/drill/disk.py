"""Measures the syncs of a disk, and checks whether they can be trusted.

No program can prove that a disk keeps what it has synced; only a power cut can refute it. A program can see the type of
the file system, and whether a sync takes a plausible time for the device.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from curbstone.process.file_system import doubts, file_system_of

BLOCK = bytes(range(256)) * 16
ROOM_BYTES = 4 * 1024 * 1024
ROTATION_S = 1e-3
"""A faster sync of a rotating disk has not reached the disk."""


@dataclass
class DiskCheck:
    """The result. Times are in seconds."""

    file_system: str = "?"
    syncs_s: list[float] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """Reasons why a confirmed write is not durable on this disk."""
    remarks: list[str] = field(default_factory=list)
    """Unusual findings that may be right."""


def check_disk(directory: Path, seconds: float) -> DiskCheck:
    """Write and sync blocks for `seconds`. Raise OSError."""
    found = DiskCheck()
    path = directory / "sync-check"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(file, bytes(ROOM_BYTES), 0)
        os.fsync(file)
        end = time.perf_counter() + seconds
        offset = 0
        while (start := time.perf_counter()) < end:
            os.pwrite(file, BLOCK, offset)
            getattr(os, "fdatasync", os.fsync)(file)
            found.syncs_s.append(time.perf_counter() - start)
            offset = (offset + len(BLOCK)) % ROOM_BYTES
    finally:
        os.close(file)
        path.unlink()
    found.file_system = file_system_of(directory)
    typical_s = median(found.syncs_s)
    found.doubts = doubts(found.file_system, typical_s)
    if is_rotating(directory) and typical_s < ROTATION_S:
        found.remarks.append(
            f"the system reports a rotating disk, but a sync takes {typical_s * 1e3:.2f} ms: a virtual disk,"
            " a battery-backed cache, or syncs that are not made"
        )
    return found


def is_rotating(directory: Path) -> bool:
    """Return whether the system reports that the directory is on a rotating disk."""
    device = os.stat(directory).st_dev
    base = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for path in (base / "queue/rotational", base / "../queue/rotational"):
        try:
            return path.read_text().strip() == "1"
        except OSError:
            continue
    return False
