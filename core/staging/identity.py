"""The identity of a staged transaction: a hash of project, owner and id, and the series that the id may belong to.

An id that ends with `@` and a number belongs to the series that the rest of it names. The transactions of a series are
committed in the order of their numbers, so the last number shows that all up to it were committed.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from curbstone.core.errors import BadRequest
from curbstone.core.names import queue_name

HASH_BYTES = 16
DOTS = (".", "..")
"""These can't be ids or names of parts, because in a path they mean something else."""

_ID = re.compile(r"([A-Za-z0-9._:-]{1,200})(?:@([0-9]{1,18}))?")

Hash = bytes
"""The hash of a project, an owner and an id; in hexadecimal, the name of the transaction's directory."""


class Series(NamedTuple):
    """A place in a series, and a number made of what the transaction there is about; 0 if that was not given."""

    hashed: Hash
    number: int
    content: int = 0

    @property
    def content_hash(self) -> Hash:
        """The hash under which the content of the last transaction of the series is remembered."""
        return blake2b(self.hashed, digest_size=HASH_BYTES, person=b"content").digest()

    def about(self, content: str) -> Series:
        """Return the same place with a content."""
        digest = blake2b(f"{self.number} {content}".encode(), digest_size=8).digest()
        return self._replace(content=int.from_bytes(digest, "little"))


class Identity(NamedTuple):
    """What an id stands for."""

    hashed: Hash
    label: str
    """Project and id, for texts."""
    series: Series | None


def identity_of(project: str, identifier: str, owner: str) -> Identity:
    """Return the identity of a transaction; raise BadRequest if the id is not well-formed."""
    project = queue_name("any", project).project
    found = _ID.fullmatch(identifier)
    if found is None or found[1] in DOTS:
        rule = "1 to 200 of A-Z a-z 0-9 . _ : -, and for one of a series @ and a number"
        raise BadRequest(f"bad transaction id {identifier[:80]!r}: {rule}")
    return Identity(
        _hash(project, owner, identifier),
        f"{project}/{identifier}",
        Series(_hash(project, owner, f"{found[1]}@"), int(found[2])) if found[2] else None,
    )


def _hash(project: str, owner: str, name: str) -> Hash:
    own = f"{owner}\n{name}" if owner else name  # neither part can hold a line break, so this is unambiguous
    return blake2b(f"{project}/{own}".encode(), digest_size=HASH_BYTES).digest()
