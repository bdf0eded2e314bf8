"""The log as JSON: an object a line, with names that do not change."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from curbstone.process import logs
from tests.kit.ops_tools import ROOT
from tests.kit.server import ServerProcess


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.begin("info", "json", stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:] = before
    root.setLevel(level)


def test_json_record_is_one_line() -> None:
    """Formatted here, and not logged: pytest hands what is logged on to another process, which takes no surrogates."""
    record = logging.makeLogRecord({"name": "curbstone.x", "levelname": "WARNING", "peer": "[::1]:5"})
    record.msg, record.args = "two\nlines of %s", ("a \ud800 surrogate",)
    (line,) = logs.JsonFormatter().format(record).splitlines()
    reported = json.loads(line)
    assert {name: reported[name] for name in ("level", "logger", "message", "peer")} == {
        "level": "warning",
        "logger": "curbstone.x",
        "message": "two\nlines of a \\ud800 surrogate",
        "peer": "[::1]:5",
    }


def test_text_record_is_one_line() -> None:
    """A header's escaped newline began a line of its sender's own in the log."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.TextFormatter())
    text = "from a client: a\n2026-11-22 18:00:00,000 INFO curbstone: forged\r\x1b[31m\u2028\x85"
    handler.handle(logging.LogRecord("curbstone", logging.INFO, "", 0, "%s", (text,), None))
    (line,) = written.getvalue().splitlines()
    assert line.endswith(r"from a client: a\n2026-11-22 18:00:00,000 INFO curbstone: forged\r\x1b[31m\u2028\x85")


def test_exception_is_logged_with_type_message_and_stack(stream: io.StringIO) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("curbstone").exception("it failed")
    reported = json.loads(stream.getvalue())
    assert reported["exception"]["type"] == "ValueError"
    assert reported["exception"]["message"] == "broken"
    assert "test_logs.py" in reported["exception"]["stack"]


def test_every_log_field_is_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for name in (*logs.ALWAYS, *logs.MAYBE, "exception"):
        assert f"| `{name}` |" in page, f"docs/operations.md does not tell what {name} is"


def test_json_log_format_applies_to_all_records(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--log-format", "json", "--sync", "never") as server:
        with socket.create_connection(server.stomp) as client:
            client.sendall(b"NONSENSE\n\n\0")
            while client.recv(4096):
                pass
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert all(set(logs.ALWAYS) <= line.keys() <= {*logs.ALWAYS, *logs.MAYBE, "exception"} for line in lines)
    assert "peer" in next(line for line in lines if line["logger"] == "curbstone.stomp")
    assert lines[-1]["message"] == "stopped"
