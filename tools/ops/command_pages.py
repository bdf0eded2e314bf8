"""Generates the man page and the shell completions from the command line itself: `make man`.

    python tools/ops/command_pages.py [DIRECTORY]

They are in deploy/man and deploy/completion, and packages install them. tests/repo/test_command_pages.py checks that
they match the command line. They contain no version and no date, so a release does not change them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from curbstone.cli.examples import EXAMPLES
from curbstone.cli.help import EXIT_CODES, summary_of
from curbstone.cli.main import app

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PATHS = ("FILE", "DIR", "SOURCE", "TARGET")
"""The metavars of file names."""


class Option(NamedTuple):
    """An option: its names, the metavar of its value ("" for a flag), and its help text."""

    names: tuple[str, ...]
    metavar: str
    help: str

    @property
    def is_path(self) -> bool:
        """Whether its value is a file name."""
        return self.metavar in PATHS


class Command(NamedTuple):
    """A command, or the whole program: its words, usage line, text, options, and subcommands."""

    words: tuple[str, ...]
    usage: str
    help: str
    options: tuple[Option, ...]
    commands: tuple[str, ...]
    takes_path: bool

    @property
    def summary(self) -> str:
        """The first sentence of the text."""
        return summary_of(self.help)


def commands() -> list[Command]:
    """Return all commands: first the whole program; a group precedes its commands."""
    return list(_walk(typer.main.get_command(app), ()))


def _walk(command: Any, words: tuple[str, ...]) -> Iterator[Command]:
    context = command.context_class(command, info_name=" ".join(("curbstone", *words)))
    options, arguments = [], []
    for each in command.get_params(context):
        if each.param_type_name == "argument":
            arguments.append(_argument(each))
        elif not getattr(each, "hidden", False):
            metavar = "" if each.is_flag else each.metavar or each.name.upper()
            names = sorted({*each.opts, *each.secondary_opts}, key=lambda name: (name.startswith("--"), name))
            options.append(Option(tuple(names), metavar, _help(each)))
    inside = getattr(command, "commands", {})
    usage = " ".join(("curbstone", *words, "[OPTIONS]", *(["COMMAND [ARGS]..."] if inside else arguments)))
    takes_path = any(word in PATHS for text in arguments for word in re.findall(r"[A-Z]+", text))
    yield Command(words, usage, command.help or "", tuple(options), tuple(sorted(inside)), takes_path)
    for name in sorted(inside):
        yield from _walk(inside[name], (*words, name))


def _argument(argument: Any) -> str:
    text = argument.metavar or argument.name.upper()
    text = text if argument.required or text.startswith("[") else f"[{text}]"
    return f"{text}..." if argument.nargs == -1 and not text.endswith("...") else str(text)


def _help(option: Any) -> str:
    text = " ".join((option.help or "").split())
    if not option.show_default or option.is_flag or option.default in (None, "", ()):
        return text
    return f"{text.rstrip('.')}{'. ' if text else ''}Default: {option.default}"


# --- the man page


def man_page() -> str:
    """Return the page in roff."""
    whole, *rest = commands()
    lines = [
        '.\\" Made by tools/ops/command_pages.py: change the command line, then `make man`.',
        '.TH CURBSTONE 1 "" "Curbstone"',
        ".SH NAME",
        f"curbstone \\- {_roff(whole.help.rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B curbstone",
        "[OPTIONS] COMMAND [ARGS]...",
        ".SH DESCRIPTION",
        *_paragraphs(
            "curbstone serve runs the server. The other commands call a running server over HTTP: at --server URL, at"
            " the address in CURBSTONE_SERVER, or at that of the current context, else at http://127.0.0.1:8080."
            " --server, --context, --token-file, --ca-file and --cert-file are allowed before and after the command."
            " Write a queue as queue or project/queue."
        ),
        *_option_lines(whole.options),
        ".SH COMMANDS",
    ]
    for command in rest:
        lines += [f".SS {_roff(command.usage)}", *_paragraphs(command.help), *_option_lines(command.options)]
        lines += _example_lines(EXAMPLES.get(" ".join(command.words), ()))
    lines += [
        ".SH EXIT STATUS",
        *_paragraphs(EXIT_CODES.removeprefix("Exit codes: ")),
        ".SH ENVIRONMENT",
        ".TP",
        ".B CURBSTONE_SERVER",
        "The address of the server, for the commands that call one.",
        ".TP",
        ".B CURBSTONE_CONTEXT",
        "The context, which sets the server and the login.",
        ".TP",
        ".B CURBSTONE_TOKEN_FILE",
        "File with a token for a server that has users.",
        ".TP",
        ".B CURBSTONE_*",
        _roff("Each option of serve: CURBSTONE_CAP for --cap."),
        ".SH SEE ALSO",
        _roff("/docs and /console of a running server."),
    ]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines += [".PP", _roff(" ".join(paragraph.split()))]
    return lines


def _example_lines(examples: tuple[str, ...]) -> list[str]:
    return [".PP", "Examples:", ".nf", *map(_roff, examples), ".fi"] if examples else []


def _option_lines(options: tuple[Option, ...]) -> list[str]:
    lines: list[str] = []
    for option in options:
        names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in option.names)
        value = f" \\fI{_roff(option.metavar)}\\fR" if option.metavar else ""
        lines += [".TP", names + value, _roff(option.help)]
    return lines


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return f"\\&{text}" if text.startswith((".", "'")) else text


# --- completions


def bash() -> str:
    """Return the completion for bash. It completes commands and options, and file names for values that are files."""
    steps, cases, files, values = [], [], [], []
    for command in commands():
        key = " ".join(command.words)
        names = " ".join(name for option in command.options for name in option.names)
        paths = " files=1" if command.takes_path else ""
        cases.append(f'    "{key}") words="{" ".join(command.commands)}" options="{names}"{paths} ;;')
        if command.words:
            steps.append(f'"{" ".join(command.words[:-1])} {command.words[-1]}"')
        for option in command.options:
            if option.metavar:
                (files if option.is_path else values).extend(f'"{key} {name}"' for name in option.names)
    return BASH.format(
        steps="|".join(steps), cases="\n".join(cases), files="|".join(sorted(files)), values="|".join(sorted(values))
    )


BASH = """\
# Completion of curbstone for bash. Made by tools/ops/command_pages.py.

