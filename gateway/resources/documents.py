"""The contracts, as files, and as a page on which they can be tried."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from curbstone.gateway.http.answers import in_thread
from curbstone.gateway.http.problem_types import TYPES
from curbstone.gateway.http.reply import NO_REFERRER, NO_SNIFFING, Header, reply
from curbstone.gateway.http.static import StaticPage
from curbstone.openapi import contract, page

# They change with the server's version only; a browser asks again after a while.
_CACHED: Header = (b"cache-control", b"max-age=300")
_YAML: Header = (b"content-type", b"application/yaml")
_JSON: Header = (b"content-type", b"application/json")
_HTML: tuple[Header, ...] = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", page.CONTENT_SECURITY_POLICY.encode()),
    NO_SNIFFING,
    NO_REFERRER,
)

DOCS = StaticPage(
    # The renderer sets styles in the elements that it makes.
    "docs",
    b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; object-src 'none'; base-uri 'none';"
    b" frame-ancestors 'none'",
)


async def openapi_yaml(_scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /openapi.yaml."""
    await reply(send, 200, (_YAML, _CACHED), contract.text_of(contract.OPENAPI))


async def openapi_json(_scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /openapi.json."""
    await reply(send, 200, (_JSON, _CACHED), await in_thread(contract.openapi_json))


async def asyncapi_yaml(_scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /asyncapi.yaml."""
    await reply(send, 200, (_YAML, _CACHED), contract.text_of(contract.ASYNCAPI))


async def problems(_scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /docs/problems: what each `type` of a problem means."""
    kinds = [(kind.name, f"{kind.name} ({kind.status})", kind.text) for kind in TYPES]
    await reply(send, 200, (*_HTML, _CACHED), page.list_page("Problems", kinds))
