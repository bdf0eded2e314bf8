"""Is it alive, and can it take messages?"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.problem import RETRY_AFTER_S
from curbstone.gateway.http.reply import reply_json
from curbstone.gateway.resources.queues import engine_json

_FRESH = (b"cache-control", b"no-store")


class Health:
    """The handlers of `/healthz` and `/readyz`."""

    async def alive(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET /healthz: 200 as long as the process answers; what is wrong is told with the right `metrics`."""
        access = access_of(scope)
        health = access.health()
        body = {
            "status": "ok" if health.ok else "degraded",
            "reasons": health.reasons,
            "sync": health.sync,
            "engine": engine_json(access),
        }
        await reply_json(send, body, 200, [_FRESH])

    async def ready(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET /readyz: 503 with the reasons while messages can't be taken; what else is wrong is in the body, too."""
        health = access_of(scope).health()
        if health.ok:
            told = {"reasons": health.reasons} if health.reasons else {}
            await reply_json(send, {"status": "ready", **told, "sync": health.sync}, 200, [_FRESH])
            return
        body = {"status": "not ready", "reasons": health.reasons, "sync": health.sync}
        await reply_json(send, body, 503, [_FRESH, (b"retry-after", b"%d" % RETRY_AFTER_S[503])])
