"""A real file of many lines, found on any machine with Python: its standard library, one source after the other."""

from __future__ import annotations

import sysconfig
from pathlib import Path


def real_lines(count: int) -> list[bytes]:
    """Return `count` lines, without their line breaks: real text, some of it empty, not ASCII, or not even UTF-8."""
    root = Path(sysconfig.get_path("stdlib"))
    sources = {path: path.read_bytes() for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts}
    # Those with the odd lines first: there are few.
    ordered = sorted(sources, key=lambda path: (sources[path].isascii(), path))
    lines: list[bytes] = []
    while len(lines) < count:  # a small standard library is read again
        before = len(lines)
        for path in ordered:
            lines += sources[path].split(b"\n")
            if len(lines) >= count:
                break
        assert len(lines) > before, f"no Python sources in {root}"
    del lines[count:]
    assert b"" in lines
    assert not all(line.isascii() for line in lines)
    return lines
