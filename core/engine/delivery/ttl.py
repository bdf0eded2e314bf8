"""Time to live: ends the expired messages of a queue, which `core.engine.index.due` finds."""

from __future__ import annotations

from functools import partial

from curbstone.core.engine.delivery.dead_letters import DeadLetters
from curbstone.core.engine.parts import Parts


def expire_due(parts: Parts, dead_letters: DeadLetters, now_ms: int) -> None:
    """End messages that have expired; if there are many, some of them."""
    for seq in parts.index.expiries.take_due(now_ms):
        _expire_at(parts, dead_letters, seq)


def _expire_at(parts: Parts, dead_letters: DeadLetters, seq: int) -> None:
    index, state = parts.index, parts.state
    run = index.runs.at_or_after(seq)
    if run is None or not run.expires_ms:
        return
    if run.messages is None:
        if not state.is_closed:  # else its messages are not read any more
            index.reader.load(run, partial(_expire_at, parts, dead_letters, run.first))
        return
    now_ms = state.host.now_ms()
    next_ms = 0
    for message in [m for m in run.messages if m is not None and m.expires_ms]:
        if message.expires_ms > now_ms:
            next_ms = min(next_ms or message.expires_ms, message.expires_ms)
            continue
        for group in index.groups.values():
            if run.is_pending(group.name, message.seq) and message.seq not in group.in_flight:
                dead_letters.expire(group, message)
    run.expires_ms = 0
    if next_ms and run.live():
        index.expiries.note(run, next_ms)
