"""Errors of the pipeline, one line each, and the pattern that finds this line in Spark's own error texts."""

from __future__ import annotations

import re

_MARK = re.compile(r"(?:PipelineError|Refused|NoRoom|DataLoss|GroupInUse|Unreachable): (curbstone: [^\n]*)")

# In an error that Spark shows as a traceback: the line with the cause, not the line of the bridge to Java.
_CAUSE = re.compile(r"^(?:: )?([\w.$]+(?:Error|Exception): (?!An error occurred while calling).*)", re.MULTILINE)
# In an error of Java that is passed over that bridge: the cause.
_JAVA = re.compile(r"^An error occurred while calling \S+\n: (.*)", re.MULTILINE)


class PipelineError(Exception):
    """Base of the pipeline's errors. The text is one line for the user who started the job, and never has a token."""

    def __init__(self, reason: str) -> None:
        line = " ".join(reason.split())
        super().__init__(line if line.startswith("curbstone: ") else f"curbstone: {line}")


class Refused(PipelineError):
    """The server answered with an error. `members` are the members of its problem document."""

    def __init__(self, status: int, reason: str, members: dict[str, object]) -> None:
        super().__init__(reason)
        self.status = status
        self.members = members

    def __reduce__(self) -> tuple[object, ...]:
        return (Refused, (self.status, str(self), self.members))


class Unreachable(PipelineError):
    """The server did not answer for as long as was allowed."""


class NoRoom(PipelineError):
    """The server has no room to stage more."""


class DataLoss(PipelineError):
    """Messages that should have been read are gone. The text names them."""


class GroupInUse(PipelineError):
    """Another query reads through the same group, so each would miss the messages that the other has acked.

    `acked` is set if this query is new in the group and behind it: it is the last acked seq.
    """

    def __init__(self, reason: str, acked: int | None = None) -> None:
        super().__init__(reason)
        self.acked = acked


def last_line(error: BaseException) -> str:
    """Return one line for an error. If Spark's error contains one of ours at any depth, return our line."""
    text = str(error)
    found = _MARK.findall(text)
    if found:
        return str(found[-1]).removeprefix("curbstone: ")
    if isinstance(error, PipelineError):
        return text.removeprefix("curbstone: ")
    if cause := _CAUSE.search(text.partition("Traceback (most recent call last):")[2]):
        return cause[1]
    if java := _JAVA.search(text):
        return java[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
