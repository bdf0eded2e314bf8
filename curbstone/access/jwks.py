"""The signing keys of an issuer: fetched in a thread, cached while the issuer is unreachable, refetched for unknown
keys.

They come over https from the URL in the users file or in the issuer's discovery document, or from a file. No redirect
is followed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from curbstone import http_client
from curbstone.access.issuers import Issuer, is_https
from curbstone.core.host import Host

FETCH_INTERVAL_MS = 30_000
"""The shortest time between two fetches, however many unknown keys tokens name."""
KEYS_AGE_MS_MAX = 60 * 60_000
"""Older keys are fetched again when they are used, so that a withdrawn key is no longer accepted."""
WAITING_MAX = 64
"""The most tokens that may wait for the keys of one issuer."""
KEYS_MAX = 100
FETCH_S_MAX: float = 5
"""The timeout for the complete reply, even if it arrives slowly."""
BYTES_MAX = 1024 * 1024

Keys = Mapping[str, Mapping[str, Any]]
"""JSON Web Keys by their `kid`."""
Fetch = Callable[[str], bytes]
"""Returns the content of an https URL; raises OSError."""

log = logging.getLogger("curbstone.access")


def fetch_https(url: str) -> bytes:
    """Return the content of an https URL, truncated one byte above the limit; raise OSError. Blocks."""
    assert is_https(url)
    headers = {"accept": "application/json", "user-agent": "curbstone", "connection": "close"}
    return http_client.fetch(url, FETCH_S_MAX, BYTES_MAX, headers)


class NoKeys(Exception):
    """The issuer sent no usable keys."""


class IssuerKeys:
    """The keys of one issuer. Called on the host's thread."""

    def __init__(self, issuer: Issuer, host: Host, fetch: Fetch | None = None) -> None:
        """`fetch` is called in a thread; by default it is `fetch_https`."""
        self._issuer = issuer
        self._host = host
        self._fetch = fetch or fetch_https
        self._keys: Keys = {}
        self._fetched_ms: int | None = None
        self._is_fetching = False
        self.is_unreachable = False
        """Whether the last fetch failed."""
        self._waiting: list[Callable[[], None]] = []

    def find(self, kid: str) -> Mapping[str, Any] | None:
        """Return the key with this id, or the only key if a token names none; None if it is unknown."""
        if self._fetched_ms is not None and self._host.now_ms() - self._fetched_ms > KEYS_AGE_MS_MAX:
            self._start_fetch()
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def fetch(self, then: Callable[[], None]) -> bool:
        """Fetch the keys, and call `then` when that has succeeded or failed. Return False if it is too early."""
        if not self._is_fetching:
            if self._fetched_ms is not None and self._host.now_ms() - self._fetched_ms < FETCH_INTERVAL_MS:
                return False
            self._start_fetch()
        self._waiting.append(then)
        return True

    @property
    def is_busy(self) -> bool:
        """Whether too many tokens wait already."""
        return len(self._waiting) >= WAITING_MAX

    def _start_fetch(self) -> None:
        if not self._is_fetching:
            self._is_fetching = True
            self._fetched_ms = self._host.now_ms()
            self._host.submit(lambda: read_keys(self._issuer, self._fetch), self._fetched)

    def _fetched(self, keys: Keys, error: BaseException | None) -> None:
        self._is_fetching = False
        if error is None:
            self._keys = keys
            if self.is_unreachable:
                log.info("issuer %s: keys fetched again", self._issuer.name)
        elif not self.is_unreachable:
            log.warning("issuer %s: can't fetch keys, still accepting the previous ones: %s", self._issuer.name, error)
        self.is_unreachable = error is not None
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


def read_keys(issuer: Issuer, fetch: Fetch) -> Keys:
    """Fetch and return the keys of an issuer; raise OSError or NoKeys. Blocks."""
    if issuer.jwks and not is_https(issuer.jwks):
        with Path(issuer.jwks).open("rb") as file:
            return keys_of(file.read(BYTES_MAX + 1))
    url = issuer.jwks
    if not url:
        document = _json(fetch(issuer.url.rstrip("/") + "/.well-known/openid-configuration"))
        url = str(document.get("jwks_uri", ""))
        if document.get("issuer") != issuer.url:
            raise NoKeys("its discovery document names another issuer")
        if not is_https(url):
            raise NoKeys("its discovery document has no https URL in jwks_uri")
    return keys_of(fetch(url))


def keys_of(data: bytes) -> Keys:
    """Return the signature keys of a JSON Web Key Set; raise NoKeys."""
    found = _json(data).get("keys")
    if not isinstance(found, list) or not found or not all(isinstance(key, dict) for key in found):
        raise NoKeys("not a JSON Web Key Set")
    usable = [key for key in found[:KEYS_MAX] if key.get("use", "sig") == "sig"]
    return {str(key.get("kid", "")): key for key in usable}


def _json(data: bytes) -> dict[str, Any]:
    if len(data) > BYTES_MAX:
        raise NoKeys(f"the reply has more than {BYTES_MAX} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise NoKeys("the reply is not JSON") from None
    if not isinstance(value, dict):
        raise NoKeys("the reply is not a JSON object")
    return value
