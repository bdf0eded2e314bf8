"""Pages for browsers and their files, which ship with the server.

Nothing is loaded from elsewhere, and the browser allows nothing else.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from secrets import token_urlsafe

from starlette.requests import Request
from starlette.responses import Response

from curbstone.gateway.http.problem import Problem

PAGE = "index.html"
ICON = "favicon.svg"
PACKED = ".gz"
"""The suffix of files that are stored and sent compressed. Their names in paths do not have it."""

NONCE = "{nonce}"

_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache"}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class StaticPage:
    """The handlers of a page and of its files."""

    def __init__(self, folder: str, policy: str) -> None:
        """`folder` is in the gateway's package; `policy` is the page's Content-Security-Policy.

        `{nonce}` in both stands for a new secret in each reply. A browser runs only the scripts that the page names
        with it, and their imports. It does not run other files of this server, because they could be messages.
        """
        self._folder = folder
        self._policy = policy

    async def page(self, request: Request) -> Response:
        """GET the page."""
        return self._response(request, PAGE)

    async def part(self, request: Request) -> Response:
        """GET {file}: scripts and style."""
        name = request.path_params["file"]
        if name not in _files(self._folder) or name == PAGE:
            raise Problem(404, f"the page has no file {name[:100]!r}")
        return self._response(request, name)

    async def icon(self, request: Request) -> Response:
        """GET /favicon.ico, which browsers ask for beside any page."""
        return self._response(request, ICON)

    def _response(self, request: Request, name: str) -> Response:
        data, is_packed = _files(self._folder)[name]
        nonce = token_urlsafe(16)
        if name == PAGE:
            data = data.replace(NONCE.encode(), nonce.encode())
        headers = {
            "content-type": _TYPES[PurePath(name).suffix],
            "content-security-policy": self._policy.replace(NONCE, nonce),
            **_HEADERS,
        }
        if is_packed:
            headers["vary"] = "Accept-Encoding"
            if any("gzip" in accepted for accepted in request.headers.getlist("accept-encoding")):
                headers["content-encoding"] = "gzip"
            else:
                data = gzip.decompress(data)
        return Response(data, headers=headers)


@cache
def _files(folder: str) -> dict[str, tuple[bytes, bool]]:
    """Return the files to serve, by name, with whether each is compressed.

    Names are looked up here, so no path of a request reaches the file system.
    """
    found: dict[str, tuple[bytes, bool]] = {}
    for file in files("curbstone.gateway").joinpath(folder).iterdir():
        name = file.name.removesuffix(PACKED)
        if PurePath(name).suffix in _TYPES:
            found[name] = file.read_bytes(), name != file.name
    return found
