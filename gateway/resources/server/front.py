"""The root of the server: redirects browsers to the console, and tells programs where everything is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from curbstone.gateway.http.response import JsonResponse
from curbstone.gateway.http.scope import base_of

PLACES = {
    "console": "/console",
    "docs": "/docs",
    "openapi": "/openapi.yaml",
    "asyncapi": "/asyncapi.yaml",
    "alive": "/healthz",
    "ready": "/readyz",
    "metrics": "/metrics",
}
_VARY = {"vary": "Accept"}


async def front(request: Request) -> Response:
    """GET /."""
    if any("text/html" in accepted.lower() for accepted in request.headers.getlist("accept")):
        return RedirectResponse(base_of(request) + PLACES["console"], 303, headers=_VARY)
    return JsonResponse({name: base_of(request) + path for name, path in PLACES.items()}, headers=_VARY)
