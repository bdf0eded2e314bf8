"""What a client can do wrong in MQKS, and what is told of it.

The client gets one line with an error id; the rule that was broken goes to the log under that id. Nothing of the
line that broke it does: it may be a message, or a piece of one. Errors of the engine (`curbstone.core.errors`) are
answered in the same way.
"""

from __future__ import annotations


class RequestError(Exception):
    """A request broke a rule of the protocol; `str()` is the rule in one line, without a word of the request."""

    def __init__(self, rule: str, *, fatal: bool = False, retry_after_s: int = 0) -> None:
        super().__init__(rule)
        self.retry_after_s = retry_after_s
        """When it may be tried again, if the client is told; 0 if not."""
        self.fatal = fatal
        """Whether the connection ends behind the error line."""
