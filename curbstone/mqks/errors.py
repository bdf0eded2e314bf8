"""Errors of MQKS clients, and their answers.

The client gets one line with an error id. The rule that was broken is logged under that id, but never any part of the
line that broke it, which may be a message or a piece of one. Errors of the engine (`curbstone.core.errors`) are
answered in the same way.
"""

from __future__ import annotations


class RequestError(Exception):
    """A request broke a rule of the protocol. `str()` is the rule in one line, without any part of the request."""

    def __init__(self, rule: str, *, fatal: bool = False, retry_after_s: int = 0) -> None:
        super().__init__(rule)
        self.retry_after_s = retry_after_s
        """After how many seconds the client may retry, if the answer has it; else 0."""
        self.fatal = fatal
        """Whether the connection ends after the error line."""
