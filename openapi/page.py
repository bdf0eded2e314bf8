"""A page of short paragraphs with anchors, as HTML that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from html import escape

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:62rem;padding:1rem}
code{font:14px/1.45 ui-monospace,monospace;background:#8881;border-radius:4px;padding:.1em .3em;overflow-wrap:anywhere}
section section{border:1px solid #8884;border-radius:6px;margin:1rem 0;padding:.2rem 1rem 1rem}
"""
_CODE = re.compile(r"`([^`]+)`")

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}';"
    " img-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Allows only the page's own style."""


def list_page(title: str, items: Iterable[tuple[str, str, str]]) -> bytes:
    """Return a page of short paragraphs, each an (anchor, heading, text); what is `in backquotes` is code."""
    sections = [
        f'<section id="{escape(anchor)}"><h3>{escape(heading)}</h3>{_paragraphs(text)}</section>'
        for anchor, heading, text in items
    ]
    head = f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    style = f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
    return "".join([head, style, f"<h1>{escape(title)}</h1><section>", *sections, "</section></body></html>"]).encode()


def _paragraphs(text: str) -> str:
    parts = (_CODE.sub(r"<code>\1</code>", escape(part, quote=False)) for part in text.strip().split("\n\n"))
    return "".join(f"<p>{part}</p>" for part in parts)
