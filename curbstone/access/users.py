"""The users file: TOML with the tables `roles`, `users`, `quotas` and `issuers`; docs/security.md describes it.

It is accepted as a whole or not at all.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, NamedTuple

from curbstone.access.issuers import BadIssuer, Issuer, issuer_of
from curbstone.access.rate_limit import NO_RATE, BadRate, Rate, most, parse_rate
from curbstone.access.rights import BadGrant, Grants
from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.names import DEFAULT_PROJECT, queue_name
from curbstone.core.options import parse_size
from curbstone.net.peer import address_of

ANONYMOUS = "anonymous"
"""The user of clients that present no credentials."""

PASSWORDS_MAX = 2
"""The current password, and the next one while it is being changed."""

QUEUES_DEFAULT = 1_000
BYTES_DEFAULT = 10 * 1024 * 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9._@:-]{1,128}")
_ROLE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_PHC = re.compile(r"\$argon2id\$v=19\$m=\d{1,7},t=\d{1,2},p=\d{1,2}\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{11,86}")
_CERTIFICATE = re.compile(r"(URI:|DNS:|EMAIL:|CN=|.*=).{1,500}")

Network = IPv4Network | IPv6Network


class UsersError(Exception):
    """The file is not valid; the text is one line and shows no secret."""


class User(NamedTuple):
    name: str
    home: str
    grants: Grants
    """The grants of the user and of its roles."""
    passwords: tuple[str, ...]
    certificates: tuple[str, ...]
    sources: tuple[Network, ...]
    """The networks it may log in from; empty for any."""
    ceiling: Grants | None = None
    """The grants of the user's issuer, which narrow its own; None without an issuer."""
    rate: Rate = NO_RATE
    """The publish rate: its own, or the largest of its roles."""

    def may_log_in_from(self, address: str) -> bool:
        if not self.sources:
            return True
        ip = address_of(address)
        return ip is not None and any(ip in network for network in self.sources)


class Quota(NamedTuple):
    """The limits of one project."""

    queues: int = QUEUES_DEFAULT
    bytes: int = BYTES_DEFAULT
    """The largest sum of its queues' caps."""


class Role(NamedTuple):
    grants: Sequence[str]
    rate: Rate


class Users(NamedTuple):
    """The contents of a users file."""

    users: Mapping[str, User]
    quotas: Mapping[str, Quota]
    roles: Mapping[str, Role] = {}
    issuers: tuple[Issuer, ...] = ()
    """The issuers of further users' tokens."""

    def quota(self, project: str) -> Quota:
        return self.quotas.get(project) or self.quotas.get("*") or Quota()

    def by_certificate(self, names: tuple[str, ...]) -> User | None:
        """Return the user who has one of a certificate's names."""
        return next((user for user in self.users.values() if not set(names).isdisjoint(user.certificates)), None)


def load(data: bytes) -> Users:
    """Return the contents of a users file; raise UsersError for the first error."""
    try:
        content = tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise UsersError("it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at .*\)", str(error))  # the rest of the text may show part of the file
        raise UsersError(f"it is not TOML {place[0] if place else ''}".strip()) from None
    _check_keys(content, ("roles", "users", "quotas", "issuers"), "the users file")
    roles = {name: _role(name, table) for name, table in _tables(content, "roles").items()}
    users = {name: _user(name, table, roles) for name, table in _tables(content, "users").items()}
    issuers = _issuers(content.get("issuers", []), users)
    if not users and not issuers:
        raise UsersError("no users: add a table [users.NAME]")
    _check_certificates(users)
    quotas = {name: _quota(name, table) for name, table in _tables(content, "quotas").items()}
    return Users(users, quotas, roles, issuers)


