"""A hook of mkdocs: adds pages from READMEs outside of docs/, and rewrites links that leave docs/."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
READMES = {"python-client.md": "client/README.md", "javascript-client.md": "client/js/README.md"}
"""Pages from files outside of docs/."""

_LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from READMEs."""
    for page, readme in READMES.items():
        files.append(File.generated(config, page, content=(ROOT / readme).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: object) -> str:
    """Point links at pages of the site, and replace other links that leave docs/ by the name of the file.

    A missing file ends the build.
    """
    folder = posixpath.dirname(READMES.get(page.file.src_path, "docs/"))

    def here(match: re.Match[str]) -> str:
        text, path, anchor = match[1], posixpath.normpath(posixpath.join(folder, match[2])), match[3] or ""
        if not (ROOT / path).exists() and path.removeprefix("docs/") not in READMES:
            raise FileNotFoundError(f"{page.file.src_path} links to {match[2]}, which does not exist")
        for name, readme in READMES.items():
            if path == readme:
                return f"[{text}]({name}{anchor})"
        if path == "README.md":
            return f"[{text}](index.md)"
        return f"[{text}]({path[5:]}{anchor})" if path.startswith("docs/") else f"{text} (`{path}`)"

    return _LINK.sub(here, markdown)
