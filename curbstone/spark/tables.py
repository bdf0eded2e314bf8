"""HTML tables of the report's page. A click on a heading sorts them."""

from __future__ import annotations

from collections.abc import Sequence

Cell = str | tuple[str, float]
"""A cell as HTML. A cell with a number also has the number to sort by."""


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table. If the first cell of a row names a queue, the page's filter can hide the row.

    Numbers are aligned to the right, text to the left.
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
    """Return a cell with a number and its difference from the `earlier` one, which is None if there is none."""
    shown = f"{count:,}"
    if earlier is not None and count != earlier:
        change = f"{(count - earlier) / earlier:+.0%}" if earlier and count < 10 * earlier else f"from {earlier:,}"
        shown += f' <small class="{"up" if count > earlier else "down"}">{change}</small>'
    return shown, count
