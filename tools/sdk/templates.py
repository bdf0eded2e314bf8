"""Changes to the generator's templates for our Python client.

The generator accepts a folder of templates that replace its own. Ours are derived from the installed ones, so that they
fit the version of the generator. Each change names the text that it replaces; if a template lacks the text, that is an
error.

1. A body may be bytes, a string, or a dict or list for JSON; a `File` may name its type; other values raise TypeError.
   The generated code drops a body that is not a `File`, so the server would store an empty message.
2. `sync` and `asyncio` raise `ProblemError` if the server refuses; `sync_detailed` and `asyncio_detailed` do not raise.
3. `with_headers`, `with_cookies` and `with_timeout` do not change the client that they are called on.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import openapi_python_client

ORIGINALS = Path(openapi_python_client.__file__).parent / "templates"


class Change(NamedTuple):
    """A text of a template, and the text that replaces it everywhere in the template."""

    template: str
    old: str
    new: str


CHANGES = (
    # 1. Bodies.
    Change(
        "types.py.jinja",
        "from typing import BinaryIO, Generic, TypeVar, Literal, IO\n",
        "import json\nfrom typing import Any, BinaryIO, Generic, TypeVar, Literal, IO\nfrom io import BytesIO\n",
    ),
    Change(
        "types.py.jinja",
        "    mime_type: str | None = None\n",
        '''    mime_type: str | None = None

    @classmethod
    def of(cls, value: bytes | str | dict[str, Any] | list[Any]) -> "File":
        """ Return bytes unchanged, a string as UTF-8, anything else as JSON, each with its type """
        if isinstance(value, bytes):
            return cls(BytesIO(value))
        if isinstance(value, str):
            return cls(BytesIO(value.encode()), mime_type="text/plain; charset=utf-8")
        return cls(BytesIO(json.dumps(value).encode()), mime_type="application/json")

    def content(self, default_type: str) -> tuple[bytes, str]:
        """ Return the bytes and the Content-Type of a request's body; both clients of httpx take bytes """
        return self.payload.read(), self.mime_type or default_type
''',
    ),
    Change(
        "endpoint_macros.py.jinja",
        """    {% if body.prop.required %}
_kwargs["content"] = body.payload
    {% else %}
if not isinstance(body, Unset):
    _kwargs["content"] = body.payload
    {% endif %}
{% endif %}
{% endmacro %}
""",
        """    {% set assignment = '_kwargs["content"], headers["Content-Type"] = body.content("'
        + (body.content_type | in_double_quote_literal) + '")' %}
    {% if body.prop.required %}
{{ assignment }}
    {% else %}
if not isinstance(body, Unset):
    {{ assignment }}
    {% endif %}
{% endif %}
{% endmacro %}

{% macro binary_types(endpoint) %}
{% for body in endpoint.bodies if body.body_type == "content" %}bytes | str | dict[str, Any] | list[Any] | {% endfor %}
{% endmacro %}
""",
    ),
    Change(
        "endpoint_macros.py.jinja",
        "body: {{ endpoint.bodies[0].prop.get_type_string() | as_unembedded_code }}",
        "body: {{ binary_types(endpoint) }}{{ endpoint.bodies[0].prop.get_type_string() | as_unembedded_code }}",
    ),
    Change("endpoint_macros.py.jinja", "\nbody:\n", "\nbody: {{ binary_types(endpoint) }}\n"),
    Change(
        "endpoint_module.py.jinja",
        "{% if endpoint.bodies | length > 1 %}\n",
        """{% if binary_types(endpoint) | trim %}
    if isinstance(body, (bytes, str, dict, list)):
        body = File.of(body)
    if not isinstance(body, (type(UNSET), {% for body in endpoint.bodies -%}
        {{ body.prop.get_type_string(no_optional=True) | as_unembedded_code }},{% endfor %})):
        raise TypeError(f"body is of type {type(body).__name__}; it may be bytes, str, dict, list or a File")
{% endif %}
{% if endpoint.bodies | length > 1 %}
""",
    ),
    Change(
        "endpoint_module.py.jinja",
        "arguments, client, kwargs, parse_response,",
        "arguments, binary_types, client, kwargs, parse_response,",
    ),
    Change(
        "endpoint_module.py.jinja",
        """        {% else %}
        headers["Content-Type"] =""",
        """        {% elif body.body_type != "content" %}
        headers["Content-Type"] =""",
    ),
    Change(
        "endpoint_module.py.jinja",
        """    {% else %}
    headers["Content-Type"] =""",
        """    {% elif body.body_type != "content" %}
    headers["Content-Type"] =""",
    ),
    # 2. Refusals.
    Change(
        "errors.py.jinja",
        '__all__ = ["UnexpectedStatus"]',
        '''class ProblemError(Exception):
    """ Raised by `sync` and `asyncio` if the server refused: the server's problem """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.status = problem.status

        super().__init__(f"{problem.status}: {problem.message}")

