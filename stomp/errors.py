"""Errors of STOMP clients, and the text of their ERROR frames.

A `ProtocolError` ends its connection: the specification demands an ERROR frame and then the end (STOMP 1.2 § ERROR).
Its text is the rule, and `shown` is the line that broke it. Errors of the engine (`curbstone.core.errors`) are sent in
the same kind of frame.
"""

from __future__ import annotations

SHOWN_MAX = 200
"""How many characters of an offending line are shown."""


class ProtocolError(Exception):
    """The client broke a rule of the protocol. `str()` is the rule, in one line."""

    def __init__(self, rule: str, shown: bytes | str = "", *, headers: tuple[str, ...] = ()) -> None:
        super().__init__(rule)
        self.shown = shown
        """The offending header or line, as the client sent it."""
        self.receipt: bytes | None = None
        """The `receipt` of the offending frame as the client sent it, if known."""
        self.headers = headers
        """Further header lines of the ERROR frame."""


def one_line(text: str) -> str:
    """Return a client's text in a form that fits into one line of a log."""
    return text[:SHOWN_MAX].encode("ascii", "backslashreplace").decode().replace("\r", " ").replace("\n", " ")


def body_text(rule: str, shown: bytes | str) -> str:
    """Return the body of an ERROR frame: the rule, and in printable form the line that broke it."""
    if not shown:
        return rule + "\n"
    text = shown.decode("utf-8", "backslashreplace") if isinstance(shown, bytes) else shown
    cut = text[:SHOWN_MAX] + ("..." if len(text) > SHOWN_MAX else "")
    return f"{rule}\n\nIt was: {cut!r}\n"
