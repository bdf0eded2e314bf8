"""Calls of the HTTP interface, for everything except messages. They block; the asyncio shell makes them in threads."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from curbstone_client.address import Address
from curbstone_client.errors import CantConnect, NotSupported, detail_of, is_standby, refusal

TIMEOUT_S = 60


class Http:
    """Calls to one server, which may have several addresses. Thread-safe and fork-safe: no connection is kept open."""

    def __init__(
        self,
        addresses: Sequence[Address],
        token: Callable[[], str | None],
        tls: Callable[[Address], ssl.SSLContext | None],
    ) -> None:
        self._addresses = [each for each in addresses if each.is_websocket]
        self._token = token
        self._tls = tls

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the first address that serves. Return the JSON of the reply, or None if it has no body.

        Raise CantConnect if no address serves, NotSupported if no address has HTTP, or the error of the reply's status.
        """
        if not self._addresses:
            raise NotSupported("a stomp:// address has no HTTP; use the HTTP address, which also transports messages")
        failure = ""
        for address in self._addresses:
            try:
                status, headers, data = self._reply(address, method, path, body)
            except (OSError, http.client.HTTPException) as error:
                failure = f"{address}: {error or type(error).__name__}"
                continue
            if status == 503 and is_standby(data):
                failure = f"{address}: {detail_of(data)}"
                continue
            if status < 400:
                return json.loads(data) if data.strip() else None
            retry = headers.get("retry-after") or ""
            raise refusal(status, detail_of(data) or f"{status}", float(retry) if retry.isdigit() else None)
        raise CantConnect(failure)

    def _reply(self, address: Address, method: str, path: str, body: Any) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection: http.client.HTTPConnection
        if address.is_tls:
            connection = http.client.HTTPSConnection(
                address.host, address.port, timeout=TIMEOUT_S, context=self._tls(address)
            )
        else:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
        headers = {"Accept": "application/json"}
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, address.path + path, data, headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()


def queue_path(project: str, queue: str, more: str = "") -> str:
    """Return the path of a queue, or of `more` below it."""
    return f"/v2/{quote(project, safe='')}/queues/{quote(queue, safe='')}{more}"
