"""The keys of an issuer: fetched in a thread, kept while it is away, asked for again when a token names another.

They come by https from where the users file or the issuer's discovery document says, or from a file. Nothing is
followed elsewhere: no redirect, no other scheme.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from curbstone.access.fetching import BYTES_MAX, fetch_https
from curbstone.access.issuers import Issuer, is_https
from curbstone.core.host import Host

AGAIN_MS = 30_000
"""Asked again no sooner, whatever tokens say."""
OLD_MS = 60 * 60_000
"""Keys older than that are asked for again when they are used, so that one that was withdrawn counts no more."""
WAITING_MAX = 64
"""The most tokens that wait for keys of one issuer."""
KEYS_MAX = 100

Keys = Mapping[str, Mapping[str, Any]]
"""JSON Web Keys by their `kid`."""
Fetch = Callable[[str], bytes]
"""Returns what is at an https URL; raises OSError."""

log = logging.getLogger("curbstone.access")


class NoKeys(Exception):
    """What the issuer sent holds no keys; the text says why."""


class IssuerKeys:
    """Of one issuer. Called on the host's thread."""

    def __init__(self, issuer: Issuer, host: Host, fetch: Fetch | None = None) -> None:
        """`fetch` is called in a thread; as `fetch_https` where it is not given."""
        self._issuer = issuer
        self._host = host
        self._fetch = fetch or fetch_https
        self._keys: Keys = {}
        self._asked_ms: int | None = None
        self._is_asking = False
        self._is_away = False
        self._waiting: list[Callable[[], None]] = []

    def find(self, kid: str) -> Mapping[str, Any] | None:
        """Return the key of this name, or the only one where a token names none; None where it is not known."""
        if self._asked_ms is not None and self._host.now_ms() - self._asked_ms > OLD_MS:
            self._ask()
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def ask(self, then: Callable[[], None]) -> bool:
        """Ask for the keys, and call `then` when they are there or did not come; False where it is too early."""
        if not self._is_asking:
            if self._asked_ms is not None and self._host.now_ms() - self._asked_ms < AGAIN_MS:
                return False
            self._ask()
        self._waiting.append(then)
        return True

    @property
    def is_busy(self) -> bool:
        """Whether too many wait already."""
        return len(self._waiting) >= WAITING_MAX

    def _ask(self) -> None:
        if not self._is_asking:
            self._is_asking = True
            self._asked_ms = self._host.now_ms()
            self._host.submit(lambda: read_keys(self._issuer, self._fetch), self._answered)

    def _answered(self, keys: Keys, error: BaseException | None) -> None:
        self._is_asking = False
        if error is None:
            self._keys = keys
            if self._is_away:
                log.info("issuer %s: its keys are here again", self._issuer.name)
        elif not self._is_away:
            log.warning("issuer %s: no keys, those it had go on to count: %s", self._issuer.name, error)
        self._is_away = error is not None
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


def read_keys(issuer: Issuer, fetch: Fetch) -> Keys:
    """Return the keys of an issuer; raise OSError or NoKeys. Blocks."""
    if issuer.jwks and not is_https(issuer.jwks):
        with Path(issuer.jwks).open("rb") as file:
            return keys_of(file.read(BYTES_MAX + 1))
    url = issuer.jwks
    if not url:
        said = _json(fetch(issuer.url.rstrip("/") + "/.well-known/openid-configuration"))
        url = str(said.get("jwks_uri", ""))
        if said.get("issuer") != issuer.url:
            raise NoKeys("its discovery document is of another issuer")
        if not is_https(url):
            raise NoKeys("its discovery document names no https URL of keys")
    return keys_of(fetch(url))


def keys_of(data: bytes) -> Keys:
    """Return the keys for signatures of a JSON Web Key Set; raise NoKeys."""
    found = _json(data).get("keys")
    if not isinstance(found, list) or not found or not all(isinstance(key, dict) for key in found):
        raise NoKeys("this is no set of keys")
    usable = [key for key in found[:KEYS_MAX] if key.get("use", "sig") == "sig"]
    return {str(key.get("kid", "")): key for key in usable}


def _json(data: bytes) -> dict[str, Any]:
    if len(data) > BYTES_MAX:
        raise NoKeys(f"it sent more than {BYTES_MAX} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise NoKeys("it sent no JSON") from None
    if not isinstance(value, dict):
        raise NoKeys("it sent no JSON object")
    return value
