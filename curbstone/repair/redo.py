"""Repairs redo files that a start could not replay completely.

Commits that are missing in their logs and still fit are written to their segments. If their position is used by other
commits, or their segment is lost, their messages are saved as JSON lines for `curbstone send --jsonl`; they are not
restored, because they may have been settled since. Then the redo file is moved to `damaged/`; nothing is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from curbstone.core.disk import Disk, sync_path
from curbstone.core.engine.log.format import Flag
from curbstone.core.engine.log.stored_batch import batches_in
from curbstone.core.message import Message
from curbstone.core.wal.kept import KeptRedo, read_kept
from curbstone.core.wal.replay import kept_redo_names, write_parts
from curbstone.repair.repair import DAMAGED_DIR, free_path, save_messages


@dataclass
class RedoPlan:
    """The changes for one redo file."""

    kept: KeptRedo
    saved: dict[str, list[Message]] = field(default_factory=dict)
    """By uid of the queue, messages to be saved as JSON lines."""

    @property
    def name(self) -> str:
        """The name of the redo file."""
        return self.kept.contents.name

    @property
    def unrepairable(self) -> list[str]:
        """Why the file can't be moved; it may become readable later."""
        return [f"{self.name}: {text}" for text in self.kept.contents.denied]


def plan_redo(disk: Disk) -> list[RedoPlan]:
    """Return a plan for each redo file that was set aside."""
    plans = []
    for name in kept_redo_names(disk):
        made = RedoPlan(read_kept(disk, name))
        for redo in made.kept.others:
            for batch in batches_in(bytes(redo.data), redo.part.salt):
                if batch.header.messages and not batch.header.flags & Flag.COPY:
                    made.saved.setdefault(f"{redo.part.uid:012x}", []).extend(batch.messages())
        plans.append(made)
    return plans


def write_fitting(disk: Disk, plans: list[RedoPlan]) -> None:
    """Write the commits that still fit to their segments. Idempotent."""
    for made in plans:
        for path, parts in made.kept.fitting.items():
            write_parts(disk, path, parts)


def finish(disk: Disk, root: Path, begun: list[RedoPlan]) -> list[RedoPlan]:
    """Carry out the rest of the plans after the queues are repaired; return all changes."""
    plans = plan_redo(disk)
    write_fitting(disk, plans)  # to segments that have a header again
    for made, before in zip(plans, begun, strict=True):
        made.kept.fitting |= before.kept.fitting
        _move(root, made)
    return plans


def _move(root: Path, made: RedoPlan) -> None:
    """Save the messages that can't be restored, and move the file away, unless part of it can't be read."""
    if made.unrepairable:
        return
    kept = root / DAMAGED_DIR
    for uid, messages in made.saved.items():
        (kept / uid).mkdir(mode=0o700, parents=True, exist_ok=True)
        save_messages(kept / uid / f"{Path(made.name).stem}.jsonl", messages)
        sync_path(kept / uid)
    kept.mkdir(mode=0o700, exist_ok=True)
    (root / made.name).rename(free_path(kept / made.name))
    sync_path(kept)
    sync_path(root)
