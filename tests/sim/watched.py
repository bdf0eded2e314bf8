"""Methods of single objects of the engine, seen by a simulator. They have slots, so their class is changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

_instead: dict[tuple[int, str], tuple[object, Callable[..., Any]]] = {}
"""What is called instead, by object and name; with the object, so that no other gets its id."""
_changed: list[tuple[type, str, Callable[..., Any], Callable[..., Any]]] = []
"""The methods that were changed: as they are now, and as they were."""


def watch(part: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Have what `make` returns called instead of a method of one object; it is given that method."""
    kind = type(part)
    found = getattr(kind, name)
    original = getattr(found, "original", found)
    _instead[id(part), name] = (part, make(partial(original, part)))
    if found is original:

        def call(self: object, *args: Any, **how: Any) -> Any:
            _, of_it = _instead.get((id(self), name), (None, None))
            return of_it(*args, **how) if of_it is not None else original(self, *args, **how)

        call.original = original  # type: ignore[attr-defined]
        setattr(kind, name, call)
        _changed.append((kind, name, call, original))


def watch_nobody() -> None:
    """Forget all that was watched: the classes are as they were."""
    _instead.clear()
    while _changed:
        kind, name, call, original = _changed.pop()
        if getattr(kind, name) is call:
            setattr(kind, name, original)
