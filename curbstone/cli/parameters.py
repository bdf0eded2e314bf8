"""Adds parameters to the function of a command. Typer makes the options of a command from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints


def add_parameters(
    call: Callable[..., Any],
    function: Callable[..., Any],
    added: Mapping[str, object],
    default: object,
    without: str = "",
) -> Callable[..., Any]:
    """Return `call` with the parameters of `function`, except the one named `without`, and those in `added`."""
    signature, annotations = inspect.signature(function), get_type_hints(function, include_extras=True)
    kept = [
        each.replace(annotation=annotations[name]) for name, each in signature.parameters.items() if name != without
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    new = [inspect.Parameter(name, keyword, default=default, annotation=kind) for name, kind in added.items()]
    call.__signature__ = signature.replace(parameters=[*kept, *new])  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in (*kept, *new)}
    return call
