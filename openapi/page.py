"""Both contracts as one HTML page that needs no script and fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from typing import Any

from curbstone.openapi.contract import ASYNCAPI, OPENAPI, parsed

Node = Mapping[str, Any]

_VERBS = ("get", "put", "post", "delete", "options")
_CODE = re.compile(r"`([^`]+)`")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")
_BOUNDS = (
    ("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("minLength", "length from"),
    ("maxLength", "length to"), ("minItems", "items from"), ("maxItems", "items to"), ("pattern", "pattern"),
    ("const", "always"), ("default", "default"),
)  # fmt: skip

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--link:#06c}
@media (prefers-color-scheme:dark){:root{--link:#6af}}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:62rem;padding:1rem}
a{color:var(--link)}h1{line-height:1.2}h2{border-bottom:1px solid var(--line);margin-top:3rem}
code,pre{font:14px/1.45 ui-monospace,monospace;background:var(--soft);border-radius:4px}
code{padding:.1em .3em;overflow-wrap:anywhere}pre{padding:.7rem;white-space:pre-wrap;overflow-wrap:anywhere}
section section{border:1px solid var(--line);border-radius:6px;margin:1rem 0;padding:.2rem 1rem 1rem}
h3 code{background:none;padding:0}.verb{display:inline-block;min-width:5.5em;text-transform:uppercase}
table{border-collapse:collapse;width:100%;margin:.5rem 0}
th,td{border-top:1px solid var(--line);padding:.35rem .5rem;text-align:left;vertical-align:top}
nav ul{columns:2 20rem;list-style:none;padding:0}.must{color:#c50}
"""

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}';"
    " frame-ancestors 'none'; base-uri 'none'"
)
"""Allows a browser nothing but the page's own style."""


@cache
def page() -> bytes:
    """Return the page; takes a while the first time."""
    http, sockets = parsed(OPENAPI), parsed(ASYNCAPI)
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Curbstone</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>',
        "<h1>Curbstone</h1>",
        '<p>The contracts as files: <a href="openapi.yaml">openapi.yaml</a>, <a href="openapi.json">openapi.json</a>, ',
        '<a href="asyncapi.yaml">asyncapi.yaml</a>.</p>',
        _contents(http, sockets),
        '<section id="http"><h2>HTTP</h2>',
        _prose(http["info"]["description"]),
        *(
            _operation(http, path, verb, item)
            for path, item in http["paths"].items()
            for verb in _VERBS
            if verb in item
        ),
        "</section>",
        '<section id="sockets"><h2>WebSockets and STOMP</h2>',
        _prose(sockets["info"]["description"]),
        *(_channel(sockets, name) for name in sockets["channels"]),
        "</section>",
        '<section id="schemas"><h2>Objects in JSON</h2>',
        *(_object(http, name, schema) for name, schema in http["components"]["schemas"].items()),
        "</section></body></html>",
    ]
    return "".join(parts).encode()


def list_page(title: str, items: Iterable[tuple[str, str, str]]) -> bytes:
    """Return a page of short paragraphs, each an (anchor, heading, text)."""
    sections = [
        f'<section id="{escape(anchor)}"><h3>{escape(heading)}</h3>{_prose(text)}</section>'
        for anchor, heading, text in items
    ]
    head = f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    style = f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
    return "".join([head, style, f"<h1>{escape(title)}</h1><section>", *sections, "</section></body></html>"]).encode()


def _contents(http: Node, sockets: Node) -> str:
    items = []
    for path, item in http["paths"].items():
        for verb in _VERBS:
            if verb in item:
                operation = item[verb]
                items.append(_link(operation["operationId"], f"{verb.upper()} {path}"))
    items += [_link(f"channel-{name}", channel["title"]) for name, channel in sockets["channels"].items()]
    return f"<nav><ul>{''.join(items)}</ul></nav>"


def _link(anchor: str, text: str) -> str:
    return f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>'


# ---------------------------------------------------------------- HTTP


def _operation(root: Node, path: str, verb: str, item: Node) -> str:
    operation: Node = item[verb]
    parameters = [_resolve(root, each) for each in [*item.get("parameters", ()), *operation.get("parameters", ())]]
    parts = [
        f'<section id="{escape(operation["operationId"])}">',
        f'<h3><code><span class="verb">{verb}</span>{escape(path)}</code></h3>',
        f"<p><strong>{_inline(operation['summary'])}</strong> <code>{escape(operation['operationId'])}</code></p>",
        _prose(operation.get("description", "")),
    ]
    if parameters:
        parts.append(_table("Parameter", (_parameter(root, each) for each in parameters)))
    if "requestBody" in operation:
        body = _resolve(root, operation["requestBody"])
        must = "must be there" if body.get("required") else "may be missing"
        parts.append(f"<h4>Body</h4><p>It {must}. {_inline(body.get('description', ''))}</p>{_content(root, body)}")
    answers = (_answer(root, status, answer) for status, answer in operation["responses"].items())
    parts.append(_table("Answer", answers))
    return "".join([*parts, "</section>"])


