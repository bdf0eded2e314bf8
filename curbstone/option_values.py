"""Parses the values of options: strings of the command line and the environment, or values of a TOML file.

Each function raises ValueError, or an error of the engine's parsers, with the value and the rule that it breaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from curbstone.core.names import queue_name
from curbstone.core.options import SyncMode, parse_size
from curbstone.net.address import Address, parse_address
from curbstone.net.peer import Networks
from curbstone.rabbit.amqp.address import Address as ClusterAddress
from curbstone.rabbit.amqp.address import parse as parse_cluster


class Kind(NamedTuple):
    """The type of an option's value."""

    metavar: str
    """The placeholder for a value in a help text; empty for an option without a value."""
    read: Callable[[object], Any]
    """Parses a value, or raises ValueError."""
    show: Callable[[Any], str] = str
    """Formats a value."""
    is_list: bool = False
    """Whether the option can be repeated."""


_FLAGS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def _text(value: object) -> str:
    """Parse a string."""
    if not isinstance(value, str):
        raise ValueError(f"bad value {value!r}: expected a string in quotes")
    return value


def _path(value: object) -> Path:
    """Parse a path."""
    if value == "":
        raise ValueError("an empty path; the current directory is .")
    return value if isinstance(value, Path) else Path(_text(value))


def _flag(value: object) -> bool:
    """Parse a boolean, given as such or as true, yes, on, 1, false, no, off or 0."""
    found = value if isinstance(value, bool) else _FLAGS.get(str(value).lower())
    if found is None:
        raise ValueError(f"bad value {value!r}: expected true or false")
    return found


