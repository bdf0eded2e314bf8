"""The console: a page for a browser that shows the queues and looks after them.

It is a handful of static files and uses nothing but the public interface, so whoever may not call that can do
nothing here either. Nothing is fetched from elsewhere, and the browser is told to allow nothing else.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import PurePath

from starlette.types import Receive, Scope, Send

from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.reply import NO_REFERRER, NO_SNIFFING, Header, reply

PAGE = "index.html"

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
}
_HEADERS: tuple[Header, ...] = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    ),
    NO_SNIFFING,
    NO_REFERRER,
    (b"cache-control", b"no-cache"),
)


@cache
def _files() -> dict[str, bytes]:
    """Return what there is to serve, by name; so a path never reaches the file system."""
    folder = files("curbstone.gateway").joinpath("console")
    return {file.name: file.read_bytes() for file in folder.iterdir() if PurePath(file.name).suffix in _TYPES}


async def page(_scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /console."""
    await _reply(send, PAGE)


async def part(scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /console/{file}: scripts and style."""
    name = scope["path_params"]["file"]
    if name not in _files() or name == PAGE:
        raise Problem(404, f"the console has no file {name[:100]!r}")
    await _reply(send, name)


async def _reply(send: Send, name: str) -> None:
    await reply(send, 200, ((b"content-type", _TYPES[PurePath(name).suffix]), *_HEADERS), _files()[name])
