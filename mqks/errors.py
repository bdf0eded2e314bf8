"""What a client can do wrong in MQKS, and what is told of it.

The client gets one line with an error id; the text goes to the log under that id. Errors of the engine
(`curbstone.core.errors`) are answered in the same way.
"""

from __future__ import annotations

SHOWN_MAX = 200
"""How much of an offending line is shown; the rest is cut."""


class RequestError(Exception):
    """A request broke a rule of the protocol; `str()` is the rule in one line."""

    def __init__(self, rule: str, shown: bytes = b"", *, fatal: bool = False) -> None:
        super().__init__(rule)
        self.shown = shown
        """The offending part, as it came."""
        self.fatal = fatal
        """Whether the connection ends behind the error line."""


def detail(error: Exception, shown: bytes) -> str:
    """Return what the log says of an error: the rule, and what broke it in printable form."""
    rule = str(error) or type(error).__name__
    if not shown:
        return rule
    cut = shown[:SHOWN_MAX].decode("utf-8", "backslashreplace") + ("..." if len(shown) > SHOWN_MAX else "")
    return f"{rule}; it was: {cut!r}"