def _issuers(tables: object, users: Mapping[str, User]) -> tuple[Issuer, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsersError("issuers: expected tables, as in [[issuers]]")
    found: list[Issuer] = []
    for number, table in enumerate(tables, 1):
        try:
            issuer = issuer_of(table)
        except BadIssuer as error:
            raise UsersError(f"issuer {number}: {error}") from None
        if any(issuer.url == each.url or issuer.name == each.name for each in found):
            raise UsersError(f"issuer {number}: another issuer has the same url or name")
        if taken := next((name for name in users if name.startswith(f"{issuer.name}:")), None):
            raise UsersError(f"user {taken!r}: names that begin with {issuer.name}: belong to the issuer's users")
        found.append(issuer)
    return tuple(found)


def _tables(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    tables = content.get(name, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UsersError(f"{name}: expected tables, as in [{name}.NAME]")
    return tables


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in table if key not in known), None)
    if unknown is not None:
        raise UsersError(f"{where}: unknown key {unknown[:80]!r}; there are {', '.join(known)}")


def _texts(table: Mapping[str, Any], key: str, where: str) -> list[str]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsersError(f"{where}: {key}: expected a list of strings")
    return texts


def _role(name: str, table: Mapping[str, Any]) -> Role:
    where = f"role {name[:80]!r}"
    if not _ROLE.fullmatch(name):
        raise UsersError(f"{where}: bad role name: 1 to 128 characters of A-Z a-z 0-9 . _ -")
    _check_keys(table, ("grants", "rate"), where)
    texts = _texts(table, "grants", where)
    _grants(texts, "", where)
    return Role(texts, _rate(table, where))


def _rate(table: Mapping[str, Any], where: str) -> Rate:
    try:
        return parse_rate(table["rate"]) if "rate" in table else NO_RATE
    except BadRate as error:
        raise UsersError(f"{where}: {error}") from None


def _grants(texts: list[str], user: str, where: str) -> Grants:
    try:
        return Grants.parse(texts, user)
    except BadGrant as error:
        raise UsersError(f"{where}: {error}") from None


def _user(name: str, table: Mapping[str, Any], roles: Mapping[str, Role]) -> User:
    where = f"user {name[:130]!r}"
    if not _NAME.fullmatch(name):
        raise UsersError(f"{where}: bad user name: 1 to 128 characters of A-Z a-z 0-9 . _ @ : -")
    _check_keys(table, ("password", "home", "roles", "grants", "certificate", "sources", "rate"), where)
    texts = list(_texts(table, "grants", where))
    named = _texts(table, "roles", where)
    for role in named:
        if role not in roles:
            raise UsersError(f"{where}: no such role: {role[:80]!r}")
        texts += roles[role].grants
    rate = _rate(table, where) if "rate" in table else most(roles[role].rate for role in named)
    home = _checked(lambda: queue_name("any", table.get("home", DEFAULT_PROJECT)).project, where)
    sources = tuple(_network(text, where) for text in _texts(table, "sources", where))
    passwords = tuple(_texts(table, "password", where))
    certificates = tuple(_texts(table, "certificate", where))
    if name == ANONYMOUS and (not sources or passwords or certificates):
        raise UsersError(f"{where}: an anonymous user needs `sources` and can have neither password nor certificate")
    if len(passwords) > PASSWORDS_MAX or not all(_PHC.fullmatch(text) for text in passwords):
        raise UsersError(f"{where}: password: expected a list of 1 or 2 hashes from `curbstone user hash`")
    if not all(_CERTIFICATE.fullmatch(text) for text in certificates):
        raise UsersError(f"{where}: certificate: expected a list of URI:…, DNS:…, EMAIL:… or whole subjects")
    return User(name, home, _grants(texts, name, where), passwords, certificates, sources, rate=rate)


def _network(text: str, where: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        raise UsersError(f"{where}: sources: expected networks, such as 10.0.0.0/8 or ::1/128") from None


def _check_certificates(users: Mapping[str, User]) -> None:
    seen: dict[str, str] = {}
    for user in users.values():
        for name in user.certificates:
            if seen.setdefault(name, user.name) != user.name:
                raise UsersError(f"users {seen[name]!r} and {user.name!r} have the same certificate name")


def _quota(name: str, table: Mapping[str, Any]) -> Quota:
    where = f"quota {name[:80]!r}"
    if name != "*":
        _checked(lambda: queue_name("any", name), where)
    _check_keys(table, ("queues", "bytes"), where)
    queues, size = table.get("queues", QUEUES_DEFAULT), table.get("bytes", BYTES_DEFAULT)
    size = _checked(lambda: parse_size(size), where) if isinstance(size, str) else size
    for value in (queues, size):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UsersError(f'{where}: expected an integer for queues and a size such as "5GiB" for bytes')
    return Quota(queues, size)


def _checked(make: Callable[[], Any], where: str) -> Any:
    try:
        return make()
    except (BadRequest, CurbstoneError) as error:
        raise UsersError(f"{where}: {error}") from None
    except TypeError:
        raise UsersError(f"{where}: expected a string") from None
