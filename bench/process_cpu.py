"""The CPU time of a process and all its descendants, from /proc."""

import os
from pathlib import Path


def cpu_seconds_of_family(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including those that ended and were waited for."""
    used: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process ended meanwhile
        number = int(path.name)
        used[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        children.setdefault(int(fields[1]), []).append(number)
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return sum(used.get(member, 0.0) for member in family)
