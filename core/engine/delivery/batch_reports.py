"""Publishes the reports of complete batches of messages: storing a report and ending its batch are one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from itertools import islice

from curbstone.core import headers
from curbstone.core.batches import BATCH, Tally
from curbstone.core.engine.delivery.dead_letters import Mover
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Message
from curbstone.core.names import queue_name

TRY_AGAIN_MS = 5000
AT_ONCE = 100
"""How many reports may be under way at once, and how many are tried again at once."""


class BatchReports:
    """If a report is refused, for example because its queue is full, it is tried again."""

    __slots__ = ("_is_due", "_mover", "_parts", "_waiting", "refused")

    def __init__(self, parts: Parts, mover: Mover) -> None:
        self._parts = parts
        self._mover = mover
        self._is_due = False
        """Whether the next attempt for refused reports is scheduled."""
        self._waiting: dict[bytes, None] = {}
        """The batches whose reports are next."""
        self.refused: dict[bytes, str] = {}
        """The batches whose reports were refused, with the reasons."""

    def send(self, keys: Iterable[bytes]) -> None:
        self._waiting.update(dict.fromkeys(keys))
        self._send_next()

    def _send_next(self) -> None:
        tallies, state = self._parts.tallies, self._parts.state
        while tallies is not None and self._waiting and len(tallies.reporting) < AT_ONCE and not state.is_closed:
            key = next(iter(self._waiting))
            del self._waiting[key]
            tally = tallies.open.get(key)
            if tally is None or not tally.is_complete or key in tallies.reporting:
                continue
            tallies.reporting.add(key)
            target = queue_name(tally.to, state.name.project)
            report = report_of(str(state.name), tally, state.host.wall_ms())
            self._mover.end_batch(key, target, report, partial(self._sent, key))

    def _sent(self, key: bytes, error: CurbstoneError | None) -> None:
        tallies, state = self._parts.tallies, self._parts.state
        if tallies is not None:
            tallies.reporting.discard(key)
        if error is None:
            state.stats.batches_ended += 1
            self._retry(1)  # there may be room for others, too
        else:
            self.refused[key] = str(error)
            self._try_again_later()
        self._send_next()

    def _due(self) -> None:
        self._is_due = False
        self._retry(AT_ONCE)
        self._try_again_later()

    def _try_again_later(self) -> None:
        if self.refused and not self._is_due:
            self._is_due = True
            self._parts.state.host.call_later(TRY_AGAIN_MS, self._due)

    def _retry(self, most: int) -> None:
        keys = list(islice(self.refused, most))
        for key in keys:
            del self.refused[key]
        self.send(keys)


def report_of(queue: str, tally: Tally, ended_ms: int) -> Message:
    """Return the report of a batch of a queue."""
    members = {
        "batch": tally.id,
        "queue": queue,
        "total": tally.stored,
        **tally.ends,
        "begun_ms": tally.begun_ms,
        "ended_ms": ended_ms,
    }
    block = headers.encode([(headers.CONTENT_TYPE, "application/json"), (BATCH, tally.id)])
    return Message(json.dumps(members).encode(), block)
