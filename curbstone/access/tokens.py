"""API tokens: created while the server runs, and stored in `access/tokens` of the data directory.

The file is replaced as a whole and synced before a token is returned or a revocation is confirmed. It contains no
secrets, only their SHA-256. It is written through `Disk`, like the rest of the server's state, so that standbys receive
it; it is read directly, because the owner of the file has to be checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from curbstone.access import files
from curbstone.access.rights import BadGrant, Grants
from curbstone.access.secrets import TOKEN, Secret, new_secret
from curbstone.core.disk import Disk, replace_file
from curbstone.core.errors import BadRequest, CurbstoneError, DataDirectoryError, Unavailable
from curbstone.core.host import Host
from curbstone.core.values import Done

FORMAT = 1
TOKENS_MAX = 10_000
TOKENS_OF_USER_MAX = 200
"""The most tokens that a user may create for itself. An administrator may create more."""
RESERVED = 100
"""How many of all tokens are reserved for administrators."""
LABEL_CHARS_MAX = 200
DAY_MS = 86_400_000
DIRECTORY, FILE = "access", "tokens"


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is stored."""

    id: str
    digest: str
    """The SHA-256 of the secret, in hex."""
    user: str
    label: str
    grants: tuple[str, ...] | None
    """Grants that narrow the user's rights; None for all rights of the user."""
    created_ms: int
    expires_ms: int
    """When it expires, by the wall clock; 0 for never."""
    parent: str
    """The token that it was created with. Revoking that one revokes this one, too."""
    used_day: int
    """The day of its last use, in days since the epoch; 0 for never."""

    @property
    def layer(self) -> Grants | None:
        return None if self.grants is None else Grants.parse(self.grants, self.user)


def new_token(
    user: str, now_ms: int, *, grants: Iterable[str] | None, expires_ms: int, label: str, parent: str = ""
) -> tuple[Secret, Token]:
    """Return the secret of a new token, and the token to store; raise BadRequest."""
    kept = tuple(grants) if grants is not None else None
    if len(label) > LABEL_CHARS_MAX or not label.isprintable():
        raise BadRequest(f"bad label: at most {LABEL_CHARS_MAX} printable characters")
    try:
        Grants.parse(kept or (), user)
    except BadGrant as error:
        raise BadRequest(str(error)) from None
    secret = new_secret(TOKEN)
    return secret, Token(secret.id, secret.digest.hex(), user, label, kept, now_ms, expires_ms, parent, 0)


def check_narrower(has: tuple[str, ...], wanted: Iterable[str] | None) -> None:
    """Raise BadRequest if a token would have grants that the token it is created with lacks."""
    if wanted is None or not set(wanted) <= set(has):
        raise BadRequest("a token created with a token can only have grants of that token, in the same spelling")


def encode(tokens: Iterable[Token]) -> bytes:
    lines = [json.dumps({"format": FORMAT}), *(json.dumps(asdict(token)) for token in tokens)]
    return "\n".join([*lines, ""]).encode()


def decode(data: bytes) -> dict[str, Token]:
    """Return the tokens by id; raise DataDirectoryError."""
    try:
        head, *lines = data.decode().splitlines()
        if json.loads(head)["format"] > FORMAT:
            raise DataDirectoryError("access/tokens: its format is newer than this version can read")
        found = [Token(**json.loads(line)) for line in lines]
        tokens = [replace(each, grants=None if each.grants is None else tuple(each.grants)) for each in found]
        for token in tokens:
            bytes.fromhex(token.digest)
            _ = token.layer  # raises for a bad grant
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(f"access/tokens is damaged: {type(error).__name__}; no token can be used") from None
    return {token.id: token for token in tokens}


def read(data: Path) -> dict[str, Token]:
    """Return the tokens in a data directory. Blocks. Raise DataDirectoryError."""
    try:
        return decode(files.read_ours(data / DIRECTORY / FILE, data))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataDirectoryError(f"access/tokens can't be read: {error.strerror}") from error


def make_directory(disk: Disk) -> None:
    """Create the directory of the tokens and the audit log, if it does not exist. Blocks."""
    with suppress(FileExistsError):
        disk.make_dir(DIRECTORY)
        disk.sync_dir("")


