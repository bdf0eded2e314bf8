"""A lease as an object in a store with conditional writes: S3 and compatible ones, Google Cloud Storage, Azure."""

from __future__ import annotations

import json
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from curbstone.standby.lease import Found, Lease, UnfitStore
from curbstone.standby.object_stores import as_os_error, open_store

NEVER = json.dumps({"e_tag": '"00000000000000000000000000000000"', "version": "1"})
"""A version that no object has."""


class ObjectLease:
    """Implements `lease.LeaseStore`. Credentials come from the environment, as for the vendor's own tools."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Raise OSError if the configuration in the environment is incomplete."""
        folder, _, self._name = url.rpartition("/")
        # The library must not retry: a second attempt fails if the first one has taken effect.
        self._store = open_store(folder, timeout_s, max_retries=0)

    def check(self) -> None:
        """See `LeaseStore`. It is tested with another object, NAME.check."""
        for version, may_succeed in ((None, True), (None, False), (NEVER, False)):
            try:
                obstore.put(self._store, f"{self._name}.check", b"Curbstone\n", mode=_mode(version))
            except (AlreadyExistsError, PreconditionError):
                continue
            except BaseError as error:
                raise as_os_error(error) from None
            if not may_succeed:
                raise UnfitStore("the store replaces objects whatever their version is")

    def read(self) -> Found | None:
        """See `LeaseStore`."""
        try:
            found = obstore.get(self._store, self._name)
            data = bytes(found.bytes())
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise as_os_error(error) from None
        return Found(Lease.decode(data), _version(found.meta))

    def write(self, lease: Lease, version: str | None) -> str:
        """See `LeaseStore`."""
        try:
            return _version(obstore.put(self._store, self._name, lease.encode(), mode=_mode(version)))
        except BaseError as error:
            raise as_os_error(error) from None

    def close(self) -> None:
        """See `LeaseStore`: the library closes its connections itself."""


def _mode(version: str | None) -> Any:
    return "create" if version is None else json.loads(version)


def _version(meta: Any) -> str:
    """Return the version of an object: a generation at Google, an ETag at all others."""
    return json.dumps({name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None})
