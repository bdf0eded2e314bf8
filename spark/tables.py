"""Tables of the report's page as HTML, which a click on a heading sorts."""

from __future__ import annotations

from collections.abc import Sequence

Cell = str | tuple[str, float]
"""A cell as HTML, with the number that it is sorted by where it is one."""


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table; where a row's first cell names a queue, the page's box can leave it out.

    Numbers stand on the right of their column, text on the left.
    """
    is_text = [all(isinstance(row[place], str) for row in rows) for place in range(len(heads))]
    head = "".join(
        f'<th class="text">{name}</th>' if text else f"<th>{name}</th>"
        for name, text in zip(heads, is_text, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, cells)) + "</tr>" for cells in rows)
    return f'<table class="sort"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(cell: Cell) -> str:
    return f"<td>{cell}</td>" if isinstance(cell, str) else f'<td data-v="{cell[1]:g}">{cell[0]}</td>'


def number(count: int, nothing: str = "0") -> Cell:
    return (f"{count:,}" if count else nothing, count)


def beside(count: int, earlier: int | None) -> Cell:
    """Return a number with how it differs from the one before, None where there is none to compare with."""
    shown = f"{count:,}"
    if earlier is not None and count != earlier:
        change = f"{(count - earlier) / earlier:+.0%}" if earlier and count < 10 * earlier else f"from {earlier:,}"
        shown += f' <small class="{"up" if count > earlier else "down"}">{change}</small>'
    return shown, count
