"""What is wrong at the moment, except with the connections to RabbitMQ."""

from __future__ import annotations


class Notes:
    """One text for each matter. Listeners say here that they are full."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    @property
    def reasons(self) -> list[str]:
        """What is wrong, for people."""
        return [f"{matter}: {text}" for matter, text in self._texts.items()]

    def note(self, matter: str, text: str) -> None:
        """Something is wrong with it."""
        self._texts[matter] = text

    def over(self, matter: str) -> None:
        """It is well again."""
        self._texts.pop(matter, None)
