"""Fetches an https URL, all within a time limit: no redirects, no proxies, no other schemes."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from http.client import HTTPException, HTTPSConnection
from threading import Timer
from urllib.parse import urlsplit

from curbstone.access.issuers import is_https

FETCH_S_MAX: float = 5
"""The limit for a complete answer, even if its bytes come slowly."""
BYTES_MAX = 1024 * 1024

_HEADERS = {"accept": "application/json", "user-agent": "curbstone", "connection": "close"}


def fetch_https(url: str) -> bytes:
    """Return the content of an https URL, at most one byte more than is allowed; raise OSError. Blocks."""
    assert is_https(url)
    until_s = time.monotonic() + FETCH_S_MAX
    place = urlsplit(url)
    connection = HTTPSConnection(place.hostname or "", place.port, timeout=FETCH_S_MAX)
    try:
        connection.connect()
        opened: socket.socket = connection.sock
        timer = Timer(max(until_s - time.monotonic(), 0), _shut, (opened,))
        timer.daemon = True
        timer.start()
        try:
            connection.request("GET", place._replace(scheme="", netloc="").geturl() or "/", headers=_HEADERS)
            reply = connection.getresponse()
            data = reply.read(BYTES_MAX + 1)
        finally:
            timer.cancel()
        if reply.status != 200:
            raise OSError(f"it answered {reply.status}")
        if time.monotonic() > until_s:
            raise TimeoutError(f"it took longer than {FETCH_S_MAX} s")
        return data
    except HTTPException as error:
        raise OSError(f"its answer is no HTTP: {type(error).__name__}") from None
    finally:
        connection.close()


def _shut(opened: socket.socket) -> None:
    """Make a read from this socket in another thread end.

    Calls the plain socket's method: that of SSLSocket would also drop the TLS state that the reading thread uses.
    """
    with suppress(OSError):
        socket.socket.shutdown(opened, socket.SHUT_RDWR)
