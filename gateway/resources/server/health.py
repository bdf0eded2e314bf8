"""Health checks: whether the server is alive, and whether it accepts messages."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from curbstone.core.errors import BadRequest
from curbstone.gateway.formats.parameters import query_of
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.problem import RETRY_AFTER_S
from curbstone.gateway.http.responses import FRESH, JsonResponse
from curbstone.gateway.resources.queues.queues import engine_json


class Health:
    """The handlers of `/healthz` and `/readyz`."""

    def __init__(self, max_ttl_s: float) -> None:
        """`max_ttl_s` is the longest time to live that a message may be given, in seconds."""
        self._max_ttl_s = max_ttl_s

    async def alive(self, request: Request) -> Response:
        """GET /healthz: 200 as long as the process answers. With the right `metrics`, the body lists what is wrong."""
        access = access_of(request)
        health = access.health()
        body = {
            "status": "ok" if health.ok else "degraded",
            "reasons": health.reasons,
            "sync": health.sync,
            "engine": engine_json(access),
            "max_ttl": self._max_ttl_s,
        }
        return JsonResponse(body, 200, FRESH)

    async def ready(self, request: Request) -> Response:
        """GET /readyz: 503 with the reasons while the server accepts no messages. The body also lists other problems.

        With `for=consume` it is 503 only while consumers are not served: they must reach a server with a full disk.
        """
        purpose = query_of(request).get("for", "publish")
        if purpose not in ("publish", "consume"):
            raise BadRequest(f"bad for {purpose[:80]!r}: publish or consume")
        health = access_of(request).health()
        if health.delivers if purpose == "consume" else health.ok:
            reasons = {"reasons": health.reasons} if health.reasons else {}
            return JsonResponse({"status": "ready", **reasons, "sync": health.sync}, 200, FRESH)
        body = {"status": "not ready", "reasons": health.reasons, "sync": health.sync}
        return JsonResponse(body, 503, {**FRESH, "retry-after": str(RETRY_AFTER_S[503])})