def _parameter(root: Node, parameter: Node) -> tuple[str, str]:
    must = ' <span class="must">required</span>' if parameter.get("required") else ""
    name = f"<code>{escape(parameter['name'])}</code> in {escape(parameter['in'])}{must}"
    return name, f"{_inline(parameter.get('description', ''))}<br>{_kind(root, parameter['schema'])}"


def _answer(root: Node, status: str, answer: Node) -> tuple[str, str]:
    answer = _resolve(root, answer)
    headers = []
    for name, header in answer.get("headers", {}).items():
        header = _resolve(root, header)
        headers.append((f"<code>{escape(name)}</code>", _inline(header.get("description", ""))))
    return f"<code>{escape(status)}</code>", "".join(
        [_inline(answer["description"]), _table("Header", headers) if headers else "", _content(root, answer)]
    )


def _content(root: Node, holder: Node) -> str:
    parts = []
    for media, content in holder.get("content", {}).items():
        parts.append(f"<p><code>{escape(media)}</code> {_kind(root, content.get('schema', {}))}</p>")
        for example in content.get("examples", {}).values():
            parts.append(_example(example["value"]))
    return "".join(parts)


def _example(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return f"<pre>{escape(text)}</pre>"


# ---------------------------------------------------------------- WebSockets and STOMP


def _channel(root: Node, name: str) -> str:
    channel: Node = root["channels"][name]
    parts = [
        f'<section id="channel-{escape(name)}"><h3>{escape(channel["title"])}</h3>',
        f"<p><code>{escape(channel['address'])}</code></p>",
        _prose(channel["description"]),
    ]
    query = channel.get("bindings", {}).get("ws", {}).get("query")
    if query:
        parts.append(f"<h4>Query</h4>{_fields(root, query)}")
    for operation in root["operations"].values():
        if _resolve(root, operation["channel"]) is channel:
            way = "To the server" if operation["action"] == "receive" else "From the server"
            parts.append(f"<h4>{way}</h4>")
            parts += [_message(root, each) for each in operation["messages"]]
            parts += [_message(root, each) for each in operation.get("reply", {}).get("messages", ())]
    return "".join([*parts, "</section>"])


def _message(root: Node, reference: Node) -> str:
    message = _resolve(root, reference)
    parts = [f"<p><strong>{escape(message['title'])}</strong>: {_inline(message.get('summary', ''))}</p>"]
    headers = message.get("headers")
    if headers:
        parts.append(_fields(root, headers))
    for schema in message["payload"].get("allOf", [message["payload"]]):
        parts.append(_fields(root, _resolve(root, schema)))
    parts += [_example(example["payload"]) for example in message.get("examples", ())]
    return "".join(parts)


# ---------------------------------------------------------------- schemas


def _object(root: Node, name: str, schema: Node) -> str:
    return "".join(
        [
            f'<section id="schema-{escape(name)}"><h3>{escape(name)}</h3>',
            f"<p>{_kind(root, schema)} {_inline(schema.get('description', ''))}</p>",
            _fields(root, schema),
            "</section>",
        ]
    )


def _fields(root: Node, schema: Node) -> str:
    required = schema.get("required", ())
    rows = []
    for name, field in schema.get("properties", {}).items():
        must = ' <span class="must">required</span>' if name in required else ""
        rows.append((f"<code>{escape(name)}</code>{must}", _field(root, field)))
    for pattern, field in schema.get("patternProperties", {}).items():
        rows.append((f"names like <code>{escape(pattern)}</code>", _field(root, field)))
    return _table("Field", rows) if rows else ""


def _field(root: Node, schema: Node) -> str:
    return f"{_kind(root, schema)} {_inline(schema.get('description', ''))}"


def _kind(root: Node, schema: Node) -> str:
    """Return a schema in a few words, with links to those that have a name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#schema-{escape(name)}">{escape(name)}</a>'
    if "oneOf" in schema:
        return " or ".join(_kind(root, each) for each in schema["oneOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(root, schema.get('items', {}))}{_limits(schema)}"
    kinds = schema.get("type", "anything")
    words = " or ".join([kinds] if isinstance(kinds, str) else kinds)
    if "enum" in schema:
        words = "one of " + " ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    return words + _limits(schema)


def _limits(schema: Node) -> str:
    found = [f"{word} <code>{escape(str(schema[key]))}</code>" for key, word in _BOUNDS if key in schema]
    return f" ({', '.join(found)})" if found else ""


def _resolve(root: Node, node: Node) -> Node:
    while "$ref" in node:
        target: Any = root
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        node = target
    return node


# ---------------------------------------------------------------- text


def _table(head: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{left}</td><td>{right}</td></tr>" for left, right in rows)
    return f"<table><tr><th>{head}</th><th></th></tr>{body}</table>"


def _prose(text: str) -> str:
    return "".join(f"<p>{_inline(paragraph)}</p>" for paragraph in text.split("\n\n") if paragraph.strip())


def _inline(text: str) -> str:
    return _STRONG.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", escape(text.strip(), quote=False)))
