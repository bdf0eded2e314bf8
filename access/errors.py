"""What can go wrong between a client and what it may do; each is an error of the engine to whoever tells it."""

from __future__ import annotations

from curbstone.core.errors import CurbstoneError, QueueFull


class NotLoggedIn(CurbstoneError):
    """Nobody is logged in, or the login failed or ended; one text for all reasons that a guesser could use."""


class NotAllowed(CurbstoneError):
    """Who asks lacks a right; the text names the right and what it is missing on, and nothing that exists."""


class TooMany(CurbstoneError):
    """A limit of a user or of guesses is reached; `wait_s` says when to try again."""

    def __init__(self, text: str, wait_s: int = 1) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class TooFast(TooMany):
    """A user publishes more than its rate; nothing of this was stored, and after `wait_s` it is taken."""


class Busy(CurbstoneError):
    """Too many logins wait to be checked; try again."""


class NoSuchToken(CurbstoneError):
    """There is no token of this id that one may see."""


class QuotaReached(QueueFull):
    """A project has all that its quota allows."""


FAILED = "the login failed"
"""What was presented was looked at, and is wrong: to try it again is of no use."""
TOO_MANY = "too many logins failed"
"""What was presented was not looked at: it may be tried when the wait is over."""
WANTED = "a login is needed"
