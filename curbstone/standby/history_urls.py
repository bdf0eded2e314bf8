"""URLs of histories in object stores. The library is imported only if one is used."""

from __future__ import annotations

import re

from curbstone.core.errors import Unavailable
from curbstone.standby.part_store import PartStore

_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def is_url(place: str) -> bool:
    """Return whether a history is in an object store, not in a directory."""
    return _URL.match(place) is not None


def objects_at(url: str, sync_ms: int = 0) -> PartStore:
    """Return the object store at a URL; `sync_ms` is for writing. Raise Unavailable or WrongStore."""
    try:
        from curbstone.standby.object_parts import ObjectParts
    except ImportError as error:
        raise Unavailable(f"{url} needs obstore: pip install 'curbstone[objects]' ({error})") from error
    return ObjectParts(url, sync_ms)
