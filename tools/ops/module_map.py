"""Print the folders and modules of the tree with the first sentence of each docstring: `make map`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("core", "stomp", "gateway", "curbstone", "client")


def summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def main() -> None:
    """Print the modules of the named folders, or of all."""
    for name in sys.argv[1:] or FOLDERS:
        for folder in sorted({path.parent for path in (ROOT / name).rglob("*.py")}):
            print(f"\n{folder.relative_to(ROOT)}/")
            for path in sorted(folder.glob("*.py")):
                print(f"  {path.name:24} {summary(path)}")


if __name__ == "__main__":
    main()
