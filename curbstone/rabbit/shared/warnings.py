"""The current alarms of the gateway, except those of the connections to RabbitMQ."""

from __future__ import annotations


class Warnings:
    """The active alarms: one text for each subject. For example, a full listener raises one."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    @property
    def reasons(self) -> list[str]:
        """Return the alarms as texts for people."""
        return [f"{matter}: {text}" for matter, text in self._texts.items()]

    def note(self, matter: str, text: str) -> None:
        """Raise the alarm of a subject."""
        self._texts[matter] = text

    def over(self, matter: str) -> None:
        """Clear the alarm of a subject."""
        self._texts.pop(matter, None)
