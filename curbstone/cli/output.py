"""The output of commands: tables and progress on a terminal, only data in a pipe.

Data are written to stdout, progress to stderr if that is a terminal. Text from messages is shown on a terminal without
control characters, so that an escape sequence in a message can't reach the terminal. rich is imported only where it is
used, because that is slow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
PIPE_WIDTH = 1000


def console() -> Console:
    """Return the console for stdout. In a pipe, lines are neither cut nor wrapped."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", *, header: bool = True) -> Table:
    """Return a table. Numbers are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    shown = [[value if isinstance(value, str) else f"{value:,}" for value in row] for row in rows]
    numeric = [all(_is_number(row[place]) for row in shown) for place in range(len(columns))]
    grid = Table(title=title or None, box=None, show_header=header, header_style="bold", pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        grid.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in shown:
        grid.add_row(*[Text(printable(value), _style(name, value)) for name, value in zip(columns, row, strict=True)])
    return grid


def _style(column: str, value: str) -> str:
    """Return red for problems of a queue, which are in a column without a name."""
    return "red" if not column and value in ("full", "damaged") else ""


def counted(count: int, what: str, plural: str = "") -> str:
    """Return a count of things, as in `1 queue` and `2 queues`. Without `plural`, that is `what` and an s."""
    return f"{count} {what if count == 1 else plural or what + 's'}"


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json_text(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def json_text(value: Any, **style: Any) -> str:
    """Return `json.dumps(value, **style)`, but with escapes only for control characters and other invisible ones."""
    text = json.dumps(value, ensure_ascii=False, **style)
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text])


def print_body(body: bytes) -> None:
    """Print a message's body and a line feed: unchanged in a pipe, without control characters on a terminal."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        body = shown(body.decode("utf-8", "replace")).encode("utf-8", "replace")
    sys.stdout.buffer.write(body + b"\n")
    sys.stdout.buffer.flush()


def shown(text: str) -> str:
    """Return text for stdout: unchanged in a pipe, without control characters on a terminal."""
    return printable(text, "\n\t") if sys.stdout.isatty() else text


def printable(text: str, kept: str = "") -> str:
    """Return the text with control characters and other invisible characters, except those in `kept`, as escapes."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text])


def size(number: float) -> str:
    """Return a number of bytes as text for people."""
    for unit in UNITS[:-1]:
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {UNITS[-1]}"


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show the progress of a long operation. Yield a function to call with the number of items just done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    err = Console(stderr=True)
    if not err.is_terminal:
        yield lambda _count: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda count: bar.advance(task, count)


def note(text: str) -> None:
    """Print a remark to stderr, if that is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def _is_number(text: str) -> bool:
    return bool(text) and (text[0].isdigit() or text == "-")
