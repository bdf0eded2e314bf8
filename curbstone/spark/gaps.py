"""Gaps: messages that a stream could not read any more. The offset of the next batch has them, and so has a lake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from curbstone.spark.failure import DataLoss

MADE_ANEW = "the queue was deleted and made anew"
DELETED = "the queue was deleted"
GROUP_DELETED = "the group was deleted, and consumers may have settled messages since"
OTHER_READER = "another reader of the group was done with them"
GIVEN_UP = "given up while the queue was full, or purged"


@dataclass(frozen=True)
class Gap:
    """Lost messages: from seq `low` on, all below `high`. `high` is None if the end of the queue is not known.

    `lost` is how many; None if that is not known, but it is at least `at_least`.
    """

    queue: str
    epoch: str
    low: int
    high: int | None
    lost: int | None
    at_least: int
    why: str

    def __str__(self) -> str:
        count = f"{self.lost:,}" if self.lost is not None else f"unknown, at least {self.at_least:,}"
        until = f" to {self.high - 1}" if self.high is not None else " on"
        return f"{self.queue}: messages lost from {self.low}{until}: {count} ({self.why})"

    def to_json(self) -> dict[str, Any]:
        """Return the gap's form in an offset, in which the queue's name is the key."""
        found = asdict(self)
        del found["queue"]
        return found

    def error(self, group: str, advice: str) -> DataLoss:
        """Return the error that names this gap."""
        count = f"{self.lost} lost" if self.lost is not None else f"how many is unknown, at least {self.at_least}"
        return data_loss(self.queue, group, self.low, self.high, f"{self.why}, {count}; {advice}")


def data_loss(queue: str, group: str, low: int, high: int | None, why: str) -> DataLoss:
    """Return the error that says which messages are missing."""
    reader = f" group={group}" if group else ""
    return DataLoss(f"DATA_LOSS queue={queue}{reader} missing=[{low},{'…' if high is None else high}): {why}")


def gaps_in(offset: Mapping[str, Mapping[str, Any]]) -> list[Gap]:
    """Return the gaps that were found when the batch that ends at `offset` was planned."""
    return [Gap(queue, **gap) for queue, place in offset.items() for gap in place.get("gaps", ())]
