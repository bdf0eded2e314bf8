"""Empties a queue: messages that are not in flight are settled in every group, in memory at once."""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.engine.index.runs import mask_of, ranges_of, seqs_of
from curbstone.core.engine.log.format import Reason
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError
from curbstone.core.values import Counted, Done


def purge(parts: Parts, cleaner: Cleaner, erasing: Callable[[Done], Done] | None, on_done: Counted) -> None:
    """Settle all ready and delayed messages; `on_done(error, count)` is called when no file has any of their bytes.

    `erasing(on_done)` returns a callback that first has erased what is outside of the queue's directory, and then calls
    `on_done`. Without it no bytes are erased.
    """
    state = parts.state
    refusal = state.refusal()
    if refusal is not None:
        state.host.call_soon(lambda: on_done(refusal, 0))
        return
    purged = _settle_all(parts)
    parts.wakeups.changed()

    def settled(error: CurbstoneError | None) -> None:
        refusal = error or state.ended()  # it may have been deleted while the settles were written
        if refusal is not None or erasing is None:
            erased(refusal)
            return
        cleaner.erase(erasing(erased))
        parts.wakeups.schedule()

    def erased(error: CurbstoneError | None) -> None:
        on_done(error, 0 if error else purged)

    parts.write_queue.when_committed(settled)


def _settle_all(parts: Parts) -> int:
    """Settle, in every group, the messages that are rdy or delayed; return how many are gone from all groups."""
    index = parts.index
    purged = 0
    lost: dict[str, tuple[int, int]] = {}
    in_flight = {name: sorted(group.in_flight) for name, group in index.groups.items()}
    for run in list(index.runs):
        before = run.live()
        for group in index.groups.values():
            bits = run.pending(group.name) & ~mask_of(run.first, run.last, in_flight[group.name])
            if not bits:
                continue
            run.set_pending(group.name, run.pending(group.name) & ~bits)
            group.pends(-bits.bit_count())
            if run.ranked:
                group.count_levels(run, bits, -1)
            lost[group.name] = (lost.get(group.name, (0, 0))[0] + bits.bit_count(), run.first + bits.bit_length())
            parts.write_queue.settled_ranges(group.name, Reason.PURGE, ranges_of(run.first, bits))
            if group.tracked:
                for seq in seqs_of(run.first, bits):
                    group.forget(seq)
        gone = (before & ~run.live()).bit_count()
        if gone:
            purged += gone
            index.runs.shrink(run, run.bytes_live * gone // before.bit_count())
            index.drop_if_dead(run)
    for group in index.groups.values():
        if group.keys is not None:
            index.end_keys(group, group.keys, group.keys.delayed())
    for name, (count, end) in lost.items():  # a delivery that is not settled stays, and so does its group's position
        parts.facts.lose(name, count, min(end, index.groups[name].first_pending(end)))
    parts.state.stats.purged += purged
    return purged
