"""Which pages may call from a browser: the checks of Host and Origin, and CORS.

A page of another origin gets nothing unless its origin is listed. A page that made its own name resolve to this machine
(DNS rebinding) is recognized by its Host: only addresses, `localhost`, names under it and the names in the settings are
ours. This holds on every listener, because behind a published port of a container even requests from this machine do
not have a loopback address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import Message, Scope, Send

from curbstone.gateway.http.fields import Header
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.responses import reply
from curbstone.gateway.http.scope import AnyScope
from curbstone.gateway.settings import GatewaySettings

PREFLIGHT_S = 600

_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_DEFAULT_PORTS = {"http": "80", "ws": "80", "https": "443", "wss": "443"}
_METHODS: Header = (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, DELETE, OPTIONS")
_EXPOSED: Header = (b"access-control-expose-headers", b"*")
_VARY: Header = (b"vary", b"Origin")
_TRUSTED_HOSTS_MAX = 1000
_BROWSERS = b"Mozilla/"
"""The User-Agent of every browser, but of few other programs, begins with this."""
_OF_A_PAGE = b"x-requested-with"


class OriginPolicy:
    """Admits requests, or raises Problem 421 (Host) or 403 (Origin)."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.cors_origins)
        self._hosts = frozenset(("localhost", *(name.lower().rstrip(".") for name in settings.hosts)))
        self._trusted: set[bytes] = {b""}
        """Values of Host known to be ours. The empty one is among them, because every browser sends a Host."""

    def admit(self, scope: Scope, send: Send) -> Send:
        """Return the `send` to answer with; it adds the CORS headers for a listed origin.

        Where origins are listed, every answer has `Vary: Origin`, so that no cache gives a page of a listed origin an
        answer without these headers.
        """
        named = scope["fields"].named
        host, origin = named.get(b"host", b""), named.get(b"origin", b"")
        if host not in self._trusted:
            self.check_host(host)
        if self._origins:
            allowed = ((b"access-control-allow-origin", origin), _EXPOSED) if origin and self.is_listed(origin) else ()
            send = _with_headers(send, (*allowed, _VARY))
            if allowed:
                return send
        if not origin:
            return send
        if scope["method"] not in _SAFE_METHODS and not is_same_host(origin, host):
            raise Problem(403, "requests from pages of this origin are not allowed; see --cors-origin")
        return send

    def check_host(self, host: bytes) -> None:
        """Raise Problem 421 for a Host that is not ours."""
        name = _host_name(host.decode("latin-1").lower())
        if not self._is_ours(name):
            raise Problem(421, f"the host name {name[:80]!r} is not served here; see --http-host")
        if len(self._trusted) < _TRUSTED_HOSTS_MAX:
            self._trusted.add(host)

    def _is_ours(self, name: str) -> bool:
        if name in self._hosts or name.endswith(".localhost") or "*" in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def check_socket_origin(self, origin: bytes, host: bytes) -> None:
        """Raise Problem 403 if a WebSocket is opened by a page of another origin that is not listed."""
        if origin and not is_same_host(origin, host) and not self.is_listed(origin):
            raise Problem(403, "pages of this origin may not connect; see --cors-origin")

    def check_page(self, scope: AnyScope) -> None:
        """Raise Problem 403 if a page of another origin causes a GET that takes messages.

        Any page can cause a GET. With EventSource the browser names the page's origin in Origin, and with other
        requests in Sec-Fetch-Site. But it sends neither with an image over plain HTTP from an address that is not this
        machine's own. So a browser that does not name its page must send a header that no page of another origin can
        set.
        """
        named = scope["fields"].named
        origin = named.get(b"origin", b"")
        self.check_socket_origin(origin, named.get(b"host", b""))
        if origin:
            return
        site = named.get(b"sec-fetch-site")
        if site in (b"cross-site", b"same-site"):
            raise Problem(403, "pages of other origins can't consume messages; see --cors-origin")
        if site is None and named.get(b"user-agent", b"").startswith(_BROWSERS) and _OF_A_PAGE not in named:
            raise Problem(
                403, "a browser that does not name the calling page can't take messages; send X-Requested-With"
            )

    def is_listed(self, origin: bytes) -> bool:
        """Return whether the origin is listed."""
        return "*" in self._origins or origin.decode("latin-1").lower() in self._origins


def is_same_host(origin: bytes, host: bytes) -> bool:
    """Return whether a page of this origin was served under this Host, by name and port.

    The scheme only gives the default port: behind a proxy that ends TLS, the schemes differ.
    """
    scheme, mark, at = origin.decode("latin-1").lower().partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    if not mark or not default or not host:
        return False
    return _name_and_port(at, default) == _name_and_port(host.decode("latin-1").lower(), default)


def _name_and_port(text: str, default: str) -> tuple[str, str]:
    name = _host_name(text)
    port = text.rpartition(":")[2] if text[-1:] != "]" and ":" in text else default
    return name, port


def _host_name(text: str) -> str:
    """Return the name in name:port; for an address in brackets, the address."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def is_preflight(scope: Scope) -> bool:
    """Return whether a request is a CORS preflight: a browser asks whether it may send another request."""
    named = scope["fields"].named
    return scope["method"] == "OPTIONS" and b"origin" in named and b"access-control-request-method" in named


async def answer_preflight(scope: Scope, send: Send) -> None:
    """Answer a preflight. `send` adds the origin if it is listed; without it the browser gives up."""
    wanted = scope["fields"].value(b"access-control-request-headers")
    fields: list[Header] = [_METHODS, (b"access-control-max-age", b"%d" % PREFLIGHT_S)]
    if wanted:
        fields.append((b"access-control-allow-headers", wanted))
    await reply(send, 204, fields)


def _with_headers(send: Send, fields: Iterable[Header]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *fields]}
        await send(message)

    return send_with_headers
