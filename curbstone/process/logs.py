"""The server's log on stderr: lines for people, or one JSON object per line for programs (`--log-format json`).

The names of the JSON's members are an interface, listed in docs/operations.md: members may be added, but none changes
its meaning. The text of `message` may change with any version.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, TextIO

import orjson

LogFormat = Literal["text", "json"]

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
ALWAYS = ("time", "level", "logger", "message")
MAYBE = ("queue", "peer", "listener", "address", "matter")
"""Members of some records, set by an `extra` of that name."""


def ready_line(bound: Sequence[tuple[str, object]], form: LogFormat) -> str:
    """Return the line for stdout with the addresses of the open listeners."""
    if form == "text":
        return " ".join(["curbstone ready", *(f"{name}={address}" for name, address in bound)])
    listeners: dict[str, list[str]] = {}
    for name, address in bound:
        listeners.setdefault(name, []).append(str(address))
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    members = {"time": time, "level": "info", "logger": "curbstone", "message": "ready", "listeners": listeners}
    return orjson.dumps(members).decode()


class TextFormatter(logging.Formatter):
    """Writes one line per record, and further lines only for a traceback.

    Text that clients sent is escaped, so that it can't begin a line and look like a record.
    """

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(lambda found: repr(found[0])[1:-1], super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """Writes one line of JSON per record."""

    def format(self, record: logging.LogRecord) -> str:
        members: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        members |= {name: str(value) for name in MAYBE if (value := getattr(record, name, None)) is not None}
        if record.exc_info and record.exc_info[0] is not None:
            members["exception"] = {
                "type": record.exc_info[0].__qualname__,
                "message": str(record.exc_info[1]),
                "stack": self.formatException(record.exc_info),
            }
        try:
            return orjson.dumps(members).decode()
        except orjson.JSONEncodeError:  # a text contains half of a surrogate pair
            return orjson.dumps(_printable(members)).decode()


def _printable(value: object) -> object:
    if isinstance(value, dict):
        return {name: _printable(each) for name, each in value.items()}
    return str(value).encode("utf-8", "backslashreplace").decode()


def begin(level: str, form: LogFormat, stream: TextIO | None = None) -> None:
    """Log to stderr, including Python's own warnings."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)
