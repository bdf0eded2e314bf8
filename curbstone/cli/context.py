"""`curbstone context add|list|use|remove`: names for servers, each with its login."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from curbstone.cli.connection import CaFileOption, CertFileOption, TokenFileOption
from curbstone.cli.contexts import Contexts
from curbstone.cli.help import Command, Group
from curbstone.cli.options import Json
from curbstone.cli.output import console, print_json, table
from curbstone.exit_codes import WRONG, CommandFailed

context = typer.Typer(name="context", cls=Group, help="Save servers and logins under names, for --context.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the context")]


@context.command("add", cls=Command)
def add(
    name: Name,
    server: Annotated[str, typer.Option("--server", metavar="URL", help="HTTP address of the server")],
    token_file: TokenFileOption = "",
    ca_file: CaFileOption = "",
    cert_file: CertFileOption = "",
) -> None:
    """Add or replace a context. The first one becomes the current context."""
    files = {"token_file": token_file, "ca_file": ca_file, "cert_file": cert_file}
    contexts = Contexts.read()
    for file in filter(None, files.values()):
        if not Path(file).is_file():
            raise CommandFailed(f"no such file: {file}", WRONG)
    # A context is used from any directory.
    absolute = {member: str(Path(file).absolute()) for member, file in files.items() if file}
    contexts.current = contexts.current or name
    contexts.contexts[name] = {"server": server} | absolute
    contexts.write()
    print(f"context {name}: {server}{' (current)' if contexts.current == name else ''}")


@context.command("list", cls=Command)
def list_contexts(as_json: Json = False) -> None:
    """List the contexts. The current one is marked with *."""
    contexts = Contexts.read()
    found = sorted(contexts.contexts.items())
    if as_json:
        print_json([{"name": name, "current": name == contexts.current} | values for name, values in found])
        return
    rows = [
        ["*" if name == contexts.current else "", name, values["server"], values.get("token_file", "")]
        for name, values in found
    ]
    console().print(table(("", "NAME", "SERVER", "TOKEN FILE"), rows) if rows else "No contexts; add one with `add`.")


@context.command("use", cls=Command)
def use(name: Name) -> None:
    """Make a context the current one, which commands use if no other server is named."""
    contexts = Contexts.read()
    server = contexts.named(name)["server"]
    contexts.current = name
    contexts.write()
    print(f"context {name}: {server} (current)")


@context.command("remove", cls=Command)
def remove(name: Name) -> None:
    """Remove a context. Its files, such as the token file, are kept."""
    contexts = Contexts.read()
    contexts.named(name)
    del contexts.contexts[name]
    if contexts.current == name:
        contexts.current = ""
    contexts.write()
    print(f"context {name} removed")
