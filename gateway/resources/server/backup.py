"""A backup of the whole server, sent while it runs. A `Source` decides what is in it."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.gateway.http.callbacks import answer, in_thread
from curbstone.gateway.http.client_disconnect import is_gone
from curbstone.gateway.http.json_body import read_object
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.resource import Resource
from curbstone.gateway.http.responses import FRESH
from curbstone.gateway.limits import BACKUP_LIST_BYTES_MAX

_SHA256 = re.compile(r"[0-9a-f]{64}")

logger = logging.getLogger("curbstone.gateway")


class Archive(Protocol):
    """A backup that is being sent."""

    def read(self) -> bytes:
        """Return the next piece, or b"" at the end. Blocks. Raise OSError if the backup can't continue."""

    def close(self) -> None:
        """Release the backup, whether it is complete or not."""


class Source(Protocol):
    """Makes backups."""

    def begin(
        self, had: Mapping[str, tuple[int, str]], on_done: Callable[[CurbstoneError | None, Archive | None], None]
    ) -> None:
        """Begin a backup; raise Conflict.

        Of the files in `had` (size and SHA-256 by name), it contains only the bytes added since.
        """


class Backup:
    """The handler of `/v2/backup`."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def post(self, request: Request) -> Response:
        """POST: send a backup as a tar archive. If its last entry, `SHA256SUMS`, is missing, the backup failed."""
        access_of(request).administer("backup")
        fields = await read_object(request, request.receive, BACKUP_LIST_BYTES_MAX, "a backup", ("had",))
        had = _present_parts(fields.get("had", {}))
        archive: Archive
        _, archive = await answer(lambda done: self._source.begin(had, done))
        return ArchiveResponse(request, archive)


class ArchiveResponse(StreamingResponse):
    """Streams an archive until it is complete or its client has left."""

    def __init__(self, request: Request, archive: Archive) -> None:
        super().__init__(_pieces(request, archive), headers=FRESH, media_type="application/x-tar")

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """See `Response`. `_pieces` itself notices when the client leaves: a read in a thread can't be cancelled."""
        await self.stream_response(send)


async def _pieces(request: Request, archive: Archive) -> AsyncIterator[bytes]:
    try:
        while not is_gone(request) and (piece := await in_thread(archive.read)):
            yield piece
    except OSError as error:  # too late for another status; the client sees that the last entry is missing
        logger.error("a backup failed before its end: %s", error)
    finally:
        archive.close()


def _present_parts(value: object) -> dict[str, tuple[int, str]]:
    if not isinstance(value, dict):
        raise BadRequest('bad "had": expected an object with [bytes, SHA-256] for each name')
    had: dict[str, tuple[int, str]] = {}
    for name, each in value.items():
        match each:
            case [int() | float() as size, str() as digest] if _is_count(size) and _SHA256.fullmatch(digest):
                had[name] = (int(size), digest)
            case _:
                raise BadRequest(f'bad "had" of {name[:100]!r}: expected [bytes, SHA-256 in hex]')
    return had


def backup_routes(source: Source) -> list[Route]:
    """Return the route of the backup."""
    return [Route("/v2/backup", Resource(POST=Backup(source).post))]


def _is_count(value: float) -> bool:
    """Return whether a JSON number is whole (5.0 is) and not negative; true and false are not numbers."""
    return not isinstance(value, bool) and value >= 0 and float(value).is_integer()