def _texts(value: object) -> tuple[str, ...]:
    """Parse a list of strings, or a string with commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise ValueError(f"bad value {value!r}: expected a string in quotes, or a list of them")


def one_of(metavar: str, *allowed: str) -> Kind:
    """Return the type of a value that is one of these words."""

    def read(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"bad value {value!r}: expected {', '.join(allowed[:-1])} or {allowed[-1]}")
        return str(value)

    return Kind(metavar, read)


def integer(low: int, high: int) -> Kind:
    """Return the type of an integer from `low` to `high`."""

    def read(value: object) -> int:
        try:
            found = int(value) if isinstance(value, (int, str)) else None
        except ValueError:
            found = None
        if found is None or not low <= found <= high:
            raise ValueError(f"bad value {value!r}: expected an integer from {low} to {high}")
        return found

    return Kind("N", read)


def seconds(low: float, high: float) -> Kind:
    """Return the type of a number of seconds from `low` to `high`."""

    def read(value: object) -> float:
        try:
            found = float(value) if isinstance(value, (int, float, str)) else None
        except ValueError:
            found = None
        if found is None or not low <= found <= high:
            raise ValueError(f"bad value {value!r}: expected a number of seconds from {low:g} to {high:g}")
        return found

    return Kind("SECONDS", read, "{:g}".format)


def seconds_or_never(low: float, high: float) -> Kind:
    """Return the type of a number of seconds from `low` to `high`, or never, which is None."""
    some = seconds(low, high)

    def read(value: object) -> float | None:
        try:
            return None if value == "never" else some.read(value)
        except ValueError as error:
            raise ValueError(f"{error}, or never") from None

    return Kind("SECONDS", read, lambda value: "never" if value is None else f"{value:g}")


def size(low: int, high: int) -> Kind:
    """Return the type of a size from `low` to `high` bytes, such as 10MiB."""

    def read(value: object) -> int:
        found = parse_size(value) if isinstance(value, str) else value
        if not isinstance(found, int) or not low <= found <= high:
            raise ValueError(f"bad value {value!r}: expected a size from {_shown(low)} to {_shown(high)}")
        return found

    return Kind("SIZE", read, _shown)


def _shown(count: int) -> str:
    unit = next(((name, factor) for name, factor in _UNITS if count and count % factor == 0), ("", 1))
    return f"{count // unit[1]}{unit[0]}"


def _sync_mode(value: object) -> SyncMode:
    """Parse a sync mode such as `interval:20`."""
    return SyncMode.parse(_text(value))


def _addresses(value: object) -> tuple[Address, ...]:
    """Parse the addresses of a listener; an empty string and `off` mean none."""
    parts = value.split(",") if isinstance(value, str) else _texts(value)
    return tuple(address for part in parts if (address := parse_address(part)) is not None)


def _cluster(value: object) -> ClusterAddress | None:
    """Parse the address of a RabbitMQ cluster; an empty string means None."""
    return parse_cluster(found) if (found := _text(value)) else None


def _collector(value: object) -> str | None:
    """Parse the URL of an OpenTelemetry collector; an empty string means None."""
    found = _text(value)
    if found and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", found):
        raise ValueError(f"bad address {found!r}: http://host:port or https://host:port of a collector")
    return found or None


def _lease(value: object) -> str:
    """Parse the URL of a lease, or an empty string."""
    found = _text(value)
    if found and not re.fullmatch(r"k8s://[a-z0-9-]+/[a-z0-9.-]+|(s3|gs|az)://[^/?#]+/[^?#]*[^/?#]", found):
        raise ValueError(
            f"bad lease {found!r}: s3://bucket/key, gs://bucket/key, az://container/key or k8s://namespace/name;"
            " other stores have no conditional writes"
        )
    return found


def _server_url(value: object) -> str:
    """Parse the HTTP address of a server, or an empty string."""
    found = _text(value)
    if found and not re.fullmatch(r"https?://[^\s/@?#]+", found):
        raise ValueError(f"bad address {found!r}: http://host:port or https://host:port")
    return found


def _prefix(value: object) -> str:
    """Parse the prefix of the names in a cluster."""
    found = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}/", found):
        raise ValueError(f"bad prefix {found!r}: 1 to 32 of A-Z a-z 0-9 _ - and a slash")
    return found


def _queue(value: object) -> str:
    """Parse the name of a queue, or an empty string."""
    found = _text(value)
    if found:
        queue_name(found)
    return found


def _origins(value: object) -> tuple[str, ...]:
    """Parse origins of web pages, or `*` for all."""
    found = _texts(value)
    for origin in found:
        scheme, separator, rest = origin.partition("://")
        is_origin = scheme in ("http", "https") and separator and rest and "/" not in rest and "*" not in rest
        if origin != "*" and not is_origin:
            raise ValueError(f"bad origin {origin!r}: http(s)://host, http(s)://host:port, or * for all")
    return found


def _patterns(value: object) -> tuple[str, ...]:
    """Parse patterns of queues, as project/queue."""
    found = tuple(filter(None, _texts(value)))
    for pattern in found:
        if "/" not in pattern:
            raise ValueError(f"bad pattern {pattern!r}: project/queue, where * stands for any text")
    return found


def _networks(value: object) -> tuple[str, ...]:
    """Parse addresses and networks."""
    found = _texts(value)
    Networks(found)
    return found


DIRECTORY = Kind("DIR", _path)
FILE = Kind("FILE", _path)
FLAG = Kind("", _flag)
NAMES = Kind("NAME", _texts, is_list=True)
SYNC_MODE = Kind("MODE", _sync_mode)
ADDRESSES = Kind("ADDRESS", _addresses, lambda found: ", ".join(map(str, found)), is_list=True)
CLUSTER = Kind("URL", _cluster)
COLLECTOR = Kind("URL", _collector)
LEASE = Kind("URL", _lease)
SERVER_URL = Kind("URL", _server_url)
PREFIX = Kind("TEXT", _prefix)
QUEUE = Kind("NAME", _queue)
ORIGINS = Kind("ORIGIN", _origins, is_list=True)
PATTERNS = Kind("PATTERN", _patterns, is_list=True)
NETWORKS = Kind("NETWORK", _networks, is_list=True)
