"""Cron schedules in a time zone. Pure.

The fields are `minute hour day month weekday`. Each is `*`, a number, a range (`1-5`), a list (`1,15`), or steps
(`*/10`, `8-18/2`). Months and weekdays may also be English names; Sunday is 0 or 7. If both day and weekday are
restricted, one match is enough, as in every cron. A time that the change to summer time skips is due right after the
gap. A time that occurs twice is due the first time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
MONTHS = {
    name: at
    for at, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1)
}
WEEKDAYS = {name: at for at, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day", 1, 31, {}),
    ("month", 1, 12, MONTHS),
    ("weekday", 0, 7, WEEKDAYS),
)
YEARS_MAX = 9
"""A 29th of February occurs at least once in so many years."""

_PART = re.compile(r"(\*|[a-z0-9]+)(?:-([a-z0-9]+))?(?:/([0-9]+))?", re.ASCII)
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)


class BadSchedule(ValueError):
    """A schedule can't be parsed. The text says why."""


class Schedule:
    """A parsed schedule."""

    def __init__(self, text: str, zone: tzinfo = UTC) -> None:
        """Parse the five fields. Raise BadSchedule."""
        fields = NICKNAMES.get(text.strip().lower(), text.lower()).split()
        if len(fields) != len(FIELDS):
            raise BadSchedule(f"bad schedule {text!r}: expected minute hour day month weekday, or @daily and such")
        found = [_numbers(given, *field) for given, field in zip(fields, FIELDS, strict=True)]
        self._minutes, self._hours, self._days, self._months, weekdays = found
        self._weekdays = {number % 7 for number in weekdays}
        self._either = fields[2] != "*" and fields[4] != "*"
        self._zone = zone
        if next(self.after(datetime(2024, 1, 1, tzinfo=UTC)), None) is None:
            raise BadSchedule(f"bad schedule {text!r}: this date never occurs")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times after `moment` in order, in UTC. End if there is none in `YEARS_MAX` years."""
        at = moment.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        end = at + 366 * YEARS_MAX * _DAY
        while at < end:
            local = at.astimezone(self._zone)
            passed_over = self._passed_over(at, local)
            if not self._is_day(local) and not any(map(self._is_day, passed_over)):
                tomorrow = (local.replace(tzinfo=None, hour=0, minute=0, fold=0) + _DAY).replace(tzinfo=self._zone)
                at = max(at + _MINUTE, tomorrow.astimezone(UTC))
                continue
            if (self._is_due(local) and not local.fold) or any(map(self._is_due, passed_over)):
                yield at
                end = at + 366 * YEARS_MAX * _DAY
            at += _MINUTE

    def _passed_over(self, at: datetime, local: datetime) -> list[datetime]:
        """Return the minutes of local time that are skipped just before this one."""
        before = (at - _MINUTE).astimezone(self._zone).replace(tzinfo=None)
        gap = round((local.replace(tzinfo=None) - before) / _MINUTE) - 1
        return [before + step * _MINUTE for step in range(1, gap + 1)]

    def _is_day(self, local: datetime) -> bool:
        day, weekday = local.day in self._days, local.isoweekday() % 7 in self._weekdays
        return local.month in self._months and (day or weekday if self._either else day and weekday)

    def _is_due(self, local: datetime) -> bool:
        return local.minute in self._minutes and local.hour in self._hours and self._is_day(local)


def _numbers(text: str, what: str, least: int, most: int, names: dict[str, int]) -> set[int]:
    """Return the numbers that a field stands for. Raise BadSchedule."""
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise BadSchedule(f"bad {what} {part!r} in a schedule")
        first, last, step = match.groups()
        if first == "*":
            if last is not None:
                raise BadSchedule(f"bad {what} {part!r} in a schedule")
            low, high = least, most
        else:
            low = _number(first, what, least, most, names)
            high = most if last is None and step is not None else low
            high = _number(last, what, least, most, names) if last is not None else high
        if low > high or step == "0":
            raise BadSchedule(f"bad {what} {part!r} in a schedule")
        found.update(range(low, high + 1, int(step or 1)))
    return found


def _number(text: str, what: str, least: int, most: int, names: dict[str, int]) -> int:
    number = names.get(text, int(text) if text.isdigit() and len(text) < 4 else -1)
    if not least <= number <= most:
        raise BadSchedule(f"bad {what} {text!r} in a schedule: {least} to {most}")
    return number
