"""`curbstone repair`: shows what can be saved of a damaged data directory, and with `--apply` saves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curbstone.cli.check import ReadOnlyDisk, nobody_else
from curbstone.cli.options import Json
from curbstone.cli.output import console, counted, print_json
from curbstone.core.disk import OsDisk
from curbstone.core.engine.directories import QUEUES
from curbstone.core.wal.replay import replay_redo
from curbstone.exit_codes import DAMAGED, FAILED, WRONG, CommandFailed
from curbstone.repair.staging_check import check_staging

if TYPE_CHECKING:
    from curbstone.repair.redo import RedoPlan
    from curbstone.repair.repair import Plan


def repair(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Make the changes; without this option they are only shown")
    ] = False,
    as_json: Json = False,
) -> int:
    """Repair a damaged data directory as far as possible.

    The old files are moved to DIR/damaged; nothing is deleted. No server may be running on DIR. Commits in a redo file
    that a start could not replay are written to their logs if their position is free; otherwise their messages are
    saved as JSON lines. The exit code is 6 if there is damage and --apply was not given, or if some damage remains.
    """
    from curbstone.repair import redo as redo_work
    from curbstone.repair import repair as work

    if not directory.is_dir():
        raise CommandFailed(f"no such directory: {directory}", WRONG)
    if not (directory / QUEUES).is_dir():
        raise CommandFailed(f"{directory} is not a data directory: it has no {QUEUES}", WRONG)
    unreplayed: list[str] = []
    try:
        if apply:
            lock = OsDisk(directory)
            try:
                replay_redo(lock)
                redo = redo_work.plan_redo(lock)
                redo_work.write_fitting(lock, redo)  # before damaged stretches are filled that they fit in
                plans = list(work.plan(ReadOnlyDisk(directory)))
                for made in plans:
                    work.apply(directory, made)
                redo = redo_work.finish(lock, directory, redo)
            finally:
                lock.close()
        else:
            with nobody_else(directory):
                disk = ReadOnlyDisk(directory)
                unreplayed = disk.redo_damage
                redo = redo_work.plan_redo(disk)
                plans = list(work.plan(disk))
    except OSError as error:
        raise CommandFailed(f"can't use {error.filename or directory}: {error.strerror}", FAILED) from None
    found = [made for made in plans if not made.is_empty]
    staged = check_staging(ReadOnlyDisk(directory)).damage
    if as_json:
        facts = {"queues": [_facts(made) for made in found], "redo": [_redo_facts(made) for made in redo]}
        print_json({"applied": apply, **facts, "unreplayed": unreplayed, "staging": staged})
    else:
        _print(found, redo, unreplayed, staged, apply)
    unrepairable = [text for made in found for text in made.unrepairable] + [
        text for made in redo for text in made.unrepairable
    ]
    is_left = bool(staged) or (bool(unrepairable) if apply else bool(found or redo or unreplayed))
    return DAMAGED if is_left else 0


def _facts(made: Plan) -> dict[str, Any]:
    return {
        "directory": made.directory,
        "queue": str(made.name),
        "rewritten": {file.path: file.notes for file in made.files},
        "moved": {aside.path: len(aside.messages) for aside in made.asides},
        "left": made.unrepairable,
    }


def _redo_facts(made: RedoPlan) -> dict[str, Any]:
    return {
        "file": made.name,
        "written": {path: len(parts) for path, parts in made.kept.fitting.items()},
        "saved": {uid: len(messages) for uid, messages in made.saved.items()},
        "left": made.unrepairable,
    }


def _print_redo(made: RedoPlan, done: bool) -> None:
    from curbstone.repair.repair import DAMAGED_DIR

    out = console()
    out.print(str(made.kept))
    for path, parts in made.kept.fitting.items():
        out.print(f"  {path}: {counted(len(parts), 'commit')} {'written' if done else 'to be written'} to it")
    for uid, messages in made.saved.items():
        where = f"{'saved' if done else 'to be saved'} as JSON lines in {DAMAGED_DIR}/{uid}/"
        out.print(f"  {counted(len(messages), 'message')} of {QUEUES}/{uid}, whose position is not free, {where}")
    for text in made.unrepairable:
        out.print(f"  {text}: not changed; repair that, or move the file away")
    if not made.unrepairable:
        out.print(f"  {made.name}: {'moved' if done else 'to be moved'} to {DAMAGED_DIR}/")


def _print(found: list[Plan], redo: list[RedoPlan], unreplayed: list[str], staged: list[str], done: bool) -> None:
    from curbstone.repair.repair import DAMAGED_DIR

    out = console()
    for text in staged:
        out.print(f"{text}: not changed; it is replaced when it is staged again, or expires")
    for text in unreplayed:
        out.print(f"{text}: its readable part is to be replayed, then it is to be moved to {DAMAGED_DIR}/")
    for kept in redo:
        _print_redo(kept, done)
    if not (found or redo or unreplayed):
        out.print("nothing else to repair" if staged else "nothing to repair")
        return
    for made in found:
        out.print(f"queue {made.name} in {made.directory}")
        for file in made.files:
            for text in file.notes:
                out.print(f"  {text}")
            out.print(
                f"  {file.path}: {'rewritten' if done else 'to be rewritten'}, the old one kept in {DAMAGED_DIR}/"
            )
        for aside in made.asides:
            saved = f", {counted(len(aside.messages), 'message')} of it saved as JSON lines" if aside.messages else ""
            out.print(f"  {aside.path}: {'moved' if done else 'to be moved'} to {DAMAGED_DIR}/{saved}")
        for text in made.unrepairable:
            out.print(f"  {text}: nothing can be done")
        if made.directory_after:
            out.print(f"  {made.directory}: {'renamed' if done else 'to be renamed'} to {made.directory_after}")
    if not done:
        out.print("nothing was changed; use --apply to make these changes")
