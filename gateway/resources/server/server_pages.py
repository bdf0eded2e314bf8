"""The root, the console, and the contracts with a page on which calls can be tried."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from curbstone.gateway.http.callbacks import in_thread
from curbstone.gateway.http.problem_types import TYPES
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.http.scope import base_of
from curbstone.gateway.http.static import StaticPage
from curbstone.openapi import contract, page

# They change only with the server's version, so browsers may cache them for a while.
_CACHED = {"cache-control": "max-age=300"}
_YAML = {"content-type": "application/yaml"}
_HTML = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": page.CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}

DOCS = StaticPage(
    # RapiDoc sets styles on the elements it creates.
    "docs",
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; base-uri 'none';"
    " frame-ancestors 'none'",
)


async def openapi_yaml(request: Request) -> Response:
    """GET /openapi.yaml."""
    return Response(contract.text_of(contract.OPENAPI), headers=_YAML | _CACHED)


async def openapi_json(request: Request) -> Response:
    """GET /openapi.json."""
    return JsonResponse(await in_thread(contract.openapi_json), headers=_CACHED)


async def asyncapi_yaml(request: Request) -> Response:
    """GET /asyncapi.yaml."""
    return Response(contract.text_of(contract.ASYNCAPI), headers=_YAML | _CACHED)


async def problems(request: Request) -> Response:
    """GET /docs/problems: what each `type` of a problem means."""
    kinds = [(kind.name, f"{kind.name} ({kind.status})", kind.text) for kind in TYPES]
    return Response(page.list_page("Problems", kinds), headers=_HTML | _CACHED)


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


CONSOLE = StaticPage(
    "console",
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src 'self';"
    " require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
)
