"""The archive of the outbox example, by the commands of its page: each order is in the lake once."""

from __future__ import annotations

import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from curbstone.cli.main import app
from curbstone.spark import session
from tests.kit.outbox import FOLDER, WAIT_S_MAX, Outbox, Relay
from tests.kit.postgres import Postgres, needs_postgres
from tests.kit.server import ServerProcess


@needs_postgres
def test_the_lake_has_each_order_once(
    spark: Any,
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    archive, query = [shlex.split(line) for line in lines if line.startswith("    curbstone ")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CURBSTONE_SERVER", server.url)
    monkeypatch.setattr(session, "session", lambda *_, **__: nullcontext(spark))  # Java runs already

    def run(command: list[str]) -> str:
        capsys.readouterr()
        assert not app(command[1:], standalone_mode=False)
        return capsys.readouterr().out

    with Postgres() as postgres:
        outbox = Outbox(postgres, server)
        with Relay(outbox) as relay:
            for first in (0, 50):
                assert outbox.shop(range(first, first + 50)).wait(WAIT_S_MAX) == 0
                relay.kill()
                relay.wait_until(outbox.is_empty)
        assert run(archive) == "archived 100 messages in 1 batch\n"
    found = json.loads(run([*query, "--format", "json"]))
    assert (found["orders"], int(found["total"])) == (100, sum(range(100)))
