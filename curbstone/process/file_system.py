"""Which file system a directory is on, and whether its syncs can be trusted."""

from __future__ import annotations

from pathlib import Path

VOLATILE = {"tmpfs", "ramfs", "devtmpfs", "rootfs"}
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "virtiofs"}
TOO_FAST_S = 15e-6
"""A sync that takes less than this has not reached a device."""


def doubts(file_system: str, typical_s: float = 1.0) -> list[str]:
    """Return reasons why syncs on this file system, which typically take `typical_s` seconds, may not be durable."""
    found = []
    if file_system in VOLATILE:
        found.append(f"{file_system} is in memory: a power failure erases it")
    elif file_system in REMOTE:
        found.append(f"{file_system} is remote: another machine decides whether a sync is durable")
    elif typical_s < TOO_FAST_S:
        found.append(f"a sync takes {typical_s * 1e6:.0f} µs, which is too fast for any disk: it is not durable")
    return found


def writable_by_others(directory: Path) -> list[str]:
    """Return warnings if other users of the machine can replace the files in a directory.

    They can't read the files, because its subdirectories are accessible to their owner only.
    """
    mode = directory.stat().st_mode & 0o7777
    if not mode & 0o022:
        return []
    return [f"other users can write to the data directory {directory} (mode {mode:04o}) and replace its files"]


def file_system_of(directory: Path) -> str:
    """Return the type of the file system of a directory, or `?` if it is unknown."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "?"
    here = directory.resolve()
    best, kind = -1, "?"
    for line in lines:
        _, mount, found, *_ = line.split(" ")
        point = Path(mount.encode().decode("unicode_escape"))
        if here.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), found
    return kind