_curbstone() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} key="" words="" options="" files="" value="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$key ${{COMP_WORDS[i]}}" in
    {steps}) key="${{key:+$key }}${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$key" in
{cases}
  esac
  case "$key ${{COMP_WORDS[COMP_CWORD - 1]}}" in
    {files}) files=1 ;;
    {values}) value=1 ;;
  esac
  if [[ -n $value ]]; then
    COMPREPLY=()
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ -n $files ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  fi
}}
complete -F _curbstone curbstone
"""


def zsh() -> str:
    """Return the completion for zsh, with the help text of each command and option."""
    cases = []
    for command in commands():
        specs = [spec for option in command.options for spec in _zsh_option(option)]
        if command.takes_path:
            specs.append("'*:file:_files'")
        if command.commands:
            specs += ["'1:command:->command'", "'*::argument:->argument'"]
        cases.append(f'    "{" ".join(command.words)}") _arguments -C {" ".join(specs)} ;;')
    inside = []
    for command in commands():
        if command.commands:
            found = [each for each in commands() if each.words[:-1] == command.words and each.words]
            listed = " ".join(_zsh_quote(f"{each.words[-1]}:{each.summary}") for each in found)
            inside.append(f'    "{" ".join(command.words)}") found=({listed}) ;;')
    return ZSH.format(cases="\n".join(cases), inside="\n".join(inside))


def _zsh_option(option: Option) -> list[str]:
    text = re.sub(r"([\[\]:])", r"\\\1", option.help)
    value = f":{option.metavar.lower()}:{'_files' if option.is_path else ''}" if option.metavar else ""
    return [_zsh_quote(f"*{name}[{text}]{value}") for name in option.names]


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


ZSH = """\
#compdef curbstone
# Completion of curbstone for zsh. Made by tools/ops/command_pages.py.

_curbstone_of() {{
  local key=$1 curcontext=$curcontext state line
  local -a found
  case "$key" in
{cases}
  esac
  case "$state" in
  command)
    case "$key" in
{inside}
    esac
    _describe command found
    ;;
  argument) _curbstone_of "${{key:+$key }}$line[1]" ;;
  esac
}}

_curbstone() {{ _curbstone_of "" }}
_curbstone "$@"
"""


def fish() -> str:
    """Return the completion for fish, with the help text of each command and option."""
    lines = ["# Completion of curbstone for fish. Made by tools/ops/command_pages.py.", "complete -c curbstone -f"]
    for command in commands():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.words)
        others = f"; and not __fish_seen_subcommand_from {' '.join(command.commands)}" if seen else ""
        here = (seen + (others if command.commands else "")) or "__fish_use_subcommand"
        for each in commands():
            if each.words and each.words[:-1] == command.words:
                lines.append(f"complete -c curbstone -n '{here}' -a {each.words[-1]} -d {_fish_quote(each.summary)}")
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else _fish_short(name) for name in option.names)
            value = f" -r{'F' if option.is_path else 'f'}" if option.metavar else ""
            lines.append(f"complete -c curbstone -n '{here}' {names}{value} -d {_fish_quote(option.help)}")
        if command.takes_path:
            lines.append(f"complete -c curbstone -n '{here}' -F")
    return "\n".join(lines) + "\n"


def _fish_short(name: str) -> str:
    return f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


FILES = {
    "man/curbstone.1": man_page,
    "completion/curbstone": bash,
    "completion/_curbstone": zsh,
    "completion/curbstone.fish": fish,
}

if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEPLOY
    for name, make in FILES.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(make(), encoding="utf-8")
