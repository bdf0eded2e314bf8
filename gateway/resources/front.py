"""The root of the server: a browser is led to the console, a program is told where everything is."""

from __future__ import annotations

import orjson
from starlette.types import Receive, Scope, Send

from curbstone.gateway.http.reply import Header, reply

PLACES = {
    "console": "/console",
    "docs": "/docs",
    "openapi": "/openapi.yaml",
    "asyncapi": "/asyncapi.yaml",
    "alive": "/healthz",
    "ready": "/readyz",
    "metrics": "/metrics",
}
_VARY: Header = (b"vary", b"Accept")
_JSON = orjson.dumps(PLACES)


async def front(scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /."""
    accepted = b",".join([value for name, value in scope["headers"] if name == b"accept"]).lower()
    if b"text/html" in accepted:
        await reply(send, 303, ((b"location", PLACES["console"].encode()), _VARY))
    else:
        await reply(send, 200, ((b"content-type", b"application/json"), _VARY), _JSON)
