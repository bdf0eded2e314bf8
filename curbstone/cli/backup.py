"""`curbstone backup` and `curbstone restore`: save all data of a running server at one instant, and restore them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from curbstone.cli.client import Client, queue_of
from curbstone.cli.options import Json
from curbstone.cli.output import counted, note, print_json
from curbstone.core.disk import sync_path
from curbstone.exit_codes import DAMAGED, NO_QUEUE, WRONG, CommandFailed


def backup(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A new directory, or FILE.tar for an archive, or - for an archive on stdout"
        ),
    ],
    since: Annotated[
        Path | None,
        typer.Option("--since", metavar="DIR", help="An earlier backup: only what was added since is sent"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Back up all queues of a running server, as they are at one instant.

    The server continues meanwhile. TARGET gets its name only when it is complete and every checksum is right. A backup
    made with --since is as complete as any other: files that have not changed are linked to those of the earlier one.
    """
    from curbstone.backup import receive

    is_archive = target == "-" or target.endswith(".tar")
    if since is not None and is_archive:
        raise CommandFailed("--since needs a directory: an archive always holds everything", WRONG)
    with _errors_reported(), Client() as client:
        if target != "-":
            receive.check_free(Path(target))  # before the server keeps files for nothing
        had: dict[str, Any] = {} if since is None else receive.had_in(since)
        with client.stream("POST", "/v2/backup", json={"had": had}) as pieces:
            stream = _Stream(pieces)
            if not is_archive:
                _tell(receive.receive(stream, Path(target), since), "in", target, as_json)
            elif target != "-":
                _tell(_to_file(stream, Path(target)), "in", target, as_json)
            else:
                index = receive.pass_on(stream, sys.stdout.buffer)
                sys.stdout.buffer.flush()
                note(f"{_sums(index)} in the archive")


def restore(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The backup: a directory, an archive, or - for an archive on stdin")
    ],
    data: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory; no server may be running on it")],
    queue: Annotated[
        str, typer.Option("--queue", metavar="QUEUE", help="Put this queue alone into DIR, which may have other queues")
    ] = "",
    name: Annotated[str, typer.Option("--as", metavar="QUEUE", help="Give the queue of --queue another name")] = "",
    as_json: Json = False,
) -> None:
    """Make a data directory from a backup, or add one queue of the backup to one.

    Everything is compared with its checksums before it is used. A new DIR gets its name only when all of it is on
    disk. The exit code is 6 if the backup is damaged.
    """
    from curbstone.backup.restore import restore as restore_all
    from curbstone.backup.restore import restore_queue

    if name and not queue:
        raise CommandFailed("--as needs --queue", WRONG)
    with _errors_reported():
        if queue:
            new_name = queue_of(name or queue)
            sizes = restore_queue(source, data, queue_of(queue), new_name)
            index = {"queue": str(new_name), "queues": 1, "files": len(sizes), "bytes": sum(sizes)}
            _tell(index, f"restored as {new_name} in", data, as_json)
        else:
            _tell(restore_all(source, data), "restored to", data, as_json)


def _tell(index: Mapping[str, object], where: str, target: str | Path, as_json: bool) -> None:
    """Print one line that says what there is now, or the index as JSON."""
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

    try:
        yield
    except TargetTaken as error:
        raise CommandFailed(str(error)) from None
    except NotInBackup as error:
        raise CommandFailed(str(error), NO_QUEUE) from None
    except BackupError as error:
        raise CommandFailed(f"the backup can't be used: {error}", DAMAGED) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandFailed(f"{where}{error.strerror or error}") from None


def _to_file(stream: _Stream, target: Path) -> dict[str, object]:
    from curbstone.backup import receive

    partial = target.with_name(target.name + receive.PARTIAL)
    partial.unlink(missing_ok=True)  # a killed one may have left it, with other rights
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
    """The pieces of a reply as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        """Return so many bytes, fewer only at the end."""
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
