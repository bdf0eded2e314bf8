"""What logs in: a token, or a function of the application that returns one."""

from __future__ import annotations

import re
from collections.abc import Callable

Token = str | Callable[[], str | None] | None
"""A function is asked at each connection, and at each call over HTTP."""

_TOKEN = re.compile(r"[!-~]*")


def current(token: Token) -> str | None:
    """Return the token of this moment, without the line end of the file that it was read from.

    Raise ValueError for what is none; and whatever the application's function raises.
    """
    found: object = token() if callable(token) else token
    if found is None:
        return None
    if not isinstance(found, str):
        raise ValueError(f"a token is text, not {type(found).__name__}")
    found = found.strip()
    if not _TOKEN.fullmatch(found):
        raise ValueError("a token has no characters but visible ASCII ones, and no spaces")
    return found
