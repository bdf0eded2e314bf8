"""A hook of mkdocs: in the site, links to files outside of docs/ lead to the files in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_more: object) -> str:
    """Replace each link to a file outside of docs/ by the file's name. A missing file ends the build."""

    def named(match: re.Match[str]) -> str:
        text, path = match[1], match[2]
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_path} links to ../{path}, which is not there")
        return f"{text} (`{path}`)"

    return _OUTSIDE.sub(named, markdown)
