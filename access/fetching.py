"""What is at an https URL, whole within a time: no redirect, no proxy, no other scheme."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from http.client import HTTPException, HTTPSConnection
from threading import Timer
from urllib.parse import urlsplit

from curbstone.access.issuers import is_https

FETCH_S_MAX: float = 5
"""Of a whole answer, however it drips."""
BYTES_MAX = 1024 * 1024

_HEADERS = {"accept": "application/json", "user-agent": "curbstone", "connection": "close"}


def fetch_https(url: str) -> bytes:
    """Return what is at an https URL, at most one byte more than is allowed; raise OSError. Blocks."""
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
    """Make whoever reads from a socket in another thread see its end; what TLS does at an end would be in the way."""
    with suppress(OSError):
        socket.socket.shutdown(opened, socket.SHUT_RDWR)
