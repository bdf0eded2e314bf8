"""Which file system a directory is on, and whether its syncs can be trusted."""

from __future__ import annotations

from pathlib import Path

VOLATILE = {"tmpfs", "ramfs", "devtmpfs", "rootfs"}
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "virtiofs"}
TOO_FAST_S = 15e-6
"""A sync that takes less than this has not reached any device."""


def doubts(file_system: str, typical_s: float = 1.0) -> list[str]:
    """Return reasons to doubt a disk with this file system, of which a sync typically takes `typical_s` seconds."""
    found = []
    if file_system in VOLATILE:
        found.append(f"{file_system} is memory: a power cut takes everything")
    elif file_system in REMOTE:
        found.append(f"{file_system}: whether a sync is durable is decided on another machine")
    elif typical_s < TOO_FAST_S:
        found.append(f"a sync takes {typical_s * 1e6:.0f} µs: no disk is that fast, so it is not waited for")
    return found


def writable_by_others(directory: Path) -> list[str]:
    """Return warnings if other users of the machine can replace the files in a directory.

    They can't read the files, because the folders in it are made for their owner only.
    """
    mode = directory.stat().st_mode & 0o7777
    if not mode & 0o022:
        return []
    return [f"other users can write to the data directory {directory} (mode {mode:04o}), and replace what is in it"]


def file_system_of(directory: Path) -> str:
    """Return the type of the file system that a directory is on, or `?` if the system does not say."""
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
