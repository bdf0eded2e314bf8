"""`curbstone backup` and `curbstone restore`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curbstone.cli.client import Client, queue_of
from curbstone.cli.options import Json
from curbstone.cli.output import console, counted, note, print_json, progress, size, table
from curbstone.cli.times import seconds_of
from curbstone.core.disk import sync_path
from curbstone.exit_codes import DAMAGED, NO_QUEUE, WRONG, CommandFailed

if TYPE_CHECKING:
    from curbstone.backup.restore import Unpack
    from curbstone.standby.part_store import PartStore


def backup(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A new directory, or FILE.tar for an archive, or - for an archive on stdout; with --follow also the"
            " URL of an object store",
        ),
    ],
    since: Annotated[
        Path | None,
        typer.Option("--since", metavar="DIR", help="An earlier backup: send only what has changed since then"),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Record all changes in TARGET, until SIGTERM"),
    ] = False,
    keep: Annotated[
        str, typer.Option("--keep", metavar="TIME", help="With --follow: how far back any moment can be restored")
    ] = "7d",
    base_every: Annotated[
        str, typer.Option("--base-every", metavar="TIME", help="With --follow: how often a full copy is made")
    ] = "24h",
    every: Annotated[
        str,
        typer.Option(
            "--every", metavar="TIME", help="With --follow to an object store: how often an object is written"
        ),
    ] = "5s",
    as_json: Json = False,
) -> None:
    """Back up all queues of a running server, at one instant or continuously.

    The server continues to run. TARGET gets its name only when it is complete and all checksums match. A backup made
    with --since is as complete as any other: unchanged files are hard links to those of the earlier one.

    With --follow, TARGET receives a full copy and then each change, and `restore --at` restores any moment since the
    copy. The server needs --standby-backlog. If the connection is lost, or either side is restarted, recording resumes.
    TIME is a number with s, m, h or d.

    With --follow, TARGET may be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX (curbstone[objects]),
    with credentials from the environment. Changes since the last object (--every) may be lost there.
    """
    from curbstone.backup import receive
    from curbstone.standby.history_urls import is_url

    if follow:
        if since is not None or as_json:
            raise CommandFailed("--follow can't be combined with --since or --json", WRONG)
        _follow(target, keep, base_every, every)
        return
    if is_url(target):
        raise CommandFailed("a backup in an object store needs --follow", WRONG)
    is_archive = target == "-" or target.endswith(".tar")
    if since is not None and is_archive:
        raise CommandFailed("--since needs a directory: an archive is always complete", WRONG)
    with _errors_reported(), Client() as client:
        if target != "-":
            receive.check_free(Path(target))  # before the server starts the backup
        had: dict[str, Any] = {} if since is None else receive.present_parts(since)
        with client.stream("POST", "/v2/backup", json={"had": had}) as pieces:
            stream = _Stream(pieces)
            if not is_archive:
                _print_summary(receive.receive(stream, Path(target), since), "in", target, as_json)
            elif target != "-":
                _print_summary(_to_file(stream, Path(target)), "in", target, as_json)
            else:
                index = receive.pass_on(stream, sys.stdout.buffer)
                sys.stdout.buffer.flush()
                note(f"{_sums(index)} in the archive")


def _follow(target: str, keep: str, base_every: str, every: str) -> None:
    from curbstone.cli.follow import follow

    keep_s, base_every_s = seconds_of(keep, "--keep"), seconds_of(base_every, "--base-every")
    with _errors_reported():
        follow(target, keep_s=keep_s, base_every_s=base_every_s, every_s=seconds_of(every, "--every"))


def restore(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The backup: a directory, an archive, - for an archive on stdin, or the URL of one made with --follow",
        ),
    ],
    data: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The data directory; no server may be running on it")
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            "--at", metavar="MOMENT", help="Restore this moment of a backup made with --follow: 2026-11-25T20:15:03Z"
        ),
    ] = "",
    shows: Annotated[
        bool, typer.Option("--list", help="Only show the moments that can be restored from a backup made with --follow")
    ] = False,
    verifies: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Of a backup made with --follow: check all that is needed for the moment, and restore nothing",
        ),
    ] = False,
    queue: Annotated[
        str,
        typer.Option(
            "--queue", metavar="QUEUE", help="Restore only this queue, into a DIR which may have other queues"
        ),
    ] = "",
    name: Annotated[str, typer.Option("--as", metavar="QUEUE", help="Give the queue of --queue another name")] = "",
    as_json: Json = False,
) -> None:
    """Restore a data directory from a backup, or restore one queue into a data directory.

    All checksums are verified before. A new DIR gets its name only when all of it is on disk. The exit code is 6 if the
    backup is damaged.
    """
    from curbstone.backup.restore import restore as restore_all
    from curbstone.backup.restore import restore_queue

    if name and not queue:
        raise CommandFailed("--as needs --queue", WRONG)
    with _errors_reported():
        if shows:
            _show_history(source, as_json)
            return
        if verifies:
            _verify(source, at, as_json)
            return
        if data is None:
            raise CommandFailed("DIR is missing: the data directory to create", WRONG)
        unpack = _unpacking(source, at)
        if queue:
            new_name = queue_of(name or queue)
            sizes = restore_queue(unpack, data, queue_of(queue), new_name)
            index = {"queue": str(new_name), "queues": 1, "files": len(sizes), "bytes": sum(sizes)}
            _print_summary(index, f"restored as {new_name} in", data, as_json)
        else:
            index = restore_all(unpack, data)
            _print_summary(index, f"at {index['at']} restored to" if "at" in index else "restored to", data, as_json)


def _unpacking(source: str, at: str) -> Unpack:
    """Return the function that unpacks a backup, or one moment of a history. Raise CommandFailed."""
    from curbstone.backup.receive import unpacked

    if not _is_history(source):
        if at:
            raise CommandFailed(f"--at needs a backup made with --follow; {source} is not one", WRONG)
        return lambda beside: unpacked(source, beside)
    from curbstone.standby.restoring import unpacked_at

    history, at_ms = _history(source), _moment(at) if at else None
    return lambda beside: unpacked_at(history, at_ms, beside, progress)


def _verify(source: str, at: str, as_json: bool) -> None:
    from curbstone.standby.restoring import verify

    if not _is_history(source):
        raise CommandFailed(f"--verify needs a backup made with --follow, and {source} is none", WRONG)
    found = verify(_history(source), _moment(at) if at else None, progress)
    if as_json:
        print_json({"at": found.at, "changes": found.changes})
    else:
        print(f"{source} is undamaged up to {found.at}: {counted(found.changes, 'change')}")


def _is_history(source: str) -> bool:
    from curbstone.standby.history import INDEX
    from curbstone.standby.history_urls import is_url

    return is_url(source) or (Path(source) / INDEX).is_file()


def _history(source: str) -> PartStore:
    from curbstone.cli.check import ReadOnlyDisk
    from curbstone.standby.history_urls import is_url, objects_at
    from curbstone.standby.part_store import DirectoryParts

    return objects_at(source) if is_url(source) else DirectoryParts(ReadOnlyDisk(Path(source)))


def _moment(text: str) -> int:
    """Return a moment in milliseconds. Raise CommandFailed."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = datetime.min
    if found.tzinfo is None:
        raise CommandFailed(
            f"--at: bad moment {text!r}: expected a date and time with a zone, as 2026-11-25T20:15:03+01:00", WRONG
        )
    return int(found.timestamp() * 1000)


