"""The parts of a history as objects: each is written at once and never changed.

A writer puts an id of its own into the index, and checks before each part that it is still there. So of two processes
the one that began last continues, and the other one ends. A part of the other one may still arrive late;
`history.chain_of` leaves it out if the parts after it are not contiguous with it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence

import obstore
from obstore.exceptions import BaseError

from curbstone.core.errors import DataDirectoryError
from curbstone.standby.object_stores import as_os_error, open_store

CALL_S = 60
RETRIES_MAX = 2


class ObjectParts:
    """Implements `part_store.PartStore`."""

    part_bytes_max = 8 * 1024 * 1024
    grows = False

    def __init__(self, url: str, sync_ms: int) -> None:
        """Raise WrongStore."""
        self.url = url
        self.sync_ms = sync_ms
        self._store = open_store(url, CALL_S, RETRIES_MAX)
        self._sizes: dict[str, int] = {}
        self._index = ""
        self._claim = b""

    def claim(self, name: str, facts: Mapping[str, object]) -> None:
        """See `PartStore`. Raise DataDirectoryError if another process has claimed it later."""
        if self._claim:
            self._check_claim()
            return
        claim = json.dumps({**facts, "recorder": secrets.token_hex(8)}).encode() + b"\n"
        try:
            obstore.put(self._store, name, claim)
        except (BaseError, FileNotFoundError) as error:
            raise as_os_error(error) from None
        self._index, self._claim = name, claim

    def _check_claim(self) -> None:
        if b"".join(self.read(self._index, 0)) != self._claim:
            raise DataDirectoryError(f"another process has begun to write to {self.url}")

    def names(self) -> list[str]:
        """See `PartStore`."""
        try:
            found = obstore.list_with_delimiter(self._store)["objects"]
        except (BaseError, FileNotFoundError) as error:
            raise as_os_error(error) from None
        self._sizes = {each["path"]: each["size"] for each in found}
        return list(self._sizes)

    def size(self, name: str) -> int:
        """See `PartStore`."""
        return self._sizes[name]

    def read(self, name: str, piece_bytes: int) -> Iterator[bytes]:
        """See `PartStore`."""
        try:
            data = bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.url}: {name} does not exist") from None
        except BaseError as error:
            raise as_os_error(error) from None
        yield data

    def begin(self, name: str) -> _Object:
        """See `PartStore`."""
        return _Object(self)

    def create(self, name: str, data: bytes) -> None:
        """Store a part. Raise OSError, also if the name exists."""
        self._check_claim()
        try:
            obstore.put(self._store, name, data, mode="create", use_multipart=False)
        except (BaseError, FileNotFoundError) as error:
            raise as_os_error(error) from None

    def remove(self, names: Sequence[str]) -> None:
        """See `PartStore`."""
        try:
            obstore.delete(self._store, names)
        except FileNotFoundError:
            return
        except BaseError as error:
            raise as_os_error(error) from None


class _Object:
    """Implements `part_store.PartFile`: keeps the part in memory until it is complete."""

    def __init__(self, parts: ObjectParts) -> None:
        self._parts = parts
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._pieces.append(data)

    def sync(self) -> None:
        pass

    def finish(self, name: str) -> None:
        self._parts.create(name, b"".join(self._pieces))

    def close(self) -> None:
        self._pieces.clear()
