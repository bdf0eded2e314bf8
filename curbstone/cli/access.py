"""`curbstone access init|check|explain` and `curbstone user hash`: users files and passwords.

These commands work on files alone; `curbstone token` asks a running server. None takes a secret on the command line.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from curbstone.cli.help import Command, Group
from curbstone.exit_codes import DAMAGED, FAILED, WRONG, CommandFailed

if TYPE_CHECKING:
    from curbstone.access.rate_limit import Rate
    from curbstone.access.rights import Grant, Grants
    from curbstone.access.users import Users

access = typer.Typer(name="access", cls=Group, help="Create a users file, check it, or show what it allows.")
user = typer.Typer(name="user", cls=Group, help="Hash the password of a user for a users file.")

ADMIN = "admin"
_START = """\
# Who may do what on this server. Described in docs/security.md; `curbstone access check` reads it as the server does.

[users.{name}]
grants = ["admin server"]
"""

UsersFile = Annotated[Path, typer.Argument(metavar="FILE", help="The users file, as for serve --users")]


@access.command(cls=Command)
def init(
    users: Annotated[Path, typer.Option("--users", metavar="FILE", help="The users file to create")] = Path(
        "users.toml"
    ),
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The data directory of the server")] = Path(
        "curbstone-data"
    ),
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The name of the first admin")] = ADMIN,
) -> None:
    """Create a users file with one admin, and print a token for the admin.

    The token is shown only once. No server may be running on the data directory.
    """
    from curbstone.access import files, tokens
    from curbstone.access.users import UsersError, load
    from curbstone.core.disk import OsDisk

    content = _START.format(name=f'"{name}"' if not name.replace("-", "").replace("_", "").isalnum() else name).encode()
    try:
        load(content)
    except UsersError as error:
        raise CommandFailed(str(error), WRONG) from None
    disk = OsDisk(data)
    try:
        files.create(users, content)
        known = tokens.read(data)
        secret, token = tokens.new_token(
            name, time.time_ns() // 1_000_000, grants=None, expires_ms=0, label="made by access init"
        )
        tokens.write(disk, [*known.values(), token])
    except FileExistsError:
        raise CommandFailed(f"{users} exists already; nothing was changed", FAILED) from None
    except OSError as error:
        raise CommandFailed(f"can't write {error.filename or users}: {error.strerror}", FAILED) from None
    finally:
        disk.close()
    print(f"{users} created, with the user {name}, who may do everything. Its token, which is shown only once:\n")
    print(secret)
    print(f"\nStart the server with --users {users} --data {data}, and keep the token in a file:")
    print("    curbstone --token-file FILE queues")


@access.command(cls=Command)
def check(users: UsersFile) -> int:
    """Read a users file as the server does, and print who may do what.

    The exit code is 6 if the server would refuse the file.
    """
    found = _load(users)
    if isinstance(found, str):
        print(found, file=sys.stderr)
        return DAMAGED
    for each in found.users.values():
        ways = [*(["password"] if each.passwords else []), *each.certificates]
        places = ", ".join(map(str, each.sources)) or "anywhere"
        print(f"{each.name}  (home {each.home}; from {places}; {', '.join(ways) or 'tokens only'})")
        _print_grants(each.grants)
        _print_rate(each.rate)
    for issuer in found.issuers:
        whose = f"roles by the claim {issuer.roles_claim}, at most" if issuer.roles_claim else "all its users have"
        print(f"issuer {issuer.name}  ({issuer.url}; audience {issuer.audience}; home {issuer.home}; {whose})")
        _print_grants(issuer.ceiling(""))
        _print_rate(issuer.rate)
    for project, quota in found.quotas.items():
        print(f"quota {project}  {quota.queues} queues, {quota.bytes} bytes of caps")
    return 0


@access.command(cls=Command)
def explain(
    users: UsersFile,
    name: Annotated[str, typer.Argument(metavar="USER")],
    right: Annotated[
        str, typer.Argument(metavar="RIGHT", help="send, receive, peek, manage, metrics, admin or replicate")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="project/queue, topic:project/event or server")],
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="A role that the JWT of an issuer's user names; repeatable"),
    ] = None,
) -> int:
    """Show whether a user has a right, by which grants, and its rate limits.

    The exit code is 1 if the user does not have the right. Write a user of an issuer as `{issuer}:{name}`, and give
    the roles that its token would name with --role.
    """
    from curbstone.access.rights import BadGrant, Right, parse_grant

    found = _load(users)
    if isinstance(found, str):
        raise CommandFailed(found, DAMAGED)
    layers = _layers(found, name, role or [])
    if not layers:
        raise CommandFailed(f"{users} has no user {name!r}", WRONG)
    try:
        asked = parse_grant(f"{right} {target}")
    except BadGrant as error:
        raise CommandFailed(str(error), WRONG) from None
    if any("*" in part for part in asked.parts):
        raise CommandFailed("expected one queue, one topic or the server, without *", WRONG)
    given = [[grant for grant in grants.all if _gives(grant, asked)] for grants in layers]
    may = all(given)
    print(f"{name} {'may' if may else 'may not'} {right} {target}")
    for word, grants in zip(("by", "and its issuer's"), given, strict=False):
        for grant in grants if may else []:
            print(f"    {word}: {_rights(grant.rights)} {_pattern(grant.kind, grant.parts)}")
    if may and asked.rights & Right.SEND:
        _print_rate(_rate(found, name, role or []))
    return 0 if may else FAILED


@user.command("hash", cls=Command)
def hash_password() -> None:
    """Read a password, and print its hash for a users file.

    On a terminal the password is asked for twice. Otherwise it is read from stdin.
    """
    from curbstone.access import passwords

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    try:
        print(passwords.hash_password(password))
    except ValueError as error:
        raise CommandFailed(str(error), WRONG) from None


def _load(path: Path) -> Users | str:
    """Return the users of a users file, or its error."""
    from curbstone.access import files
    from curbstone.access.users import UsersError, load

    try:
        return load(files.read_trusted(path))
    except UsersError as error:
        return f"{path}: {error}"
    except OSError as error:
        return f"{path}: {error.strerror}"


def _layers(users: Users, name: str, roles: list[str]) -> list[Grants]:
    """Return the layers of grants that a user has; a right must be in each of them. Empty if there is no such user."""
    from curbstone.access.jwt_users import roles_of

    if name in users.users:
        return [users.users[name].grants]
    issuer = next((each for each in users.issuers if name.startswith(f"{each.name}:")), None)
    return [roles_of(issuer, name, tuple(roles), users), issuer.ceiling(name)] if issuer is not None else []


def _rate(users: Users, name: str, roles: list[str]) -> Rate:
    """Return the rate limit of a user."""
    from curbstone.access.jwt_users import rate_of

    if name in users.users:
        return users.users[name].rate
    issuer = next(each for each in users.issuers if name.startswith(f"{each.name}:"))
    return rate_of(issuer, tuple(roles), users)


def _gives(grant: Grant, asked: Grant) -> bool:
    """Return whether a grant includes everything that is asked for."""
    from curbstone.access.rights import Right

    if grant.rights & Right.ADMIN:
        return True
    return grant.kind == asked.kind and grant.rights & asked.rights == asked.rights and grant.covers(asked.parts)


def _print_grants(grants: Grants) -> None:
    for grant in grants.all:
        print(f"    {_rights(grant.rights):32} {_pattern(grant.kind, grant.parts)}")


def _print_rate(rate: Rate) -> None:
    if any(rate):
        print(f"    at most {rate}")


def _rights(rights: int) -> str:
    from curbstone.access.rights import Right

    return ",".join(right.word for right in Right if rights & right)


def _pattern(kind: str, parts: tuple[str, ...]) -> str:
    return ("topic:" if kind == "topic" else "") + "/".join(parts)
