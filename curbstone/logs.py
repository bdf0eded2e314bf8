"""What the server logs, on stderr: lines for people, or one JSON object a line for programs (`--log-format json`).

The names of the JSON's members are an interface: docs/operations.md lists them, one may be added and none changes its
meaning. `message` is a sentence and may change with any version.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

import orjson

LogFormat = Literal["text", "json"]

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
ALWAYS = ("time", "level", "logger", "message")
MAYBE = ("queue", "peer", "listener", "address", "matter")
"""Members of records that are about one: a record's `extra` of that name."""


class TextFormatter(logging.Formatter):
    """One line a record, and more only for a traceback: what others wrote can begin no line of its own."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return _CONTROL.sub(lambda found: repr(found[0])[1:-1], super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """One line of JSON a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; whatever is in the record, it is one."""
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {name: str(value) for name in MAYBE if (value := getattr(record, name, None)) is not None}
        if record.exc_info and record.exc_info[0] is not None:
            told["exception"] = {
                "type": record.exc_info[0].__qualname__,
                "message": str(record.exc_info[1]),
                "stack": self.formatException(record.exc_info),
            }
        try:
            return orjson.dumps(told).decode()
        except orjson.JSONEncodeError:  # a text with half of a surrogate pair
            return orjson.dumps(_printable(told)).decode()


def _printable(value: object) -> object:
    if isinstance(value, dict):
        return {name: _printable(each) for name, each in value.items()}
    return str(value).encode("utf-8", "backslashreplace").decode()


def begin(level: str, form: LogFormat, stream: TextIO | None = None) -> None:
    """Log from now on, to stderr; warnings of Python's too."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)
