"""Errors of logins and rights. All are CurbstoneErrors, so adapters report them like errors of the engine."""

from __future__ import annotations

from curbstone.core.errors import CurbstoneError, QueueFull


class NotLoggedIn(CurbstoneError):
    """There is no login, or it failed or has ended. All reasons that would help a guesser have the same text."""


class NotAllowed(CurbstoneError):
    """The caller lacks a right. The text names the right and its object, and does not reveal what exists."""


class TooMany(CurbstoneError):
    """A limit of a user or of login attempts is reached; `wait_s` says when to try again."""

    def __init__(self, text: str, wait_s: int = 1) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class TooFast(TooMany):
    """A user publishes more than its rate. Nothing of this was stored; after `wait_s` it is accepted."""


class Busy(CurbstoneError):
    """A login can't be checked now; the client may try again after `wait_s`."""

    wait_s = 5


class NoSuchToken(CurbstoneError):
    """No such token, or it belongs to another user."""


class QuotaReached(QueueFull):
    """A project has reached its quota."""


FAILED = "the login failed"
"""The credentials were checked and are wrong, so it is useless to try them again."""
TOO_MANY = "too many logins failed"
"""The credentials were not checked, so they may be tried again after the wait."""
WANTED = "a login is needed"
