"""Writes the tables and numbers of the code into docs/: `python -m tools.ops.docs_tables`.

A page has a table between two comments, `<!-- table: NAME -->` and `<!-- end of table -->`. `TABLES` has the function
for each table. tests/repo/test_docs.py checks that the pages are up to date.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from curbstone.gateway.http import problem_types
from curbstone.stomp import unsupported
from tools.ops import docs_limits

DOCS = Path(__file__).resolve().parents[2] / "docs"
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n\n).*?(\n<!-- end of table -->)", re.S)


def table(*columns: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(
        ["|" + "|".join([f" {cell} " if cell != "---" else cell for cell in line]) + "|\n" for line in lines]
    )


def stomp_headers() -> str:
    """The headers of other brokers that STOMP refuses."""
    rows = [
        (f"`{each.name}:{each.value}`", ", ".join(each.commands), each.where, each.rule)
        for each in unsupported.UNSUPPORTED
    ]
    return table("header", "on", "for", "ERROR", rows=rows)


def stomp_destinations() -> str:
    """The destinations of other brokers that STOMP refuses."""
    return table("destination", "ERROR", rows=[(shape.shown, shape.rule) for shape in unsupported.SHAPES])


def problems() -> str:
    """The types of problems."""
    rows = [(f"`{kind.name}`", str(kind.status), kind.text) for kind in problem_types.TYPES]
    return table("type", "status", "means", rows=rows)


TABLES: dict[str, Callable[[], str]] = {
    "problems": problems,
    "stomp-unsupported-headers": stomp_headers,
    "stomp-unsupported-destinations": stomp_destinations,
}


def updated(name: str, page: str) -> str:
    """Return the text of a page with its tables and numbers taken from the code."""
    page = _TABLE.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], page)
    return docs_limits.updated(page) if name == "limits.md" else page


def main() -> None:
    """Write the tables of all pages."""
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (new := updated(path.name, text)) != text:
            path.write_text(new, encoding="utf-8")
            print(path.name)


if __name__ == "__main__":
    main()
