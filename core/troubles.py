"""Failures of the disk that are not over: noted where they happen, ended by the next success of the same matter.

While there are any, messages can't all be taken: the server is not ready, and health says why. A matter is logged
when it begins and when it is over, not each time it is tried in between.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("curbstone.core")


class Troubles:
    """What is wrong now, by matter; in the order in which it began."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def note(self, matter: str, text: str) -> None:
        """Something failed."""
        if matter not in self._texts:
            logger.error("%s: %s", matter, text)
        self._texts[matter] = text

    def over(self, matter: str) -> None:
        """It worked again, or nobody needs it any more."""
        if self._texts.pop(matter, None) is not None:
            logger.info("%s: all is well again", matter)

    @property
    def reasons(self) -> list[str]:
        """What is wrong, one line each."""
        return [f"{matter}: {text}" for matter, text in self._texts.items()]
