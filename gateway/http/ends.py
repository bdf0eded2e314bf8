"""Where the head of a request, or its body in chunks, ends in what was read. Pure.

The parser is never given more than that, so that the next request stays bytes until this one is answered.
"""

from __future__ import annotations

import re

_BLANK_LINE = b"\r\n\r\n"
_EMPTY_LINES = re.compile(rb"[\r\n]*")


class Ends:
    """Finds them, one after the other. A head and a body in chunks end with a blank line, maybe cut by a read."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""
        """The end of what was looked at last, where a blank line may have begun in it."""

    def next(self, data: bytes, start: int, is_under_way: bool) -> int:
        """Return up to where to parse from `start` on; `is_under_way`: whether a head or such a body has begun."""
        tail, self._tail = self._tail, b""
        if not is_under_way:
            lines = _EMPTY_LINES.match(data, start)
            assert lines
            start = lines.end()  # such may stand before a request, and end nothing
        if tail:
            found = (tail + data).find(_BLANK_LINE) - len(tail)
            is_found = found >= -len(tail)
        else:
            found = data.find(_BLANK_LINE, start)
            is_found = found >= 0
        if is_found:
            return found + len(_BLANK_LINE)
        self._tail = (tail + data[-3:])[-3:]
        return len(data)
