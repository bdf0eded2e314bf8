"""The format of help: plain text, commands in groups, full summaries, and an example for each command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from curbstone.cli.examples import EXAMPLES

EXIT_CODES = (
    "Exit codes: 0 done; 1 the server refused, or can't do it now; 2 the command line or a setting is wrong; 3 the"
    " server can't be reached; 4 there is no such queue; 5 there was no message; 6 damage was found; 7 another server"
    " has replaced this one; 130 interrupted; 143 ended by SIGTERM."
)


def summary_of(text: str) -> str:
    """Return the first sentence of a help text, without its end."""
    return re.split(r"(?<=[.:;])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".:;")


class Command(TyperCommand):
    """A command whose help has the usual names for values, and examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line. Required arguments are written without braces."""
        return [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, with QUEUE and FILE in place of the names of Python's types."""
        records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                value = "" if param.param_type_name == "argument" else f" {param.metavar or param.name.upper()}"
                records[param.param_type_name].append((re.sub(r" <[^>]*>$", value, record[0]), record[1]))
        for kind, found in records.items():
            if found:
                with formatter.section(f"{kind.title()}s"):
                    formatter.write_dl(found)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples of the command."""
        _write_examples(ctx, formatter)


class Group(TyperGroup):
    """A command with subcommands: their whole summaries, in the sections of `panels` if there are any."""

    panels: Mapping[str, Iterable[str]] = {}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. If there is none of this name, suggest the groups that have one."""
        try:
            return super().resolve_command(ctx, args)
        except TyperException as error:
            inside = [name for name in self.list_commands(ctx) if args[0] in _commands_of(self.get_command(ctx, name))]
            if inside:
                those = " or ".join([f"'{ctx.command_path} {name} {args[0]}'" for name in inside])
                error.message = f"No such command '{args[0]}'. Did you mean {those}?"
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands and their summaries, section by section."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for title, inside in (self.panels or {"Commands": names}).items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(width), summary_of(getattr(self.get_command(ctx, name), "help", "") or ""))
                        for name in inside
                    ]
                )

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples of the commands, and for the program the exit codes."""
        _write_examples(ctx, formatter)
        super().format_epilog(ctx, formatter)


def _commands_of(command: Any) -> Iterable[str]:
    return command.commands if isinstance(command, TyperGroup) else ()


def _write_examples(ctx: Any, formatter: Any) -> None:
    examples = EXAMPLES.get(" ".join(ctx.command_path.split()[1:]), ())
    if examples:
        with formatter.section("Examples"):
            for line in examples:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