def write(disk: Disk, tokens: Iterable[Token]) -> None:
    """Replace the tokens in a data directory. Blocks; durable when it returns."""
    make_directory(disk)
    replace_file(disk, f"{DIRECTORY}/{FILE}", encode(tokens)).close()


class Tokens:
    """The tokens of a running server. Called on the host's thread."""

    def __init__(self, host: Host, data: Path, disk: Disk) -> None:
        """`disk` is that of the data directory `data`."""
        self._host = host
        self._data = data
        self._disk = disk
        self._tokens: dict[str, Token] = {}
        self._waiting: list[Done] = []
        self._is_writing = False
        self._is_due = False

    def load(self) -> None:
        """Read the tokens. Blocks. Raise DataDirectoryError."""
        self._tokens = read(self._data)

    def find(self, secret: Secret) -> Token | None:
        """Return the token of a secret, if it is valid."""
        token = self._tokens.get(secret.id)
        if token is None or not secret.is_of(bytes.fromhex(token.digest)) or self._is_expired(token):
            return None
        return token

    def _is_expired(self, token: Token) -> bool:
        return bool(token.expires_ms) and token.expires_ms <= self._host.wall_ms()

    def get(self, identifier: str) -> Token | None:
        return self._tokens.get(identifier)

    def listed(self) -> list[Token]:
        """Return all tokens that have not expired, the oldest first."""
        valid = (each for each in self._tokens.values() if not self._is_expired(each))
        return sorted(valid, key=lambda token: token.created_ms)

    def used(self, token: Token) -> None:
        """Record that a token was used today."""
        day = self._host.wall_ms() // DAY_MS
        if token.used_day != day and token.id in self._tokens:
            self._tokens[token.id] = replace(token, used_day=day)
            self._store(lambda _error: None)

    def is_from(self, token: Token, identifier: str) -> bool:
        """Return whether a token has this id, or was created with it, directly or indirectly."""
        at: Token | None = token
        while at is not None and at.id != identifier:
            at = self._tokens.get(at.parent)
        return at is not None

    def add(self, token: Token, on_done: Done, *, by_admin: bool = False) -> None:
        """Store a token; `on_done` is called when it is on disk, or removed because that failed. Raise BadRequest."""
        for each in list(self._tokens.values()):
            if self._is_expired(each):
                del self._tokens[each.id]
        if not by_admin and sum(each.user == token.user for each in self._tokens.values()) >= TOKENS_OF_USER_MAX:
            raise BadRequest(f"this user has {TOKENS_OF_USER_MAX} tokens, the limit; revoke some")
        if len(self._tokens) >= TOKENS_MAX - (0 if by_admin else RESERVED):
            raise BadRequest(f"the server has {len(self._tokens)} tokens, its limit; revoke some")
        self._tokens[token.id] = token

        def done(error: CurbstoneError | None) -> None:
            if error is not None:
                self._tokens.pop(token.id, None)
            on_done(error)

        self._store(done)

    def revoke(self, identifiers: Iterable[str], on_done: Done) -> None:
        """Revoke tokens and those created with them; `on_done` is called when this is on disk."""
        made: dict[str, list[str]] = {}
        for token in self._tokens.values():
            made.setdefault(token.parent, []).append(token.id)
        gone = list(identifiers)
        while gone:
            identifier = gone.pop()
            if self._tokens.pop(identifier, None) is not None:
                gone += made.get(identifier, ())
        self._store(on_done)

    def _store(self, on_done: Done) -> None:
        self._waiting.append(on_done)
        self._is_due = True
        self._write()

    def _write(self) -> None:
        if self._is_writing or not self._is_due:
            return
        self._is_writing, self._is_due = True, False
        waiting, self._waiting = self._waiting, []
        tokens = list(self._tokens.values())

        def done(_: object, error: BaseException | None) -> None:
            self._is_writing = False
            failed = Unavailable("the tokens can't be written; see the log") if error is not None else None
            for on_done in waiting:
                on_done(failed)
            self._write()

        self._host.submit(lambda: write(self._disk, tokens), done)
