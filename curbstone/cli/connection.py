"""The address of the server, and the login of the commands.

A setting is taken from the first of these that has it:

1. its option, before or after the command;
2. the context named by `--context` or CURBSTONE_CONTEXT, which replaces all the variables below;
3. its environment variable;
4. the current context (`curbstone context use`), unless an option or a variable names the server.

So the token of a context is never sent to a different server, unless an option says so.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from curbstone.cli.contexts import Contexts
from curbstone.cli.parameters import add_parameters
from curbstone.exit_codes import WRONG, CommandFailed

DEFAULT_SERVER = "http://127.0.0.1:8080"

SERVER_VARIABLE, CONTEXT_VARIABLE = "CURBSTONE_SERVER", "CURBSTONE_CONTEXT"
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "CURBSTONE_TOKEN", "CURBSTONE_TOKEN_FILE"
"""A token for a server that has users, or a file with it; the file has precedence.

No option takes a secret, because other users of the machine can read a command line.
"""
CA_FILE_VARIABLE, CERT_FILE_VARIABLE = "CURBSTONE_CA_FILE", "CURBSTONE_CERT_FILE"
VARIABLES = {
    "server": SERVER_VARIABLE,
    "token_file": TOKEN_FILE_VARIABLE,
    "ca_file": CA_FILE_VARIABLE,
    "cert_file": CERT_FILE_VARIABLE,
}

_HELP = {
    "server": (
        "URL",
        f"HTTP address of the server, or several with commas (${SERVER_VARIABLE}; default {DEFAULT_SERVER})",
    ),
    "context": ("NAME", f"Use the server and the login of this context (${CONTEXT_VARIABLE}; see curbstone context)"),
    "token_file": ("FILE", f"File with a token, for a server that has users (${TOKEN_FILE_VARIABLE})"),
    "ca_file": ("FILE", f"Certificates of the authority that signed the server's (${CA_FILE_VARIABLE})"),
    "cert_file": ("FILE", f"File with the client certificate to log in with, and its key (${CERT_FILE_VARIABLE})"),
}

_before_command: dict[str, str] = {}
"""The options that stand before the command."""


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the options of the connection added; it is called once they are in effect.

    The help of a command shows only --server of them; that of the whole program shows all.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        connect({name: value for name in _HELP if (value := options.pop(name))})
        return function(*args, **options)

    added = {name: _option(name, hidden=name != "server") for name in _HELP}
    return add_parameters(call, function, added, "")


def before_command(**options: str) -> None:
    """Store the options given before the command."""
    _before_command.update({name: value for name, value in options.items() if value})


def _option(name: str, hidden: bool = False) -> Any:
    metavar, text = _HELP[name]
    return Annotated[
        str,
        typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=text, hidden=hidden, show_default=False),
    ]


ServerOption, ContextOption, TokenFileOption, CaFileOption, CertFileOption = map(_option, _HELP)


def connect(options: Mapping[str, str] | None = None) -> None:
    """Write the settings into the environment, from where connections read them.

    `options` are those after the command; they have precedence over those before it.

    Raise CommandFailed if the context does not exist, or the file of the contexts can't be read.
    """
    settings = _settings(_before_command | dict(options or {}))
    for name, variable in VARIABLES.items():
        os.environ.pop(variable, None)
        if name in settings:
            os.environ[variable] = settings[name]


def _settings(options: Mapping[str, str]) -> dict[str, str]:
    given = {name: value for name, value in options.items() if name != "context"}
    found = {name: os.environ[variable] for name, variable in VARIABLES.items() if os.environ.get(variable)}
    if context := options.get("context") or os.environ.get(CONTEXT_VARIABLE):
        os.environ.pop(TOKEN_VARIABLE, None)
        return Contexts.read().named(context) | given
    if "server" not in given | found:
        current = Contexts.read().in_use()
        if TOKEN_VARIABLE in os.environ:
            current.pop("token_file", None)
        found = current | found
    return found | given


def server_url() -> str:
    """Return the address of the server."""
    return os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER


def login() -> dict[str, str]:
    """Return the login header, if there is a token. Raise CommandFailed if the token's file can't be read."""
    token = login_token()
    return {"authorization": f"Bearer {token}"} if token else {}


def login_token() -> str | None:
    """Return the token to log in with, or None. Raise CommandFailed if its file can't be read."""
    file = os.environ.get(TOKEN_FILE_VARIABLE)
    if not file:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        with open(file, encoding="ascii") as opened:
            return opened.read().strip()
    except (OSError, ValueError) as error:
        raise CommandFailed(f"can't read the token in {file}: {error}", WRONG) from None
