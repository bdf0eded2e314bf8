"""Errors of logins and rights. All are CurbstoneErrors, so adapters report them like errors of the engine."""

from __future__ import annotations

from curbstone.core.errors import CurbstoneError, QueueFull


class NotLoggedIn(CurbstoneError):
    """There is no login, or it failed or has ended. All reasons that would help an attacker have the same text."""


class NotAllowed(CurbstoneError):
    """The caller lacks a right. The text names the right and the target, and does not reveal what exists."""


class TooMany(CurbstoneError):
    """A limit of a user or of login attempts is reached; `wait_s` says when to try again."""

    def __init__(self, text: str, wait_s: int = 1) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class TooFast(TooMany):
    """A user exceeds its publish rate. Nothing was stored; the request can be repeated after `wait_s`."""


class Busy(CurbstoneError):
    """A login can't be checked now; the client may try again after `wait_s`."""

    wait_s = 5


class NoSuchToken(CurbstoneError):
    """No such token, or it belongs to another user."""


class QuotaReached(QueueFull):
    """A project has reached its quota."""


LOGIN_FAILED = "the login failed"
"""The credentials were checked and are wrong; retrying does not help."""
TOO_MANY_FAILED = "too many logins failed"
"""The credentials were not checked; the client may retry after the wait."""
LOGIN_REQUIRED = "a login is needed"
