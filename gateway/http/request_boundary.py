"""Finds where a request's head, or its body in chunks, ends in the bytes that were read. Pure.

The parser is never given more than that, so the next request stays unparsed until this one is answered.
"""

from __future__ import annotations

import re

_BLANK_LINE = b"\r\n\r\n"
_EMPTY_LINES = re.compile(rb"[\r\n]*")


class Ends:
    """Finds the ends, one after the other.

    A head and a body in chunks end with a blank line, which may be cut by a read.
    """

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""
        """The last bytes that were searched, in case a blank line begins in them."""

    def next(self, data: bytes, start: int, is_under_way: bool) -> int:
        """Return where to stop parsing from `start` on. `is_under_way`: a head or such a body has begun."""
        tail, self._tail = self._tail, b""
        if not is_under_way:
            lines = _EMPTY_LINES.match(data, start)
            assert lines
            start = lines.end()  # empty lines may come before a request, and end nothing
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
