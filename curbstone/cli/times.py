"""Times in options, as 90m."""

from __future__ import annotations

from curbstone.core.options import SECONDS_MAX
from curbstone.exit_codes import WRONG, CommandFailed


def seconds_of(text: str, option: str) -> int:
    """Return a time in seconds. Raise CommandFailed."""
    number, unit = text[:-1], {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[-1:])
    if unit is None or not number.isascii() or not number.isdigit() or not 0 < int(number) * unit <= SECONDS_MAX:
        raise CommandFailed(f"{option}: bad time {text!r}: expected a number with s, m, h or d, as 90m", WRONG)
    return int(number) * unit
