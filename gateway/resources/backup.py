"""A backup of the whole server, sent while it runs. What is in it is not the gateway's business."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.gateway.http.answers import answer, in_thread
from curbstone.gateway.http.departure import is_gone
from curbstone.gateway.http.json_body import read_object
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.resource import Resource
from curbstone.gateway.limits import BACKUP_LIST_BYTES_MAX

_SHA256 = re.compile(r"[0-9a-f]{64}")

logger = logging.getLogger("curbstone.gateway")


class Archive(Protocol):
    """One on its way out."""

    def read(self) -> bytes:
        """Return the next piece, nothing at the end; blocking. OSError where it can't go on."""

    def close(self) -> None:
        """End it, wherever it is."""


class Source(Protocol):
    """Where a backup comes from."""

    def begin(
        self, had: Mapping[str, tuple[int, str]], on_done: Callable[[CurbstoneError | None, Archive | None], None]
    ) -> None:
        """Take one; of the files in `had` (bytes and SHA-256 by name) only what was added. Raise Conflict."""


class Backup:
    """The handler of `/v2/backup`."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: a tar archive. If it ends before its last entry, `SHA256SUMS`, it failed."""
        access_of(scope).administer("backup")
        fields = await read_object(scope, receive, BACKUP_LIST_BYTES_MAX, "a backup", ("had",))
        had = _had_in(fields.get("had", {}))
        archive: Archive
        _, archive = await answer(lambda done: self._source.begin(had, done))
        try:
            headers = [(b"content-type", b"application/x-tar"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not is_gone(scope) and (piece := await in_thread(archive.read)):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except OSError as error:  # too late for another status: the client misses the last entry
            logger.error("a backup ended before its end: %s", error)
        finally:
            archive.close()
        await send({"type": "http.response.body", "body": b""})


def _had_in(value: object) -> dict[str, tuple[int, str]]:
    if not isinstance(value, dict):
        raise BadRequest('bad "had": an object of [bytes, SHA-256] by name is wanted')
    had: dict[str, tuple[int, str]] = {}
    for name, each in value.items():
        match each:
            case [int() | float() as size, str() as digest] if _is_count(size) and _SHA256.fullmatch(digest):
                had[name] = (int(size), digest)
            case _:
                raise BadRequest(f'bad "had" of {name[:100]!r}: [bytes, SHA-256 in hex] is wanted')
    return had


def backup_routes(source: Source) -> list[Route]:
    """Return its route."""
    return [Route("/v2/backup", Resource(POST=Backup(source).post))]


def _is_count(value: float) -> bool:
    """Say whether a number of JSON is a whole one, also as 5.0, and not below 0; true and false are none."""
    return not isinstance(value, bool) and value >= 0 and float(value).is_integer()
