"""A standby's HTTP interface: the state of its copy, and the address of the server for all other requests.

It has a server's paths for health, readiness and figures, so load balancers, Kubernetes and Prometheus need no other
settings for a standby. It needs no login, because no answer contains the name of a queue or data of a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from curbstone.core.errors import CurbstoneError, IsStandby
from curbstone.core.stats import Histogram
from curbstone.gateway.http.callbacks import in_thread
from curbstone.gateway.http.problem import ClientGone, Problem
from curbstone.gateway.http.resource import Resource
from curbstone.gateway.http.responses import FRESH, JsonResponse, reply_problem
from curbstone.gateway.http.routing import Routes

if TYPE_CHECKING:
    from curbstone.gateway.app import Gateway

logger = logging.getLogger("curbstone.gateway")


class StandbyFigures(NamedTuple):
    """The figures of a standby at one moment."""

    server: str
    """The id of the server; "" if it was never reached."""
    term: int
    is_connected: bool
    """Whether it receives the server's changes."""
    is_usable: bool
    """Whether the copy is complete, so that a server could start on it."""
    possible_loss: str
    """Why something that was confirmed may be missing; "" if nothing is."""
    is_catching_up: bool
    """Whether it applies changes without syncs because it is far behind."""
    position: int
    """The position up to which it has applied the server's stream."""
    applied_bytes: int
    """The bytes received and applied since the process started."""
    lag_bytes: int
    """The bytes that it lacked when the server last answered."""
    lag_ms: int | None
    """The time since the copy had everything that the server had; None if never since the process started."""
    disk_free_bytes: int
    trouble: str
    """Why it can't apply the received changes; "" if it can."""
    syncs: Histogram
    """How long syncs took, in microseconds."""
    verified_bytes: int = 0
    """How much of the copy was compared with the server since the process started."""
    different_blocks: int = 0
    """How many blocks of it were missing or different."""

    @property
    def is_promotable(self) -> bool:
        """Whether it can be promoted with certainty that nothing confirmed is missing."""
        return self.is_usable and not self.possible_loss


class StandbyStatus:
    """Implements `gateway.app.Application`."""

    def __init__(self, of: str, figures: Callable[[], StandbyFigures], sync: str, max_ttl_s: float) -> None:
        """`of` is the address of the server. `figures` is called in a thread.

        `sync` and `max_ttl_s` are settings of the server that the standby may become.
        """
        self._of = of
        self._sync = sync
        self._max_ttl_s = max_ttl_s
        self._figures = figures
        routes = [
            Route("/healthz", Resource(GET=self._alive)),
            Route("/readyz", Resource(GET=self._ready)),
            Route("/metrics", Resource(GET=self._metrics)),
            Route("/v2/standby", Resource(GET=self._standby)),
        ]
        self._routes = Routes(routes)

    @property
    def gateway(self) -> Gateway:
        self._refuse()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            found = self._routes.find(scope)
            if found is None:
                self._refuse()
            handler, scope["path_params"] = found
            await handler(scope, receive, send)
        except (Problem, CurbstoneError) as error:
            await reply_problem(send, error)
        except ClientGone:
            pass
        except Exception:
            logger.exception("%s %r failed", scope["method"], scope["path"])
            await reply_problem(send, Problem(500, "an error in the standby; its log has more"))

    def release(self) -> None:
        """See `Application`: no request waits here."""

    release_followers = release

    def _refuse(self) -> NoReturn:
        raise IsStandby(self._of)

    async def _alive(self, _request: Request) -> Response:
        """GET /healthz: 200 as long as the process answers."""
        now = await in_thread(self._figures)
        reasons = self._reasons(now)
        body = {
            "status": "degraded" if reasons else "ok",
            "role": "standby",
            "reasons": reasons,
            "sync": self._sync,
            "engine": {"name": "local", "capabilities": []},
            "max_ttl": self._max_ttl_s,
        }
        return JsonResponse(body, 200, FRESH)

    async def _ready(self, _request: Request) -> Response:
        """GET /readyz: 503, because a standby serves nothing."""
        body = {"status": "standby", "reasons": [str(IsStandby(self._of))], "sync": self._sync}
        return JsonResponse(body, 503, FRESH)

    async def _metrics(self, request: Request) -> Response:
        """GET /metrics: figures for Prometheus."""
        accept = request.headers.get("accept", "")

        def write() -> tuple[bytes, str]:
            # Imported here, because prometheus-client is needed only for /metrics.
            from curbstone.gateway.resources.metrics.standby_exposition import encode_metrics

            return encode_metrics(self._figures(), accept)

        body, content_type = await in_thread(write)
        return Response(body, headers={"content-type": content_type, **FRESH})

    async def _standby(self, _request: Request) -> Response:
        """GET /v2/standby: the state of the copy."""
        now = await in_thread(self._figures)
        shown = {
            "enabled": False,
            "role": "standby",
            "of": self._of,
            "server": now.server,
            "term": now.term,
            "connected": now.is_connected,
            "usable": now.is_usable,
            "promotable": now.is_promotable,
            "lacks": now.possible_loss,
            "catching_up": now.is_catching_up,
            "position": now.position,
            "lag_bytes": now.lag_bytes,
            "lag_seconds": None if now.lag_ms is None else now.lag_ms / 1000,
            "disk_free_bytes": now.disk_free_bytes,
            "verified_bytes": now.verified_bytes,
            "different_blocks": now.different_blocks,
            "reasons": self._reasons(now),
            "followers": [],
        }
        return JsonResponse(shown, headers=FRESH)

    def _reasons(self, now: StandbyFigures) -> list[str]:
        """Return what is wrong."""
        found = [now.trouble] if now.trouble else []
        if not now.is_connected:
            found.append(f"not connected to the server at {self._of}")
        if not now.is_usable:
            found.append("the copy is incomplete")
        return found
