"""The form in which the requested columns travel from the driver to executors: names, and whether they may be null."""

from __future__ import annotations

Columns = tuple[tuple[str, bool], ...]


def names_of(columns: Columns) -> set[str]:
    return {name for name, _ in columns}
