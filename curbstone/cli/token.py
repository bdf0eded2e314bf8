"""`curbstone token create|list|revoke`: API tokens of a running server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from curbstone.cli.client import Client
from curbstone.cli.connection import with_options
from curbstone.cli.help import Command, Group
from curbstone.cli.options import Json
from curbstone.cli.output import counted, print_json

token = typer.Typer(name="token", cls=Group, help="Create, list and revoke API tokens of a running server.")


@token.command(cls=Command)
@with_options
def create(
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="The user of the token. Default: your own user")
    ] = "",
    grants: Annotated[
        list[str] | None, typer.Option("--grant", metavar="GRANT", help="Limit the token to this grant; repeatable")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="How long the token is valid; 0 means forever")
    ] = 0,
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="A note about the purpose of the token")] = "",
    as_json: Json = False,
) -> None:
    """Create a token and print it. It is not shown again."""
    body: dict[str, Any] = {"label": label}
    if user:
        body["user"] = user
    if grants:
        body["grants"] = grants
    if seconds:
        body["seconds"] = seconds
    with Client() as client:
        made = client.call("POST", "/v2/tokens", json=body).json()
    if as_json:
        print_json(made)
    else:
        print(made["token"])


@token.command("list", cls=Command)
@with_options
def list_tokens(as_json: Json = False) -> None:
    """List your tokens, without their secrets. With the right admin, list all tokens."""
    with Client() as client:
        found = client.call("GET", "/v2/tokens").json()["tokens"]
    if as_json:
        print_json(found)
        return
    for each in found:
        expires, used = _day(each.get("expires")) or "never", _day(each.get("used")) or "never"
        print(f"{each['id']}  {each['user']:20} expires {expires:10}  used {used:10}  {each['label']}")


@token.command(cls=Command)
@with_options
def revoke(
    identifier: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The id of the token, as `list` shows it: the part after cbs_", show_default=False
        ),
    ] = "",
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="Revoke all tokens of this user, instead of the one with ID")
    ] = "",
) -> None:
    """Revoke a token, and all tokens created with it.

    Connections that logged in with one of them are closed at once.
    """
    if bool(identifier) == bool(user):
        raise typer.BadParameter("give the id of a token, or a user with --user")
    with Client() as client:
        if identifier:
            client.call("DELETE", f"/v2/tokens/{identifier}")
            print(f"token {identifier} revoked")
        else:
            revoked = client.call("DELETE", "/v2/tokens", params={"user": user}).json()["revoked"]
            print(f"{counted(revoked, 'token')} of {user} revoked")


def _day(ms: int | None) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d") if ms else ""