__all__ = ["Problem", "ProblemError", "UnexpectedStatus"]''',
    ),
    Change(
        "errors.py.jinja",
        "class UnexpectedStatus(",
        "from .models.problem import Problem\n\nclass UnexpectedStatus(",
    ),
    Change(
        "endpoint_module.py.jinja",
        "{% set parsed_responses =",
        """{% set refuses = "Problem" in (return_string | as_unembedded_code) %}
{% set plain_string = (return_string | as_unembedded_code) | replace(" | Problem", "") | replace("Problem | ", "") %}
{% set parsed_responses =""",
    ),
    Change(
        "endpoint_module.py.jinja",
        ") -> {{ return_string | as_unembedded_code }} | None:",
        ") -> {{ plain_string }} | None:",
    ),
    Change(
        "endpoint_module.py.jinja",
        """    return sync_detailed(
        {{ kwargs(endpoint) }}
    ).parsed
""",
        """    parsed = sync_detailed(
        {{ kwargs(endpoint) }}
    ).parsed
    {% if refuses %}
    if isinstance(parsed, Problem):
        raise errors.ProblemError(parsed)
    {% endif %}
    return parsed
""",
    ),
    Change(
        "endpoint_module.py.jinja",
        """    return (await asyncio_detailed(
        {{ kwargs(endpoint) }}
    )).parsed
""",
        """    parsed = (await asyncio_detailed(
        {{ kwargs(endpoint) }}
    )).parsed
    {% if refuses %}
    if isinstance(parsed, Problem):
        raise errors.ProblemError(parsed)
    {% endif %}
    return parsed
""",
    ),
    Change(
        "endpoint_macros.py.jinja",
        "Raises:\n",
        "Raises:\n{% if not is_detailed %}\n    errors.ProblemError: If the server refused.\n{% endif %}\n",
    ),
    # 3. Clients.
    *(
        Change(
            "client.py.jinja",
            f"""        if self._client is not None:
            self._client.{statement}
        if self._async_client is not None:
            self._async_client.{statement}
""",
            "",
        )
        for statement in ("headers.update(headers)", "cookies.update(cookies)", "timeout = timeout")
    ),
)


def write(folder: Path) -> None:
    """Write the changed templates, and the README of this folder, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, str] = {}
    for change in CHANGES:
        text = texts.get(change.template) or (ORIGINALS / change.template).read_text(encoding="utf-8")
        if change.old not in text:
            raise SystemExit(f"the generator's {change.template} has changed and no longer contains:\n{change.old}")
        texts[change.template] = text.replace(change.old, change.new)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    readme = Path(__file__).with_name("python") / "README.md"
    (folder / "README.md.jinja").write_text(
        f"{{% raw %}}{readme.read_text(encoding='utf-8')}{{% endraw %}}", encoding="utf-8"
    )
