"""The token for the login: a string, or a function of the application that returns one."""

from __future__ import annotations

import re
from collections.abc import Callable

Token = str | Callable[[], str | None] | None
"""The type of the setting `token`. A function is called for each connection and HTTP call, and before a login ends."""

_TOKEN = re.compile(r"[!-~]*")


def current(token: Token) -> str | None:
    """Return the current token without surrounding space, because a token read from a file ends with a line break.

    Raise ValueError if it is not a valid token. Exceptions of the application's function are passed on.
    """
    found: object = token() if callable(token) else token
    if found is None:
        return None
    if not isinstance(found, str):
        raise ValueError(f"a token must be a str, not {type(found).__name__}")
    found = found.strip()
    if not _TOKEN.fullmatch(found):
        raise ValueError("a token can only have visible ASCII characters, and no spaces")
    return found
