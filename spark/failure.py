"""What goes wrong, in one line each, and the mark by which that line is found again in what Spark makes of it."""

from __future__ import annotations

import re

_MARK = re.compile(r"(?:PipelineError|Refused|NoRoom|DataLoss|TwoReaders|Unreachable): (curbstone: [^\n]*)")

# Of an error that Spark shows as a traceback: the line that says what it was, and not that of the bridge to Java.
_CAUSE = re.compile(r"^(?:: )?([\w.$]+(?:Error|Exception): (?!An error occurred while calling).*)", re.MULTILINE)
# Of an error of Java that comes over that bridge: what it was.
_JAVA = re.compile(r"^An error occurred while calling \S+\n: (.*)", re.MULTILINE)


class PipelineError(Exception):
    """The text is one line for whoever started the job; it never holds a token."""

    def __init__(self, reason: str) -> None:
        line = " ".join(reason.split())
        super().__init__(line if line.startswith("curbstone: ") else f"curbstone: {line}")


class Refused(PipelineError):
    """The server answered with an error; `members` are those of the problem it sent."""

    def __init__(self, status: int, reason: str, members: dict[str, object]) -> None:
        super().__init__(reason)
        self.status = status
        self.members = members

    def __reduce__(self) -> tuple[object, ...]:
        return (Refused, (self.status, str(self), self.members))


class Unreachable(PipelineError):
    """The server did not answer for as long as was allowed."""


class NoRoom(PipelineError):
    """What is staged is more than the server takes."""


class DataLoss(PipelineError):
    """Messages that were to be read are gone; the text says which."""


class TwoReaders(PipelineError):
    """Another query reads through the same group: each would miss what the other is done with.

    `acked`: up to there the group is done, and this query, which is new in it, is not as far.
    """

    def __init__(self, reason: str, acked: int | None = None) -> None:
        super().__init__(reason)
        self.acked = acked


def last_line(error: BaseException) -> str:
    """Return what to tell of any error in one line: ours where there is one in it, however deep Spark has put it."""
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
