"""Idempotency keys: a publish that is repeated under the same key is stored once, also after a restart.

A key is remembered for the queue's `idempotency_window`, with the digest of what was published under it.
"""

from __future__ import annotations

from curbstone.core.engine.facts.facts import Facts
from curbstone.core.engine.facts.kinds import decode_dedup
from curbstone.core.engine.log.format import Note
from curbstone.core.engine.state import QueueState
from curbstone.core.errors import CurbstoneError, KeyReused, QueueFull
from curbstone.core.values import IdempotencyKey


def published_under(state: QueueState, facts: Facts, key: IdempotencyKey) -> int | CurbstoneError | None:
    """Return the first seq that was published under a key; an error if nothing may be published under it; else None.

    To be called when it is the publish's turn to be written: all earlier ones are on disk then, or refused.
    """
    window_s = state.options.idempotency_window
    value = facts.get(Note.KEY, key.hashed)
    if value is not None:
        dedup = decode_dedup(value)
        if dedup.digest == key.digest:
            return dedup.first_seq
        return KeyReused(f"the idempotency key was used for other content in the last {window_s:g} s")
    facts.forget_ended(Note.KEY)
    if facts.count(Note.KEY) >= facts.most(Note.KEY):
        return QueueFull(f"more than {facts.most(Note.KEY)} idempotency keys in {window_s:g} s, its idempotency_window")
    return None
