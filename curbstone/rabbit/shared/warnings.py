"""The current alarms of the gateway, except those of the connections to RabbitMQ."""

from __future__ import annotations


class Warnings:
    """Keeps one text for each matter. Listeners note here that they are full."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    @property
    def reasons(self) -> list[str]:
        """Return the alarms as texts for people."""
        return [f"{matter}: {text}" for matter, text in self._texts.items()]

    def note(self, matter: str, text: str) -> None:
        """Note that something is wrong with a matter."""
        self._texts[matter] = text

    def over(self, matter: str) -> None:
        """Note that a matter is well again."""
        self._texts.pop(matter, None)
