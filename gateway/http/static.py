"""A page for browsers and the files it is made of, which ship with the server.

Nothing is fetched from elsewhere, and the browser is told to allow nothing else.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from secrets import token_urlsafe

from starlette.types import Receive, Scope, Send

from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.reply import NO_REFERRER, NO_SNIFFING, Header, reply

PAGE = "index.html"
PACKED = ".gz"
"""Of files that are kept, and sent, compressed; their names have no such end."""

NONCE = b"{nonce}"

_HEADERS: tuple[Header, ...] = (NO_SNIFFING, NO_REFERRER, (b"cache-control", b"no-cache"))
_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
}


class StaticPage:
    """The handlers of a page, and of what is below it."""

    def __init__(self, folder: str, policy: bytes) -> None:
        """`folder` is one of the gateway's; `policy` the page's Content-Security-Policy.

        `{nonce}` in both stands for a secret of each reply: a browser runs what the page itself names by it, and what
        that imports, but no other file of this server, which a message could be.
        """
        self._folder = folder
        self._policy = policy

    async def page(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET the page."""
        await self._reply(scope, send, PAGE)

    async def part(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET {file}: scripts and style."""
        name = scope["path_params"]["file"]
        if name not in _files(self._folder) or name == PAGE:
            raise Problem(404, f"the page has no file {name[:100]!r}")
        await self._reply(scope, send, name)

    async def _reply(self, scope: Scope, send: Send, name: str) -> None:
        data, is_packed = _files(self._folder)[name]
        nonce = token_urlsafe(16).encode()
        if name == PAGE:
            data = data.replace(NONCE, nonce)
        headers: list[Header] = [
            (b"content-type", _TYPES[PurePath(name).suffix]),
            (b"content-security-policy", self._policy.replace(NONCE, nonce)),
            *_HEADERS,
        ]
        if is_packed:
            headers.append((b"vary", b"Accept-Encoding"))
            accepted = b",".join([value for key, value in scope["headers"] if key == b"accept-encoding"])
            if b"gzip" in accepted:
                headers.append((b"content-encoding", b"gzip"))
            else:
                data = gzip.decompress(data)
        await reply(send, 200, headers, data)


@cache
def _files(folder: str) -> dict[str, tuple[bytes, bool]]:
    """Return what there is to serve, by name, and whether it is packed; so a path never reaches the file system."""
    found: dict[str, tuple[bytes, bool]] = {}
    for file in files("curbstone.gateway").joinpath(folder).iterdir():
        name = file.name.removesuffix(PACKED)
        if PurePath(name).suffix in _TYPES:
            found[name] = file.read_bytes(), name != file.name
    return found