def _show_history(source: str, as_json: bool) -> None:
    """Show the periods of which any moment can be restored."""
    from curbstone.standby.restoring import shown, stretches

    found = stretches(_history(source))
    if as_json:
        rows = [
            {"from": shown(each.from_ms), "to": shown(each.to_ms), "bases": each.bases, "bytes": each.size}
            for each in found
        ]
        print_json({"stretches": rows})
        return
    lines = [(shown(each.from_ms), shown(each.to_ms), each.bases, size(each.size)) for each in found]
    console().print(table(("from", "to", "copies", "takes"), lines))


def _print_summary(index: Mapping[str, object], where: str, target: str | Path, as_json: bool) -> None:
    """Print a summary in one line, or the index as JSON."""
    if as_json:
        print_json(index)
    else:
        print(f"{_sums(index)} {where} {target}")


def _sums(index: Mapping[str, Any]) -> str:

    return ", ".join(counted(index[f"{what}s"], what) for what in ("queue", "file", "byte"))


@contextmanager
def _errors_reported() -> Iterator[None]:
    """Turn errors into a `CommandFailed` with one line of text."""
    from curbstone.backup.files import BackupError, NotInBackup, TargetTaken
    from curbstone.standby.part_store import WrongStore

    try:
        yield
    except TargetTaken as error:
        raise CommandFailed(str(error)) from None
    except NotInBackup as error:
        raise CommandFailed(str(error), NO_QUEUE) from None
    except BackupError as error:
        raise CommandFailed(f"the backup can't be used: {error}", DAMAGED) from None
    except WrongStore as error:
        raise CommandFailed(str(error), WRONG) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandFailed(f"{where}{error.strerror or error}") from None


def _to_file(stream: _Stream, target: Path) -> dict[str, object]:
    from curbstone.backup import receive

    partial = target.with_name(target.name + receive.PARTIAL)
    partial.unlink(missing_ok=True)  # a killed process may have left it, with other permissions
    try:
        with receive.private_files(), partial.open("xb") as file:
            index = receive.pass_on(stream, file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(target)
        sync_path(target.parent)
        return index
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()


class _Stream:
    """The pieces of a reply as a readable file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        parts = [self._rest]
        there = len(self._rest)
        while size < 0 or there < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            parts.append(piece)
            there += len(piece)
        data = b"".join(parts)
        if size < 0:
            size = len(data)
        self._rest = data[size:]
        return data[:size]
