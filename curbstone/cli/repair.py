"""`curbstone repair`: shows what can be saved of a damaged data directory, and with `--apply` saves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curbstone.cli.check import ReadOnlyDisk, nobody_else
from curbstone.cli.options import Json
from curbstone.core.directories import QUEUES
from curbstone.core.disk import OsDisk
from curbstone.core.recovery.redo import replay_redo
from curbstone.exit_codes import DAMAGED, FAILED, WRONG, CommandFailed
from curbstone.repair.staging_check import check_staging

if TYPE_CHECKING:
    from curbstone.repair.repair import Plan


def repair(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Make the changes; without this option they are only shown")
    ] = False,
    as_json: Json = False,
) -> int:
    """Save what can be saved of a damaged data directory.

    The old files are moved to DIR/damaged; nothing is deleted. No server may be running on DIR. The exit code is 6
    if there is damage and --apply was not given, or if some damage remains.
    """
    from curbstone.cli.output import print_json
    from curbstone.repair import repair as work

    if not directory.is_dir():
        raise CommandFailed(f"no such directory: {directory}", WRONG)
    if not (directory / QUEUES).is_dir():
        raise CommandFailed(f"{directory} is not a data directory: there is no {QUEUES} in it", WRONG)
    try:
        if apply:
            lock = OsDisk(directory)
            try:
                replay_redo(lock)
                plans = list(work.plan(ReadOnlyDisk(directory)))
                for made in plans:
                    work.apply(directory, made)
            finally:
                lock.close()
        else:
            with nobody_else(directory):
                plans = list(work.plan(ReadOnlyDisk(directory)))
    except OSError as error:
        raise CommandFailed(f"can't use {error.filename or directory}: {error.strerror}", FAILED) from None
    found = [made for made in plans if not made.is_empty]
    staged = check_staging(ReadOnlyDisk(directory)).damage
    if as_json:
        print_json({"applied": apply, "queues": [_facts(made) for made in found], "staging": staged})
    else:
        _print(found, staged, apply)
    is_left = bool(staged) or (any(made.hopeless for made in found) if apply else bool(found))
    return DAMAGED if is_left else 0


def _facts(made: Plan) -> dict[str, Any]:
    return {
        "directory": made.directory,
        "queue": str(made.name),
        "rewritten": {file.path: file.told for file in made.files},
        "moved": {aside.path: len(aside.messages) for aside in made.asides},
        "left": made.hopeless,
    }


def _print(found: list[Plan], staged: list[str], done: bool) -> None:
    from curbstone.cli.output import console
    from curbstone.repair.repair import DAMAGED_DIR

    out = console()
    for text in staged:
        out.print(f"{text}: it stays as it is; what has to be staged again takes its place, or it goes after a while")
    if not found:
        out.print("nothing else to repair" if staged else "nothing to repair")
        return
    for made in found:
        out.print(f"queue {made.name} in {made.directory}")
        for file in made.files:
            for text in file.told:
                out.print(f"  {text}")
            out.print(
                f"  {file.path}: {'written' if done else 'to be written'} anew, the old one kept in {DAMAGED_DIR}/"
            )
        for aside in made.asides:
            saved = f", {len(aside.messages)} messages of it saved as JSON lines" if aside.messages else ""
            out.print(f"  {aside.path}: {'moved' if done else 'to be moved'} to {DAMAGED_DIR}/{saved}")
        for text in made.hopeless:
            out.print(f"  {text}: nothing can be done")
        if made.directory_after:
            out.print(f"  {made.directory}: {'renamed' if done else 'to be renamed'} to {made.directory_after}")
    if not done:
        out.print("nothing was changed; --apply does it")
